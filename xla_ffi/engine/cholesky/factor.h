// The Cholesky factor as a value: the rank programs that compute it and that use it.
//
// A = L' L'^H with L' = conj(L), where L is the factor of M = conj(A) (routines.h). The factor
// consists of this rank's tiles of L in the block-cyclic layout, stored as columns in place of the
// rows of A; one overflow tile, if the layout has one (Tiles::has_overflow); and above the
// diagonals the inverses from InvertDiagonals. The tile width is part of the factor:
// `Operand::tile` must be the width of PotrfSpace's tiles.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_FACTOR_H_

#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// The order of the diagonal blocks that are inverted (substitution.h), and the workspace for this.
template <typename T>
struct InversesSpace {
  int64_t order = 0;
  Piece<T> piece = {};
};

// The workspace of Potrf. The overflow tile belongs to the caller.
template <typename T>
struct PotrfSpace : RoutineSpace<T> {
  PotrfSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
  // The tiles of the factorization. On one rank, where the memory layout doesn't depend on the
  // tiles, it may be a single tile.
  Tiles factored;
  InversesSpace<T> inverses;
};

// This rank's columns of x, and another x.
template <typename T>
struct ApplySpace : RoutineSpace<T> {
  ApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Piece<T> local;  // the right-hand sides of this rank's tiles
  Piece<T> sums;   // this rank's contributions to the right-hand sides of other ranks' tiles
  InversesSpace<T> inverses;
};

// Two tile columns, and this rank's block of right-hand sides.
template <typename T>
struct SolveRowsSpace : RoutineSpace<T> {
  SolveRowsSpace(const Sizes& sizes, const Ranks& ranks);

  Piece<T> rows;
};

// The workspace of Potri, and an overflow tile.
template <typename T>
struct InvertSpace : RoutineSpace<T> {
  InvertSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// A tile column; with `inverse` also an overflow tile, because the caller's is unchanged.
template <typename T>
struct MoveFactorSpace : RoutineSpace<T> {
  MoveFactorSpace(const Sizes& sizes, bool inverse, const Ranks& ranks);

  InversesSpace<T> inverses;
};

// The following functions are routines (routines.h); their results are NaN if *status is not 0. The
// operand's `a` and `overflow` are the caller's memory. Routines that use a factor leave it
// unchanged unless stated.

// Overwrites the block and the overflow tile with the factor of A; with NaN if A is not positive
// definite. Workspace: PotrfSpace.
template <typename T>
Status PotrfRoutine(const RankContext& context, const Operand<T>& operand, Real<T>* log_det);

// The operation on right-hand sides: solve with A, L' or L'^H; multiply by L' or L'^H.
enum class Apply : int64_t { kSolve, kSolveL, kSolveLH, kMultiplyL, kMultiplyLH };

// Applies an operation to x (n x nrhs, row-major, on every rank). First copies `source` to x,
// unless it is null. Workspace: ApplySpace.
template <typename T>
Status ApplyRoutine(const RankContext& context, const Operand<T>& factor, Apply apply, int64_t nrhs,
                    T* x, const T* source = nullptr);

// x (block x n, row-major: this rank's rows of a matrix) becomes x L'^-H or, with `inverse`, x
// L'^-1. First copies `source` to x, unless it is null. Workspace: SolveRowsSpace.
template <typename T>
Status SolveRowsRoutine(const RankContext& context, const Operand<T>& factor, bool inverse, T* x,
                        const T* source = nullptr);

// Overwrites the factor with the rows of the inverse of A. The overflow tile is unchanged.
// Workspace: InvertSpace.
template <typename T>
Status InvertRoutine(const RankContext& context, const Operand<T>& factor);

// Copies the diagonal of L to `diagonal` (n) on every rank.
template <typename T>
Status DiagonalRoutine(const RankContext& context, const Operand<T>& factor, Real<T>* diagonal);

// Overwrites the rows of U = L'^H with the factor; with `inverse`, the factor with these rows.
// Reads and writes only the upper triangle of U. With `inverse` the overflow tile is unchanged.
// Workspace: MoveFactorSpace.
template <typename T>
Status MoveFactorRoutine(const RankContext& context, const Operand<T>& factor, bool inverse);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_FACTOR_H_
