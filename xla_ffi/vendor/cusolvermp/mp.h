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

// The singular value decomposition A = U S V^H of a square matrix. operand.a: this rank's rows of
// U, vh: its rows of V^H, both stored row after row; without `vectors` operand.a is undefined and
// vh isn't used. s (n): the singular values, descending, on every rank. NaN if *status is not 0.
// Workspace: three copies of the block, two columns of tiles, and the library's.
template <typename T>
Status Gesvd(const RankContext& context, const Operand<T>& operand, bool vectors, T* vh,
             Real<T>* s);

// The unitary factor of the polar decomposition of a square matrix. operand.a: this rank's rows of
// it; NaN if *status is not 0. Workspace: a copy of the block, two columns of tiles, and the
// library's.
template <typename T>
Status Polar(const RankContext& context, const Operand<T>& operand);

}  // namespace jaxmg::mp

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_
