// Shared by the tests of decompositions of general square matrices: matrices with prescribed
// singular values, in blocks of rows on the ranks.
#ifndef JAXMG_TESTS_CC_SUPPORT_MATRIX_PROBLEM_H_
#define JAXMG_TESTS_CC_SUPPORT_MATRIX_PROBLEM_H_

#include <cmath>
#include <complex>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/support/problem.h"

namespace jaxmg::testing {

// A row-major n x n matrix.
template <typename T>
using Dense = std::vector<T>;

// Returns X Y or, if `adjoint`, X^H Y.
template <typename T>
Dense<T> Times(const Dense<T>& x, const Dense<T>& y, int64_t n, bool adjoint = false) {
  Dense<T> product(n * n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) {
      const T factor = adjoint ? Conj(x[k * n + i]) : x[i * n + k];
      for (int64_t j = 0; j < n; ++j) product[i * n + j] += factor * y[k * n + j];
    }
  }
  return product;
}

// Returns the Frobenius norm of X - Y.
template <typename T>
double Distance(const Dense<T>& x, const Dense<T>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::norm(std::complex<double>(x[i] - y[i]));
  return std::sqrt(sum);
}

template <typename T>
Dense<T> Identity(int64_t n) {
  Dense<T> eye(n * n);
  for (int64_t i = 0; i < n; ++i) eye[i * n + i] = 1;
  return eye;
}

// Returns a matrix with orthonormal rows, computed by two passes of Gram-Schmidt.
template <typename T>
Dense<T> Orthogonal(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Dense<T> q(n * n);
  for (int64_t i = 0; i < n; ++i) {
    T* row = &q[i * n];
    for (int64_t j = 0; j < n; ++j) row[j] = Random<T>(random);
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < i; ++k) {
        T product = 0;
        for (int64_t j = 0; j < n; ++j) product += Conj(q[k * n + j]) * row[j];
        for (int64_t j = 0; j < n; ++j) row[j] -= product * q[k * n + j];
      }
      double length = 0;
      for (int64_t j = 0; j < n; ++j) length += std::norm(row[j]);
      for (int64_t j = 0; j < n; ++j) row[j] /= static_cast<Real<T>>(std::sqrt(length));
    }
  }
  return q;
}

// The kinds of singular values: spread evenly, over many orders of magnitude, in two clusters, half
// of them zero, all of them equal, or zero.
inline const char* const kKinds[] = {"even", "graded", "clustered", "deficient", "equal", "zero"};

template <typename T>
std::vector<double> SingularValues(const std::string& kind, int64_t n) {
  const double least = sizeof(Real<T>) == sizeof(float) ? 1e-6 : 1e-14;
  std::vector<double> s(n, 1.0);
  for (int64_t i = 0; i < n; ++i) {
    const double part = n == 1 ? 0 : static_cast<double>(i) / static_cast<double>(n - 1);
    if (kind == "even") s[i] = 1 - part / 2;
    if (kind == "graded") s[i] = std::pow(least, part);
    if (kind == "clustered") s[i] = 2 * i < n ? 1 : 1e-3;
    if (kind == "deficient") s[i] = 2 * i < n ? 1 - part : 0;
    if (kind == "zero") s[i] = 0;
  }
  return s;
}

// Returns left diag(s) right, where left and right come from Orthogonal.
template <typename T>
Dense<T> WithValues(const std::vector<double>& s, int64_t n, uint64_t seed) {
  Dense<T> left = Orthogonal<T>(n, seed);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) left[i * n + j] *= static_cast<Real<T>>(s[j]);
  }
  return Times(left, Orthogonal<T>(n, seed + 1), n);
}

// Returns a rank's rows, with NaN in the padding.
template <typename T>
std::vector<T> RowsOf(const Dense<T>& a, int64_t n, int64_t block, int rank) {
  std::vector<T> rows(block * n, NaN<T>());
  const int64_t begin = std::min(rank * block, n), end = std::min(begin + block, n);
  std::copy(a.begin() + begin * n, a.begin() + end * n, rows.begin());
  return rows;
}

// Assembles the n x columns matrix from the rows of all ranks.
template <typename T>
std::vector<T> Whole(const std::vector<std::vector<T>>& rows, int64_t n, int64_t columns) {
  std::vector<T> whole;
  for (const std::vector<T>& one : rows) whole.insert(whole.end(), one.begin(), one.end());
  whole.resize(n * columns);
  return whole;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_MATRIX_PROBLEM_H_
