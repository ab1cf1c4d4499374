// getrf: LU factorization P M = L U of a distributed matrix with partial pivoting, right-looking,
// with look-ahead, on a 1 x P grid of tile columns.
//
//   for each tile column k:
//     owner of k:    factor the panel, which is the tile column from its diagonal on; send the
//                    panel and its pivots
//     owner of k+1, as soon as it has panel k:  update tile column k+1 and factor its panel
//     everyone:      in its other tile columns after k, interchange rows, solve for the rows of U,
//                    and subtract the product with the panel
//   everyone: interchange the rows of L that later panels have moved
//
// A panel is whole on one rank, so the search for a pivot needs no communication, and the pivots
// are LAPACK's. 2 n^3 / 3 flops. Each rank sends or receives n^2 / 2 elements in all.
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

// log |det| and the sign (complex: phase) of the determinant, in device memory. Getrf adds the
// terms of this rank's tile columns to *log_abs, and multiplies *sign by theirs. Null: not
// requested.
template <typename T>
struct Determinant {
  Real<T>* log_abs = nullptr;
  T* sign = nullptr;
};

// Returns the number of elements of workspace: two panels, unless ranks read panels in their
// owner's memory; the same memory is a buffer for the rows of L that are interchanged at the end.
template <typename T>
int64_t GetrfWorkspace(const Tiles& tiles, int64_t rows, const Tuning& tuning);

// Overwrites `matrix`, which must be block-cyclic and may have any number of rows, with L and U, as
// LAPACK's getrf does. Updates are computed in `precision`. Writes min(rows, columns) pivots on
// every rank, counted from 0 (lu_kernels.h). *info becomes the smallest info of this rank's panels
// (LuKernels::FactorPanel).
//
// Right-hand sides in row form (right_hand_sides.h) are further rows of M that can't become pivots;
// they need at least as many rows as columns. x.local becomes this rank's columns of X U^-1, and
// x.data all of it. Enqueued on all streams, kMain last.
//
// If `rows` is positive, it is the number of rows to factor, and matrix.rows is only the distance
// between columns.
template <typename T>
Status Getrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const RightHandSides<T>& x, T* workspace, int32_t* pivots, int32_t* info,
             const Determinant<T>& determinant, int64_t rows = 0);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GETRF_H_
