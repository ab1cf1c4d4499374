// getrf: LU factorization P M = L U of a distributed matrix with partial pivoting, right-looking,
// with look-ahead, on a 1 x P grid of tile columns.
//
//   for each tile column k:
//     owner of k:    factor the panel, that is the tile column from its diagonal on; send it, and
//                    its pivots
//     owner of k+1, as soon as it has panel k:  update tile column k+1 and factor that
//     everyone:      interchange rows of its other tile columns beyond k, solve for their rows of
//                    U, and subtract the product with the panel
//   everyone: interchange the rows of L that later panels have moved
//
// A panel is whole on one rank, so the search for a pivot needs no communication, and the choice of
// pivots is LAPACK's. 2 n^3 / 3 operations; a rank sends or receives n^2 / 2 elements in all.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GETRF_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GETRF_H_

#include <cstdint>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/right_hand_sides.h"

namespace jaxmg {

// The triangles of M's factors.
inline constexpr Triangle kUnitLower = {Uplo::kLower, Diag::kUnit};
inline constexpr Triangle kUpper = {Uplo::kUpper, Diag::kNonUnit};

// log |det| and sign of this rank's tile columns; null pointers: not wanted. Both are in device
// memory and are added to, or multiplied.
template <typename T>
struct Determinant {
  Real<T>* log_abs = nullptr;
  T* sign = nullptr;
};

// Elements of workspace: two panels, where they can't be read on their owner, and in the same
// memory a buffer for rows of L that move.
template <typename T>
int64_t GetrfWorkspace(const Tiles& tiles, int64_t rows, const Tuning& tuning);

// Needs `matrix` block-cyclic, of any number of rows. Replaces it by L and U as LAPACK's getrf
// does; updates are computed in `precision`. pivots: min(rows, columns) numbers on every rank,
// counted from 0 (lu_kernels.h); *info becomes the smallest that this rank saw, of what
// LuKernels::FactorPanel says.
//
// Right-hand sides in row form (right_hand_sides.h) are further rows of M that can't be pivots;
// they need a square matrix. x.local becomes this rank's columns of X U^-1; x.data is used up.
// Enqueued on all streams, kMain last.
template <typename T>
Status Getrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const RightHandSides<T>& x, T* workspace, int32_t* pivots, int32_t* info,
             const Determinant<T>& determinant);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GETRF_H_
