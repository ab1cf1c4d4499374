// Shared by the tests of tall matrices, distributed by rows: shapes, matrices of every kind, and
// products.
#ifndef JAXMG_TESTS_CC_SUPPORT_TALL_PROBLEM_H_
#define JAXMG_TESTS_CC_SUPPORT_TALL_PROBLEM_H_

#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/support/problem.h"

namespace jaxmg::testing {

struct TallShape {
  int64_t m, n;
  int ranks;
  int64_t further = 0, nrhs = -1;  // -1: no right-hand sides
  bool with_q = true;
  int64_t extra_rows = 0;

  std::string name() const {
    return std::to_string(m) + " x " + std::to_string(n) + " on " + std::to_string(ranks) +
           " ranks, " + std::to_string(further) + " below, " + std::to_string(nrhs) + " b, Q " +
           std::to_string(with_q) + ": ";
  }
};

// A row-major rows x columns matrix.
template <typename T>
struct Dense {
  Dense(int64_t rows, int64_t columns) : rows(rows), columns(columns), data(rows * columns) {}
  T& at(int64_t i, int64_t j) { return data[i * columns + j]; }
  const T& at(int64_t i, int64_t j) const { return data[i * columns + j]; }

  int64_t rows, columns;
  std::vector<T> data;
};

template <typename T>
Dense<T> Normal(int64_t rows, int64_t columns, int seed = 1) {
  std::mt19937_64 random(rows * 131 + columns * 7 + seed);
  Dense<T> a(rows, columns);
  for (T& x : a.data) x = Random<T>(random);
  return a;
}

// Returns X^H Y.
template <typename T>
Dense<T> AdjointProduct(const Dense<T>& x, const Dense<T>& y) {
  Dense<T> product(x.columns, y.columns);
  for (int64_t k = 0; k < x.rows; ++k) {
    for (int64_t i = 0; i < x.columns; ++i) {
      for (int64_t j = 0; j < y.columns; ++j) product.at(i, j) += Conj(x.at(k, i)) * y.at(k, j);
    }
  }
  return product;
}

template <typename T>
Real<T> Length(const Dense<T>& x, int64_t column) {
  Real<T> square = 0;
  for (int64_t i = 0; i < x.rows; ++i) square += std::norm(x.at(i, column));
  return std::sqrt(square);
}

// Returns a matrix with orthonormal columns, computed by two passes of Gram-Schmidt.
template <typename T>
Dense<T> Orthonormal(int64_t rows, int64_t columns) {
  Dense<T> x = Normal<T>(rows, columns, 3);
  for (int64_t j = 0; j < columns; ++j) {
    for (int twice = 0; twice < 2; ++twice) {
      for (int64_t k = 0; k < j; ++k) {
        T product = 0;
        for (int64_t i = 0; i < rows; ++i) product += Conj(x.at(i, k)) * x.at(i, j);
        for (int64_t i = 0; i < rows; ++i) x.at(i, j) -= product * x.at(i, k);
      }
    }
    const Real<T> length = Length(x, j);
    for (int64_t i = 0; i < rows; ++i) x.at(i, j) /= length;
  }
  return x;
}

template <typename T>
Dense<T> OfCondition(int64_t rows, int64_t columns, double condition) {
  const Dense<T> u = Orthonormal<T>(rows, columns), v = Orthonormal<T>(columns, columns);
  Dense<T> a(rows, columns);
  for (int64_t k = 0; k < columns; ++k) {
    const double power = columns == 1 ? 0 : static_cast<double>(k) / (columns - 1);
    const auto s = static_cast<Real<T>>(std::pow(condition, -power));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) a.at(i, j) += s * u.at(i, k) * Conj(v.at(j, k));
    }
  }
  return a;
}

template <typename T>
using Maker = std::function<Dense<T>(int64_t rows, int64_t columns)>;

template <typename T>
struct Named {
  const char* name;
  Maker<T> make;
};

// Returns matrices that need different algorithms; some succeed only with the last one.
template <typename T>
std::vector<Named<T>> Kinds() {
  const double unit = kEps<T>;
  auto scaled_columns = [](int64_t rows, int64_t columns, double ratio) {
    Dense<T> a = Normal<T>(rows, columns);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) a.at(i, j) *= static_cast<Real<T>>(std::pow(ratio, j));
    }
    return a;
  };
  return {
      {"random", [](int64_t rows, int64_t columns) { return Normal<T>(rows, columns); }},
      {"of condition u^-0.6",
       [=](int64_t rows, int64_t columns) {
         return OfCondition<T>(rows, columns, std::pow(unit, -0.6));
       }},
      {"of condition 1 / u",
       [=](int64_t rows, int64_t columns) { return OfCondition<T>(rows, columns, 1 / unit); }},
      {"graded by columns",
       [=](int64_t rows, int64_t columns) { return scaled_columns(rows, columns, 0.05); }},
      {"of equal columns",
       [](int64_t rows, int64_t columns) {
         Dense<T> a = Normal<T>(rows, columns);
         for (int64_t i = 0; i < rows; ++i) {
           for (int64_t j = 1; j < columns; j += 2) a.at(i, j) = a.at(i, j - 1);
         }
         return a;
       }},
      {"with a column of zeros",
       [](int64_t rows, int64_t columns) {
         Dense<T> a = Normal<T>(rows, columns);
         for (int64_t i = 0; i < rows; ++i) a.at(i, columns / 2) = 0;
         return a;
       }},
      {"zero", [](int64_t rows, int64_t columns) { return Dense<T>(rows, columns); }},
  };
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_TALL_PROBLEM_H_
