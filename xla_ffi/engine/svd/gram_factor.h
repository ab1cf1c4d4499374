// The Cholesky factor of a positive definite matrix that is distributed by rows, such as a Gram
// matrix, and products with its inverse: the steps of potrf and solve_rows (factor.h) as a part of
// another rank program, in that program's memory.
//
// In the engine's column-major form, M = L L^H is the conjugate of the matrix A. A rank's rows of X
// are its columns of X^T, and X A^-1 becomes M^-1 X^T. On one rank these are operations on whole
// triangles; on several ranks, the tile columns of L go to all ranks.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_GRAM_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_GRAM_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// One region for two tile columns or the panels of Potrf; an overflow tile; and the workspace of
// SolveVector.
template <typename T>
struct GramFactorSpace {
  GramFactorSpace(Pieces& pieces, const Sizes& sizes, const Ranks& ranks);

  Tiles tiles;
  Tiles factored;  // as in PotrfSpace
  int64_t order;   // of the diagonal blocks that are inverted for SolveVector
  Piece<T> panels, overflow, inverses, local, sums;
};

// All operations are enqueued on all streams, kMain last.
template <typename T>
class GramFactor {
 public:
  // `info` is in device memory and must be initialized. It is not checked: if a matrix isn't
  // positive definite, results that use its factor are NaN.
  GramFactor(const RankContext& context, const GramFactorSpace<T>& space,
             const Workspace& workspace, int32_t* info);

  // Must be called before the ranks start to work, with the memory of a matrix.
  Status Prepare(T* memory);

  // Overwrites gram (this rank's columns of M; only the lower triangle is read) with the factor,
  // which later calls read there. `for_vectors` makes SolveVector faster.
  Status Factor(T* gram, bool for_vectors = false);
  // x := M^-1 x, where x is this rank's columns, n x `columns`. `turned` has as many elements.
  Status Solve(int64_t columns, T* x, T* turned);
  // inverse := this rank's columns of L^-1, with zeros above the diagonal. `turned`: as for Solve.
  Status Invert(int64_t columns, T* inverse, T* turned);
  // v := v M^-1, where v has n elements and is equal on all ranks.
  Status SolveVector(T* v);

 private:
  bool alone() const { return context_.comm.size() == 1; }
  int64_t n() const { return space_.tiles.columns(); }
  Matrix<T> matrix(const Tiles& tiles) const;

  const RankContext& context_;
  const GramFactorSpace<T>& space_;
  const Workspace& workspace_;
  int32_t* const info_;
  T* factor_ = nullptr;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_GRAM_FACTOR_H_
