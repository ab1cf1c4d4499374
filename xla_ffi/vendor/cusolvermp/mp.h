// cuSOLVERMp behind the signatures of engine/routines.h.
//
// The library has a process for each GPU and finds the others by NCCL: every rank calls it. It
// wants square tiles on a two-dimensional grid of ranks, which are a copy of the matrix.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_

#include "xla_ffi/engine/routines.h"

namespace jaxmg::mp {

// As PotrsRoutine. Workspace: a copy of the block, two columns of tiles, three copies of the
// right-hand sides at most, the library's.
template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, const Solution<T>& solution);

// As SyevdRoutine. Workspace: a copy of the block and one of the eigenvectors, two columns of
// tiles, the library's.
template <typename T>
Status Syevd(const RankContext& context, const Operand<T>& operand, bool vectors, Real<T>* w);

}  // namespace jaxmg::mp

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_
