// Eigenproblem: the diagonalization of a Hermitian matrix, which several routines share. Depending
// on the workspace, all ranks work on it or only one.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/subset.h"

namespace jaxmg {

// Copies the columns of `subset` from the rows of V in the operand's block to v, unless v is that
// block or null.
template <typename T>
Status TakeSubset(Device& device, const Operand<T>& operand, const Subset& subset, T* v);

// If all ranks share the work: EigenSpace (eigen.h). If one rank does all the work: the whole
// matrix on that rank (and LAPACK's workspace), and a tile column on every rank.
template <typename T>
struct EigenproblemSpace : RoutineSpace<T> {
  // Reserves at least `least` elements in `eigen`, for a routine that uses them before and after.
  EigenproblemSpace(const Sizes& sizes, bool vectors, const Subset& subset, const Ranks& ranks,
                    int64_t least = 0);

  bool spreads;         // whether all ranks share the work
  Piece<T> eigen = {};  // the space of SpreadEigen, or the memory of the whole matrix
};

template <typename T>
class Eigenproblem {
 public:
  // Writes all eigenvalues to w (n, on every rank). Unless v is null, writes this rank's rows of
  // the subset's eigenvectors to it, block x subset.count(), row-major. v may be the operand's
  // block if the subset has all eigenvalues. The block is overwritten in any case.
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
  // Solves the eigenproblem of M, which is in the frame's matrix in contiguous blocks with a valid
  // lower triangle. If the outcome's status is not 0, w and v are undefined.
  Status Solve();
  // Fills the results with NaN if the outcome's status is not 0.
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

// A routine (routines.h). w (n): the eigenvalues, ascending. With `vectors`, overwrites the block
// with the rows of V. Both are NaN if *status is not 0. Workspace: EigenproblemSpace.
template <typename T>
Status SyevdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                    Real<T>* w);

// As SyevdRoutine, but writes the block's rows of the eigenvectors of `subset` to v: block x
// subset.count(), row-major. v must not overlap the operand's block, which is overwritten.
template <typename T>
Status SyevxRoutine(const RankContext& context, const Operand<T>& operand, const Subset& subset,
                    Real<T>* w, T* v);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_EIGENPROBLEM_H_
