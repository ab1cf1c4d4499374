// Shared by the tests of routines for general matrices: a matrix distributed by rows, devices with
// other tunings, and error measures.
#ifndef JAXMG_TESTS_CC_SUPPORT_GENERAL_PROBLEM_H_
#define JAXMG_TESTS_CC_SUPPORT_GENERAL_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"

namespace jaxmg::testing {

// An m x n matrix A, row-major, and its blocks of rows with NaN in the padding.
template <typename T>
struct GeneralProblem {
  GeneralProblem(int64_t m, int64_t n, int ranks, int64_t extra_rows = 0)
      : m(m), n(n), block((m + ranks - 1) / ranks + extra_rows), ranks(ranks), a(m * n) {
    std::mt19937_64 random(m * 131 + n * 17 + ranks);
    for (T& x : a) x = Random<T>(random);
    Scatter();
  }

  void Scatter() {
    blocks.assign(ranks, std::vector<T>(block * n, NaN<T>()));
    for (int64_t i = 0; i < m; ++i) {
      std::copy_n(&a[i * n], n, &blocks[i / block][i % block * n]);
    }
  }
  // Returns the rows of the blocks without padding.
  std::vector<T> Rows() const {
    std::vector<T> rows(m * n);
    for (int64_t i = 0; i < m; ++i) {
      std::copy_n(&blocks[i / block][i % block * n], n, &rows[i * n]);
    }
    return rows;
  }

  Operand<T> operand(int rank, int64_t tile, int32_t* status) {
    return {m, n, block, tile, blocks[rank].data(), status};
  }

  Real<T> largest() const {
    Real<T> largest = 0;
    for (const T& x : a) largest = std::max<Real<T>>(largest, std::abs(x));
    return largest;
  }

  std::string name() const {
    std::ostringstream text;
    text << m << " x " << n << " on " << ranks << " ranks: ";
    return text.str();
  }

  const int64_t m, n, block;
  const int ranks;
  std::vector<T> a;
  std::vector<std::vector<T>> blocks;
};

// Returns op(A) x; A is n x n and x is n x count, both row-major.
template <typename T>
std::vector<T> Product(Op op, int64_t n, const std::vector<T>& a, const std::vector<T>& x) {
  const int64_t count = static_cast<int64_t>(x.size()) / std::max<int64_t>(n, 1);
  std::vector<T> product(x.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) {
      T element = op == Op::kNone ? a[i * n + k] : a[k * n + i];
      if (op == Op::kConjTrans) element = Conj(element);
      for (int64_t r = 0; r < count; ++r) product[i * count + r] += element * x[k * count + r];
    }
  }
  return product;
}

// Returns the largest residual of a right-hand side in units of eps |A| |x|. A stable solution has
// about n.
template <typename T>
Real<T> BackwardError(Op op, int64_t n, const std::vector<T>& a, const std::vector<T>& x,
                      const std::vector<T>& b) {
  const std::vector<T> back = Product(op, n, a, x);
  const int64_t count = static_cast<int64_t>(x.size()) / std::max<int64_t>(n, 1);
  Real<T> largest = 0, worst = 0;
  for (const T& element : a) largest = std::max<Real<T>>(largest, std::abs(element));
  for (int64_t r = 0; r < count; ++r) {
    Real<T> residual = 0, size = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Real<T> error = std::abs(back[i * count + r] - b[i * count + r]);
      residual = error <= residual ? residual : error;  // propagates NaN
      size += std::abs(x[i * count + r]);
    }
    const Real<T> ratio = residual / (kEps<T> * largest * size);
    worst = ratio <= worst ? worst : ratio;
  }
  return worst;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_GENERAL_PROBLEM_H_
