// getri: the inverse from the factors that getrf made, by all ranks, in the place of the factors.
//
// With P M = L U, M^-1 = V W P, V = U^-1 and W = L^-1. Two sweeps over tile columns, and an
// exchange:
//
//   W, from the last tile column to the first     V and V W, from the first to the last
//
//     0   k                                         0   k
//   ┌───┬───┬───┐                                 ┌───┬───┬───┐
//   │   │   │   │                                 │ X │ k │acc│  column k of V goes to all, is
//   ├───┼───┼───┤   column k of W goes to         ├───┼───┼───┤  multiplied by row k of W on the
//   │L_k│ k │   │   all, is multiplied by         │W_k│ k │U_k│  left, where X = V W grows, and
//   ├───┼───┼───┤   row k of L, and subtracted    ├───┼───┼───┤  by row k of U on the right, where
//   │acc│ W │ W │   below that                    │ W │ W │ U │  what V is made of does
//   └───┴───┴───┘                                 └───┴───┴───┘
//
// Row k is needed for the last time at step k, and becomes the first row of what grows. So each
// step is one large product of a column that all ranks have with rows of their own columns, and
// needs no memory but the columns on their way. The next column is finished and sent while the
// products of this one run. Then the interchanges of columns, between ranks, pass by rows: each
// rank gets some rows of all columns, interchanges there, and gives them back.
//
// 4/3 n^3 operations, as LAPACK's. Every rank receives n^2 elements, and sends and receives 2 n^2 /
// P for the interchanges. The residual of X = V W, X L U - I as of LAPACK's getri, is bounded by
// |U^-1| |L^-1| |L| |U| n eps; L U X - I may be larger by the condition number (N. J. Higham,
// "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 14.3, method D; J. J. Du Croz
// and N. J. Higham, "Stability of methods for matrix inversion", IMA J. Numer. Anal. 12, 1992).
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GETRI_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GETRI_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// Whether a single rank inverts the factors of a matrix of this order as a whole, out of place.
inline bool InvertsWhole(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  return tiles.ranks() == 1 && rows <= tuning.whole_inverse_order;
}

// Elements of workspace: a matrix, or two tile columns, a row of this rank's tiles and a tile.
inline int64_t GetriWorkspace(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  if (InvertsWhole(tiles, rows, tuning)) return rows * rows;
  return (2 * rows + (tiles.slots() + 1) * tiles.width()) * tiles.width();
}

// Replaces L and U (block-cyclic, square) by V W. Products are computed in `precision`. Enqueued on
// all streams, kMain last.
template <typename T>
Status Getri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace);

// Interchanges columns of a square matrix whose columns lie in contiguous blocks, from the last
// pivot to the first: X P. `staging` has `size` elements, a column of the matrix at least. Enqueued
// on kMain.
template <typename T>
Status PermuteColumns(const RankContext& context, const Blocks<T>& blocks, const int32_t* pivots,
                      T* staging, int64_t size);

// Panels of Getrf or columns of Getri, an overflow tile, pivots; on rank 0 the matrix, where it is
// gathered there.
template <typename T>
struct GetriSpace : RoutineSpace<T> {
  GetriSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
  Tiles factored;  // of the factorization (TilesToFactor)
  Piece<int32_t> pivots = {};
};

// The factors in the frame's tiles to the rows of the inverse, in its blocks. Its panels have
// GetriWorkspace.
template <typename T>
Status InvertFactors(Frame<T>& frame, Precision precision, const int32_t* pivots);

// As the routines of routines.h. The block becomes the rows of the inverse of A. *status is
// LAPACK's info of getrf, or kNotFinite. Where U(k, k) is exactly zero the inverse has infinity and
// NaN; where the status is negative all of it is NaN. Workspace: GetriSpace.
template <typename T>
Status GetriRoutine(const RankContext& context, const Operand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GETRI_H_
