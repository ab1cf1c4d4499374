// The Cholesky factor as a value: what makes one, and what is done with one, as a rank runs it.
//
// With A = L' L'^H, L' = conj(L) and L the factor of M = conj(A) (routines.h), a factor is this
// rank's tiles of L in the block-cyclic layout, as columns in the place of the rows of A; one
// overflow tile, where the layout has one; and above the diagonals what InvertDiagonals has put
// there. Its tile width is part of it: `Operand::tile` is the width of PotrfSpace's tiles.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_FACTOR_H_

#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// Diagonal blocks that are inverted to be solved with: their order, and workspace for that.
template <typename T>
struct InversesSpace {
  int64_t order = 0;
  Piece<T> piece = {};
};

// The panels of Potrf. The overflow tile is the caller's.
template <typename T>
struct PotrfSpace : RoutineSpace<T> {
  PotrfSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
  // The tiles of the factorization: on one rank, where all tiles lie the same, it may be a single
  // one.
  Tiles factored;
  InversesSpace<T> inverses;
};

// This rank's columns of x, and x once more.
template <typename T>
struct ApplySpace : RoutineSpace<T> {
  ApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Piece<T> local;  // right-hand sides of this rank's tiles
  Piece<T> sums;   // what it has to add to those of others
  InversesSpace<T> inverses;
};

// Two tile columns, and this rank's block of right-hand sides.
template <typename T>
struct SolveRowsSpace : RoutineSpace<T> {
  SolveRowsSpace(const Sizes& sizes, const Ranks& ranks);

  Piece<T> rows;
};

// What Potri needs, and an overflow tile.
template <typename T>
struct InvertSpace : RoutineSpace<T> {
  InvertSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// A tile column; the overflow tile on the way back, where the caller's stays as it is.
template <typename T>
struct MoveFactorSpace : RoutineSpace<T> {
  MoveFactorSpace(const Sizes& sizes, bool inverse, const Ranks& ranks);

  InversesSpace<T> inverses;
};

// A factor, read alone. Operand's a and overflow are the caller's memory, which stays as it is.
// What the routines below return, and NaN where *status is not 0, is as in routines.h.

// The block, and the overflow tile, become the factor of A; NaN where A is not positive definite.
// Workspace: PotrfSpace.
template <typename T>
Status PotrfRoutine(const RankContext& context, const Operand<T>& operand, Real<T>* log_det);

// What is done to right-hand sides: solved for A, for L', for L'^H; multiplied by L', by L'^H.
enum class Apply : int64_t { kSolve, kSolveL, kSolveLH, kMultiplyL, kMultiplyLH };

// x (n x nrhs, row-major, on every rank) becomes what `apply` says of it; copied from `source`
// first, if that is given. Workspace: ApplySpace.
template <typename T>
Status ApplyRoutine(const RankContext& context, const Operand<T>& factor, Apply apply, int64_t nrhs,
                    T* x, const T* source = nullptr);

// x (block x n, row-major: this rank's rows of a matrix) becomes x L'^-H, or x L'^-1 with
// `inverse`; copied from `source` first. Workspace: SolveRowsSpace.
template <typename T>
Status SolveRowsRoutine(const RankContext& context, const Operand<T>& factor, bool inverse, T* x,
                        const T* source = nullptr);

// The factor, which is used up, becomes the rows of the inverse of A in its own place; the overflow
// tile stays. Workspace: InvertSpace.
template <typename T>
Status InvertRoutine(const RankContext& context, const Operand<T>& factor);

// diagonal (n, on every rank) := the diagonal of L.
template <typename T>
Status DiagonalRoutine(const RankContext& context, const Operand<T>& factor, Real<T>* diagonal);

// The rows of U = L'^H, of which the upper triangle is read and written, to a factor in their
// place, and back; `inverse` is the way back, which leaves the overflow tile as it is. Workspace:
// MoveFactorSpace.
template <typename T>
Status MoveFactorRoutine(const RankContext& context, const Operand<T>& factor, bool inverse);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_FACTOR_H_
