// getrs: solves with the factors that Getrf has computed, for right-hand sides in row form
// (right_hand_sides.h).
//
// With P M = L U and A = M^T, A x = b is X M = B in row form, so X = B U^-1 L^-1 P. Getrf
// multiplies its right-hand sides by U^-1 while it factors; a sweep afterwards multiplies by L^-1.
// A^T x = b is X M^T = B, so X = B P^T L^-T U^-T; A^H x = b is the same with conjugates.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_

#include <cstdint>

#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// Completes X = B M^-1 after Getrf: X := Y L^-1 P. x.local holds this rank's columns of Y = B U^-1
// and is overwritten; x.data becomes X on every rank. Enqueued on all streams, kMain last.
template <typename T>
Status FinishGesv(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                  const RightHandSides<T>& x);

// X := X op(M)^-1 on every rank. x.local is workspace and, if op is a transposition, so is `sums`
// (nrhs x n). Two sweeps: 2 nrhs n^2 flops over all ranks. Enqueued on all streams, kMain last.
template <typename T>
Status Getrs(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots, Op op,
             const RightHandSides<T>& x, T* sums);

// Solve with one triangle R of a distributed matrix: X := Y R^-1, from x.local, which is
// overwritten, to x.data on every rank; and X := X op(R)^-1 in x.data, op a transposition, with
// x.local and `sums` as in Getrs. nrhs n^2 flops over all ranks. Enqueued as Getrs.
template <typename T>
Status SolveWith(const RankContext& context, const Matrix<T>& matrix, const Triangle& triangle,
                 const RightHandSides<T>& x);
template <typename T>
Status SolveWithTransposed(const RankContext& context, const Matrix<T>& matrix,
                           const Triangle& triangle, Op op, const RightHandSides<T>& x, T* sums);

// z := op(M)^-1 z, where each rank has its own `columns` columns, contiguous with leading dimension
// n. `columns` may differ between ranks. For about as many columns as a matrix has: the tile
// columns of L and U go to all ranks, and every rank substitutes for its own columns. 2 n^2 flops
// per column; every rank receives n^2 elements. Enqueued on kMain and kCopy, kMain last.
template <typename T>
Status GetrsColumns(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                    Op op, int64_t columns, T* z, T* workspace);

// Returns the number of elements of workspace of GetrsColumns: two tile columns.
inline int64_t GetrsColumnsWorkspace(const Tiles& tiles) {
  return 2 * tiles.width() * tiles.columns();
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_
