// getrs: solves with the factors that getrf made, for right-hand sides in row form (potrf.h).
//
// With P M = L U and A = M^T, A x = b is X M = B, so X = B U^-1 L^-1 P. Getrf applies U^-1 to its
// right-hand sides while it factors; L^-1 is a sweep after it.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_

#include <cstdint>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// X := Y R^-1 with R one triangle of `matrix`, which is square: upper from the first tile column to
// the last, lower from the last to the first. x.local holds this rank's columns of Y and is used
// up; x.data becomes X on every rank. The owner of a tile column solves with the diagonal tile and
// sends the result to all; every rank subtracts its product with one row of tiles. nrhs n^2 / 2
// multiply-adds over all ranks. Enqueued on all streams, kMain last.
template <typename T>
Status SolveWithTriangle(const RankContext& context, const Matrix<T>& matrix,
                         const Triangle& triangle, const RightHandSides<T>& x);

// The rest of X = B M^-1: X := Y L^-1 P, where x.local holds this rank's columns of Y = B U^-1.
template <typename T>
Status FinishGesv(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                  const RightHandSides<T>& x);

// X := X M^-1 on every rank; x.local is workspace.
template <typename T>
Status Getrs(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
             const RightHandSides<T>& x);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_
