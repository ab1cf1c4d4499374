// cuSOLVERMp with the signatures of engine/routines.h.
//
// The library uses one process per GPU, connected by NCCL, and every rank calls it. It needs square
// tiles on a two-dimensional grid of ranks, so the matrix is copied to such tiles.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_

#include "xla_ffi/engine/routines.h"

namespace jaxmg::mp {

// As PotrsRoutine. Workspace: a copy of the block, two columns of tiles, at most three copies of
// the right-hand sides, and the library's workspace.
template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, const Solution<T>& solution);

// As GesvRoutine, with three differences. The determinant is NaN. x is NaN if the status isn't 0.
// The status of a singular matrix may be kNotFinite, because the library divides by a zero pivot.
// Workspace: two copies of the block, two columns of tiles, at most three copies of the right-hand
// sides, and the library's workspace.
template <typename T>
Status Gesv(const RankContext& context, const Operand<T>& operand,
            const GeneralSolution<T>& solution);

// As SyevdRoutine. Workspace: copies of the block and of the eigenvectors, two columns of tiles,
// and the library's workspace.
template <typename T>
Status Syevd(const RankContext& context, const Operand<T>& operand, bool vectors, Real<T>* w);

// Computes the singular value decomposition A = U S V^H of a square matrix. operand.a becomes this
// rank's rows of U, and vh its rows of V^H, both row-major. Without `vectors`, operand.a is
// undefined and vh isn't used. s (n): the singular values, descending, on every rank. All results
// are NaN if *status is not 0. Workspace: three copies of the block, two columns of tiles, and the
// library's workspace.
template <typename T>
Status Gesvd(const RankContext& context, const Operand<T>& operand, bool vectors, T* vh,
             Real<T>* s);

// Computes the unitary factor of the polar decomposition of a square matrix. operand.a becomes this
// rank's rows of the factor; NaN if *status is not 0. Workspace: a copy of the block, two columns
// of tiles, and the library's workspace.
template <typename T>
Status Polar(const RankContext& context, const Operand<T>& operand);

}  // namespace jaxmg::mp

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_H_
