// Eigenproblem: the part that routines which diagonalise a matrix have in common, by all ranks or
// by one of them, as the workspace says.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/subset.h"

namespace jaxmg {

// Those columns of the rows of V in the operand's block to v, unless v is that block or null.
template <typename T>
Status TakeSubset(Device& device, const Operand<T>& operand, const Subset& subset, T* v);

// Where all ranks share the work: EigenSpace (divide_space.h); where one does it: A whole on that
// one (and LAPACK's own), and on every rank a tile column.
template <typename T>
struct EigenproblemSpace : RoutineSpace<T> {
  // At least so many elements in `eigen`, for those who work in them before.
  EigenproblemSpace(const Sizes& sizes, bool vectors, const Subset& subset, const Ranks& ranks,
                    int64_t least = 0);

  bool spreads;         // whether all ranks share the work
  Piece<T> eigen = {};  // what SpreadEigen needs
};

template <typename T>
class Eigenproblem {
 public:
  // All eigenvalues go to w (n, on every rank). Unless v is null it
  // becomes this rank's rows of the subset's eigenvectors, block x subset.count(), row-major; it
  // may be the operand's block if they are all wanted, which is overwritten in any case.
  Eigenproblem(const RankContext& context, const Operand<T>& operand, const Subset& subset,
               Real<T>* w, T* v, int64_t least = 0)
      : context_(context),
        operand_(operand),
        subset_(subset),
        w_(w),
        v_(v),
        space_(operand.sizes(), v != nullptr, subset, RanksOf(context), least),
        frame_(context, operand, space_) {}

  const Frame<T>& frame() const { return frame_; }
  T* workspace() const { return frame_.at(space_.eigen); }

  Status Prepare();
  // Of M in the frame's matrix, contiguous blocks of which the lower triangle is valid. Where the
  // outcome's status is not 0, w and v are of no use.
  Status Solve();
  // NaN where the outcome's status is not 0.
  Status PoisonIfFailed() const;

 private:
  const RankContext& context_;
  const Operand<T>& operand_;
  const Subset subset_;
  Real<T>* const w_;
  T* const v_;
  const EigenproblemSpace<T> space_;
  Frame<T> frame_;
};

// As the routines of routines.h. w (n): the eigenvalues, ascending. The block becomes the rows of V
// if `vectors`. Both are NaN where *status is not 0. Workspace: EigenproblemSpace.
template <typename T>
Status SyevdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                    Real<T>* w);

// The same, but v becomes the block's rows of those eigenvectors alone: block x subset.count(),
// row-major, no part of the operand's block, which is overwritten.
template <typename T>
Status SyevxRoutine(const RankContext& context, const Operand<T>& operand, const Subset& subset,
                    Real<T>* w, T* v);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_
