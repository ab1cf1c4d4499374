// cuSOLVERMg with the signatures of engine/routines.h.
//
// One host thread calls the library for all GPUs: rank 0 calls it with every rank's pointers while
// the other ranks wait. The library needs tile columns of one width, distributed over the GPUs in
// turn. If such a width divides the ranks' blocks, the matrix is redistributed in place. Otherwise,
// and for eigenvectors, it is copied, which takes as much workspace as the matrix.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_H_

#include "xla_ffi/engine/routines.h"

namespace jaxmg::mg {

// As PotrsRoutine. Solves right-hand sides in groups of at most 256. Workspace: the library's, one
// tile column, and two copies of a group.
template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, const Solution<T>& solution);

// As PotriRoutine.
template <typename T>
Status Potri(const RankContext& context, const Operand<T>& operand);

// As SyevdRoutine. Workspace: a copy of the block, and the library's.
template <typename T>
Status Syevd(const RankContext& context, const Operand<T>& operand, bool vectors, Real<T>* w);

}  // namespace jaxmg::mg

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_H_
