// Eigenproblem: the part that routines which diagonalise a matrix have in common, by all ranks or
// by one of them, as the plan has it.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// Those columns of the rows of V in the operand's block to v, unless v is that block or null.
template <typename T>
Status TakeSubset(Device& device, const Operand<T>& operand, const Subset& subset, T* v);

template <typename T>
class Eigenproblem {
 public:
  // `routine` is kSyevd or kSygvd. All eigenvalues go to w (n, on every rank). Unless v is null it
  // becomes this rank's rows of the subset's eigenvectors, block x subset.count(), row-major; it
  // may be the operand's block if they are all wanted, which is overwritten in any case.
  Eigenproblem(const RankContext& context, const Operand<T>& operand, Routine routine,
               const Subset& subset, Real<T>* w, T* v)
      : context_(context),
        operand_(operand),
        subset_(subset),
        w_(w),
        v_(v),
        frame_(context, operand, routine, v != nullptr, subset) {}

  const Frame<T>& frame() const { return frame_; }

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
  Frame<T> frame_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_
