// The LU factorization as a value: the rank programs that compute it and that use it.
//
// A is m x n and M = A^T, n x m; P M = L U. The factor consists of this rank's tiles of L and U in
// the block-cyclic layout, stored as columns in place of the rows of A; one overflow tile, if the
// layout has one (Tiles::has_overflow); and the pivots (lu_kernels.h), equal on all ranks. The tile
// width is part of the factor: `Operand::tile` must be the width of LuFactorSpace's tiles.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_LU_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_LU_LU_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// The workspace of Getrf. The overflow tile belongs to the caller.
template <typename T>
struct LuFactorSpace : RoutineSpace<T> {
  LuFactorSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
  // The tiles of the factorization. On one rank, where the memory layout doesn't depend on the
  // tiles, it may be a single tile.
  Tiles factored;
};

// This rank's columns of x, and another x.
template <typename T>
struct LuApplySpace : RoutineSpace<T> {
  LuApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Piece<T> local;  // the right-hand sides of this rank's tiles
  Piece<T> sums;   // this rank's contributions to the right-hand sides of other ranks' tiles
};

// Two tile columns.
template <typename T>
struct LuSolveRowsSpace : RoutineSpace<T> {
  LuSolveRowsSpace(const Sizes& sizes, const Ranks& ranks);
};

// The workspace of Getri, and an overflow tile.
template <typename T>
struct LuInvertSpace : RoutineSpace<T> {
  LuInvertSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// A tile column; with `to_rows` also an overflow tile, because the caller's is unchanged.
template <typename T>
struct MoveLuSpace : RoutineSpace<T> {
  MoveLuSpace(const Sizes& sizes, bool to_rows, const Ranks& ranks);
};

// The operand's `a` and `overflow` of the following routines are the caller's memory. Those that
// use a factor leave it unchanged unless stated.

// Overwrites the block and the overflow tile with the factor of A, and writes min(m, n) pivots.
// *log_abs and *sign describe A's determinant, and are meaningful only if A is square. *status is
// LAPACK's info of getrf, or kNotFinite; if it is negative, all results except the pivots are NaN.
// Workspace: LuFactorSpace.
template <typename T>
Status LuFactorRoutine(const RankContext& context, const Operand<T>& operand, int32_t* pivots,
                       Real<T>* log_abs, T* sign);

// x (n x nrhs, row-major, on every rank) becomes the solution of op(A) x = b for a square A. First
// copies `source` to x, unless it is null. Workspace: LuApplySpace.
template <typename T>
Status LuApplyRoutine(const RankContext& context, const Operand<T>& factor, const int32_t* pivots,
                      Op op, int64_t nrhs, T* x, const T* source = nullptr);

// x (rows x n, row-major: this rank's rows of a matrix) becomes x op(A)^-1 for a square A. First
// copies `source` to x, unless it is null. Workspace: LuSolveRowsSpace.
template <typename T>
Status LuSolveRowsRoutine(const RankContext& context, const Operand<T>& factor,
                          const int32_t* pivots, Op op, int64_t rows, T* x,
                          const T* source = nullptr);

// Overwrites the factor of a square A with the rows of the inverse of A. The overflow tile is
// unchanged. Workspace: LuInvertSpace.
template <typename T>
Status LuInvertRoutine(const RankContext& context, const Operand<T>& factor, const int32_t* pivots);

// Copies the diagonal of U to `diagonal` (min(m, n)) on every rank.
template <typename T>
Status LuDiagonalRoutine(const RankContext& context, const Operand<T>& factor, T* diagonal);

// With `to_rows`, overwrites the factor with rows: row j is column j of L and U, packed as by
// LAPACK's getrf. The overflow tile is unchanged. Without `to_rows`, overwrites such rows with the
// factor. Workspace: MoveLuSpace.
template <typename T>
Status MoveLuRoutine(const RankContext& context, const Operand<T>& factor, bool to_rows);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_LU_FACTOR_H_
