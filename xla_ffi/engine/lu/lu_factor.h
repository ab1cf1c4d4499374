// The LU factors as a value: what makes them, and what is done with them, as a rank runs it.
//
// A is m x n and M = A^T, n x m; P M = L U. The factors are this rank's tiles of L and U in the
// block-cyclic layout, as columns in the place of the rows of A; one overflow tile, where the
// layout has one; and the pivots (lu_kernels.h), the same on every rank. The tile width is part of
// them: `Operand::tile` is the width of LuFactorSpace's tiles.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_LU_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_LU_LU_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// The panels of Getrf. The overflow tile is the caller's.
template <typename T>
struct LuFactorSpace : RoutineSpace<T> {
  LuFactorSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
  // The tiles of the factorization: on one rank, where all tiles lie the same, it may be a single
  // one.
  Tiles factored;
};

// This rank's columns of x, and x once more.
template <typename T>
struct LuApplySpace : RoutineSpace<T> {
  LuApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Piece<T> local;  // right-hand sides of this rank's tiles
  Piece<T> sums;   // what it has to add to those of others
};

// Two tile columns.
template <typename T>
struct LuSolveRowsSpace : RoutineSpace<T> {
  LuSolveRowsSpace(const Sizes& sizes, const Ranks& ranks);
};

// What Getri needs, and an overflow tile.
template <typename T>
struct LuInvertSpace : RoutineSpace<T> {
  LuInvertSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// A tile column; the overflow tile on the way to rows, where the caller's stays as it is.
template <typename T>
struct MoveLuSpace : RoutineSpace<T> {
  MoveLuSpace(const Sizes& sizes, bool to_rows, const Ranks& ranks);
};

// The factors, read alone. Operand's a and overflow are the caller's memory, which stays as it is
// where nothing else is said.

// The block, and the overflow tile, become the factors of A; pivots has min(m, n) numbers. *log_abs
// and *sign, of A's determinant, mean something where A is square. *status is LAPACK's info of
// getrf, or kNotFinite; where it is negative all is NaN but the pivots. Workspace: LuFactorSpace.
template <typename T>
Status LuFactorRoutine(const RankContext& context, const Operand<T>& operand, int32_t* pivots,
                       Real<T>* log_abs, T* sign);

// x (n x nrhs, row-major, on every rank) becomes the solution of A x = b, or with op of A^T x = b
// or A^H x = b; copied from `source` first, if that is given. A is square. Workspace: LuApplySpace.
template <typename T>
Status LuApplyRoutine(const RankContext& context, const Operand<T>& factor, const int32_t* pivots,
                      Op op, int64_t nrhs, T* x, const T* source = nullptr);

// x (rows x n, row-major: this rank's rows of a matrix) becomes x op(A)^-1; copied from `source`
// first. A is square. Workspace: LuSolveRowsSpace.
template <typename T>
Status LuSolveRowsRoutine(const RankContext& context, const Operand<T>& factor,
                          const int32_t* pivots, Op op, int64_t rows, T* x,
                          const T* source = nullptr);

// The factors, which are used up, become the rows of the inverse of A in their own place; the
// overflow tile stays. A is square. Workspace: LuInvertSpace.
template <typename T>
Status LuInvertRoutine(const RankContext& context, const Operand<T>& factor, const int32_t* pivots);

// diagonal (min(m, n), on every rank) := the diagonal of U.
template <typename T>
Status LuDiagonalRoutine(const RankContext& context, const Operand<T>& factor, T* diagonal);

// The factors to rows in their place, of which row j is column j of L and U as LAPACK's getrf
// leaves them; or, without `to_rows`, such rows to the factors. The overflow tile stays on the way
// to rows. Workspace: MoveLuSpace.
template <typename T>
Status MoveLuRoutine(const RankContext& context, const Operand<T>& factor, bool to_rows);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_LU_FACTOR_H_
