// The tree of divide and conquer: where it tears a matrix, and which ranks own which parts.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_TREE_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_TREE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/eigen/divide/deflation.h"

namespace jaxmg {

struct Span {
  int64_t begin, end;
};

// A merge of rows and columns [begin, end), torn at `middle`. Ranks [first, last] own rows of it.
template <typename R>
struct Merge {
  int64_t begin, middle, end;
  int first, last;
  R torn;  // the off-diagonal element that tears it
  Deflation<R> found = {};

  int64_t order() const { return end - begin; }
  // Half 0 is above the middle, half 1 below it.
  int64_t from(int half) const { return half == 0 ? begin : middle; }
  int64_t to(int half) const { return half == 0 ? middle : end; }
  // The row of a half's vectors that becomes part of z.
  int64_t row(int half) const { return half == 0 ? middle - 1 : middle; }
};

// The leaves and merges of a rank, the merges level by level from the whole matrix down. The points
// at which a matrix is torn depend only on its order. So the eigenvalues don't depend on the number
// of ranks except for rounding.
template <typename R>
class DivideTree {
 public:
  // Subtracts the torn elements from d.
  DivideTree(int64_t n, int64_t block, int rank, int ranks, int64_t leaf, R* d, const R* e)
      : n_(n), block_(block), rank_(rank), ranks_(ranks), leaf_(leaf), d_(d), e_(e) {
    Tear(0, n, 0);
  }

  std::vector<Span> leaves;
  std::vector<std::vector<Merge<R>>> levels;  // empty if the whole matrix is a leaf

 private:
  void Tear(int64_t begin, int64_t end, size_t level) {
    // All ranks take part in the merge of the whole matrix, so that ranks without rows get the
    // eigenvalues too.
    const bool whole = end - begin == n_;
    const int first = whole ? 0 : static_cast<int>(begin / block_);
    const int last = whole ? ranks_ - 1 : static_cast<int>((end - 1) / block_);
    const bool mine = first <= rank_ && rank_ <= last;
    if (end - begin <= leaf_) {
      if (mine) leaves.push_back({begin, end});
      return;
    }
    const int64_t middle = begin + (end - begin) / 2;
    const R torn = e_[middle - 1];
    d_[middle - 1] -= std::abs(torn);
    d_[middle] -= std::abs(torn);
    if (levels.size() <= level) levels.resize(level + 1);
    if (mine) levels[level].push_back({begin, middle, end, first, last, torn});
    Tear(begin, middle, level + 1);
    Tear(middle, end, level + 1);
  }

  const int64_t n_, block_;
  const int rank_, ranks_;
  const int64_t leaf_;
  R* const d_;
  const R* const e_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_TREE_H_
