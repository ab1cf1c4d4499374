// The Cholesky factor of a positive definite matrix that lies on the ranks by rows, such as a Gram
// matrix, and what products with its inverse take: the steps of potrf and solve_rows (factor.h)
// inside another rank program, in that program's memory.
//
// In the engine's columns, M = L L^H is the matrix's conjugate. A rank's rows of X are its columns
// of X^T, and X A^-1 is M^-1 X^T there. On one rank these are operations on whole triangles; on
// several, the columns of L pass all ranks.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_GRAM_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_GRAM_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// Two tile columns, or the panels of Potrf; an overflow tile; what solves with vectors.
template <typename T>
struct GramFactorSpace {
  GramFactorSpace(Pieces& pieces, const Sizes& sizes, const Ranks& ranks);

  Tiles tiles;
  Tiles factored;  // as PotrfSpace's
  int64_t order;   // of the diagonal blocks that are inverted
  Piece<T> panels, overflow, inverses, local, sums;
};

// All operations are enqueued on all streams, kMain last.
template <typename T>
class GramFactor {
 public:
  // `info` is of device memory, and has been set: a matrix that isn't positive definite shows in
  // what is computed with its factor, which is NaN.
  GramFactor(const RankContext& context, const GramFactorSpace<T>& space,
             const Workspace& workspace, int32_t* info);

  // To be called before the ranks start to work, with the memory of a matrix.
  Status Prepare(T* memory);

  // gram (this rank's columns of M, of which the lower triangle is read) becomes the factor, which
  // later calls use there. `for_vectors` makes SolveVector faster.
  Status Factor(T* gram, bool for_vectors = false);
  // x := M^-1 x, n x `columns`: this rank's. `turned` has as many elements.
  Status Solve(int64_t columns, T* x, T* turned);
  // inverse := this rank's columns of L^-1, with zeros above the diagonal. `turned` as for Solve.
  Status Invert(int64_t columns, T* inverse, T* turned);
  // v := v M^-1, of n elements, the same on all ranks.
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
