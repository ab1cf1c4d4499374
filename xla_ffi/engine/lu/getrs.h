// getrs: solves with the factors that getrf made, for right-hand sides in row form
// (right_hand_sides.h).
//
// With P M = L U and A = M^T, A x = b is X M = B, so X = B U^-1 L^-1 P. Getrf applies U^-1 to its
// right-hand sides while it factors; L^-1 is a sweep after it. A^T x = b is X M^T = B, so
// X = B P^T L^-T U^-T, and A^H x = b the same with conjugates.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_

#include <cstdint>

#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// The rest of X = B M^-1: X := Y L^-1 P, where x.local holds this rank's columns of Y = B U^-1 and
// is used up. x.data becomes X on every rank. Enqueued on all streams, kMain last.
template <typename T>
Status FinishGesv(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                  const RightHandSides<T>& x);

// X := X op(M)^-1 on every rank; x.local and, where op is a transposition, `sums` (nrhs x n) are
// workspace. Two sweeps: nrhs n^2 multiply-adds over all ranks. Enqueued on all streams, kMain
// last.
template <typename T>
Status Getrs(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots, Op op,
             const RightHandSides<T>& x, T* sums);

// z := op(M)^-1 z for `columns` columns of which each rank has its own, side by side with leading
// dimension n: as many as a matrix has. Every rank substitutes for its columns with all of L and U,
// whose tile columns pass from their owners to all; `columns` may differ from rank to rank. n^2
// multiply-adds a column, and n^2 elements that every rank receives. Enqueued on kMain and kCopy,
// kMain last.
template <typename T>
Status GetrsColumns(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                    Op op, int64_t columns, T* z, T* workspace);

// Elements of workspace of GetrsColumns: two tile columns.
inline int64_t GetrsColumnsWorkspace(const Tiles& tiles) {
  return 2 * tiles.width() * tiles.columns();
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GETRS_H_
