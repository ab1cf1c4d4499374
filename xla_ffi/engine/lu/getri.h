// getri: replaces the factors that Getrf has computed by the inverse, by all ranks.
//
// With P M = L U, V = U^-1 and W = L^-1, the inverse is M^-1 = V W P. It takes two sweeps over tile
// columns, and an exchange:
//
//   W, from the last tile column to the first     V and V W, from the first to the last
//
//     0   k                                         0   k
//   ┌───┬───┬───┐                                 ┌───┬───┬───┐
//   │   │   │   │                                 │ X │ k │acc│  column k of V goes to all ranks.
//   ├───┼───┼───┤   column k of W goes to         ├───┼───┼───┤  Its products with row k of W add
//   │L_k│ k │   │   all ranks. Its products       │W_k│ k │U_k│  to X = V W on the left. Products
//   ├───┼───┼───┤   with row k of L are           ├───┼───┼───┤  with row k of U are subtracted
//   │acc│ W │ W │   subtracted from acc           │ W │ W │ U │  from acc, the later columns of V,
//   └───┴───┴───┘                                 └───┴───┴───┘  on the right
//
// Row k of L, W or U is needed for the last time in step k. Then it is cleared and becomes a row of
// acc or X. So each step is one large product, of a column that all ranks have with a row of their
// own columns, and needs no memory except for two columns in transfer and a copy of the row. The
// next column is finished and sent during the products of this one. Finally columns are
// interchanged between ranks: each rank receives some rows of all columns, interchanges their
// elements, and sends the rows back.
//
// 4/3 n^3 flops, as LAPACK's getri. Every rank receives n^2 elements, and sends and receives 2 n^2
// / P for the interchanges. The residual X L U - I of X = V W is bounded by |U^-1| |L^-1| |L| |U| n
// eps, as for LAPACK's getri; L U X - I may be larger by the condition number (N. J. Higham,
// "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 14.3, method D; J. J. Du Croz
// and N. J. Higham, "Stability of methods for matrix inversion", IMA J. Numer. Anal. 12, 1992).
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GETRI_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GETRI_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// Returns whether a single rank inverts the factors of a matrix of this order as a whole, out of
// place.
inline bool InvertsWhole(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  return tiles.ranks() == 1 && rows <= tuning.lu.whole_inverse_order;
}

// Returns the number of elements of workspace: a matrix; or two tile columns, a row of this rank's
// tiles and a tile.
inline int64_t GetriWorkspace(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  if (InvertsWhole(tiles, rows, tuning)) return rows * rows;
  return (2 * rows + (tiles.slots() + 1) * tiles.width()) * tiles.width();
}

// Overwrites L and U (block-cyclic, square) with V W. Products are computed in `precision`.
// Enqueued on all streams, kMain last.
template <typename T>
Status Getri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace);

// Overwrites a square matrix X, whose columns are in contiguous blocks, with X P: interchanges
// columns from the last pivot to the first. `staging` has `size` elements, at least a column of the
// matrix. Enqueued on kMain.
template <typename T>
Status PermuteColumns(const RankContext& context, const Blocks<T>& blocks, const int32_t* pivots,
                      T* staging, int64_t size);

// One region for the workspace of Getrf and of Getri, an overflow tile and pivots; on the root also
// the matrix if it is gathered.
template <typename T>
struct GetriSpace : RoutineSpace<T> {
  GetriSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
  Tiles factored;  // the tiles of the factorization (TilesToFactor)
  Piece<int32_t> pivots = {};
};

// Replaces the factors in the frame's tiles by the rows of the inverse, in the frame's blocks. The
// frame's panels must have GetriWorkspace elements.
template <typename T>
Status InvertFactors(Frame<T>& frame, Precision precision, const int32_t* pivots);

// A routine (routines.h). Overwrites the block with the rows of the inverse of A. *status is
// LAPACK's info of getrf, or kNotFinite. If U(k, k) is exactly zero, the inverse has infinity and
// NaN; if the status is negative, all of it is NaN. Workspace: GetriSpace.
template <typename T>
Status GetriRoutine(const RankContext& context, const Operand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GETRI_H_
