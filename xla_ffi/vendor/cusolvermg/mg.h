// cuSOLVERMg behind the signatures of engine/routines.h.
//
// The library is one host thread's view of all GPUs: rank 0 calls it with every rank's pointers
// while the other ranks wait. It wants tile columns of one width, column by column of the matrix,
// dealt to the GPUs in turn. Where such a width divides the ranks' blocks, the matrix becomes that
// in place; elsewhere, and for eigenvectors, in a copy that takes as much workspace as the matrix.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_H_

#include "xla_ffi/engine/routines.h"

namespace jaxmg::mg {

// As PotrsRoutine. Workspace: the library's, one tile column, two copies of at most 256 right-hand
// sides; these are solved in groups of so many.
template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, const Solution<T>& solution);

// As PotriRoutine.
template <typename T>
Status Potri(const RankContext& context, const Operand<T>& operand);

// As SyevdRoutine. Workspace: a copy of the block and the library's.
template <typename T>
Status Syevd(const RankContext& context, const Operand<T>& operand, bool vectors, Real<T>* w);

}  // namespace jaxmg::mg

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_H_
