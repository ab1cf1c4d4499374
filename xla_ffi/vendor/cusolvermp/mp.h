// cuSOLVERMp with the signatures of engine/routines.h.
//
// The library uses one process per GPU, connected by NCCL, and every rank calls it. It needs square
// tiles on a two-dimensional grid of ranks, to which the matrix is copied.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_

#include "xla_ffi/engine/routines.h"

namespace jaxmg::mp {

// The same as PotrsRoutine. Workspace: a copy of the block, two columns of tiles, at most three
// copies of the right-hand sides, and the library's.
template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, const Solution<T>& solution);

// The same as GesvRoutine, but that there is no determinant, which is NaN, that x is NaN if the
// status isn't 0, and that the status of a singular matrix may be kNotFinite, for the library
// divides by a pivot that is zero. Workspace: two copies of the block, two columns of tiles, at
// most three copies of the right-hand sides, and the library's.
template <typename T>
Status Gesv(const RankContext& context, const Operand<T>& operand,
            const GeneralSolution<T>& solution);

// The same as SyevdRoutine. Workspace: a copy of the block and one of the eigenvectors, two columns
// of tiles, and the library's.
template <typename T>
Status Syevd(const RankContext& context, const Operand<T>& operand, bool vectors, Real<T>* w);

}  // namespace jaxmg::mp

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_
