// The QR factorization as a value: the rank programs that compute it and that use it.
//
// A is m x n and M = A^T, n x m; M = Q R. The factor consists of this rank's tiles of Householder
// vectors and R in the block-cyclic layout, stored as columns in place of the rows of A; one
// overflow tile, if the layout has one (Tiles::has_overflow); and the T of its panels,
// kPanelColumns x k with k = min(m, n), equal on all ranks (reflectors.h). The tile width is part
// of the factor: routines that use it must be called with the same width.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_QR_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_QR_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/right_hand_sides.h"
#include "xla_ffi/engine/qr/geqrf.h"
#include "xla_ffi/engine/qr/ormqr.h"

namespace jaxmg {

// The system to solve, as the operation in M's role: kNone solves M x = b by least squares; kTrans
// and kConjTrans compute the shortest solution of M^T x = b or M^H x = b. M has at least as many
// rows as columns.
using System = Op;

// Returns the tiles of a matrix to factor. Their width follows Tuning::Qr::tile if the caller sets
// none.
Tiles QrTiles(const Sizes& sizes, const Ranks& ranks);

// Resolves the requested precision of QR's products, as LuPrecision does.
template <typename T>
Precision QrPrecision(const Sizes& sizes, const Tuning& tuning);

// The workspace of Geqrf. The overflow tile and T belong to the caller.
template <typename T>
struct QrFactorSpace : RoutineSpace<T> {
  QrFactorSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// The workspace of MultiplyRight.
template <typename T>
struct QrApplySpace : RoutineSpace<T> {
  QrApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);
};

// The workspace of Ormqr.
template <typename T>
struct QrApplyRowsSpace : RoutineSpace<T> {
  QrApplyRowsSpace(const Sizes& sizes, const Ranks& ranks);
};

// The workspace of MultiplyRight. `local`: the right-hand sides of this rank's tiles; `sums`: this
// rank's contributions to the right-hand sides of other ranks' tiles.
template <typename T>
struct QrSolveSpace : RoutineSpace<T> {
  QrSolveSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Piece<T> local, sums;
};

// The workspace of Orgqr, and an overflow tile.
template <typename T>
struct QrFormSpace : RoutineSpace<T> {
  QrFormSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// Sets *info to kNotFinite if this rank's rows of A contain NaN or infinity. Enqueued on kMain.
template <typename T>
Status CheckRows(const RankContext& context, const Operand<T>& operand, int32_t* info);

// Solves with R, in row form, for right-hand sides B that have been multiplied by Q^H or will be
// multiplied by Q. Only the first m of the n rows of B take part. X := (R^-1 B)^T; or, if
// `transposed`, X := (R^-T B)^T, with zeros for the other rows. x.local and `sums` are workspace.
// Enqueued on all streams, kMain last.
template <typename T>
Status SolveWithR(const RankContext& context, const Matrix<T>& matrix, const RightHandSides<T>& x,
                  bool transposed, T* sums);

// X, in row form, becomes the solution of `system`. `multiplied`: whether X has already been
// multiplied by Q^H.
template <typename T>
Status SolveWithFactor(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                       System system, bool multiplied, const RightHandSides<T>& x, T* sums,
                       T* workspace);

// Copies the diagonal of R to `diagonal` (min(m, n)) on every rank. Enqueued on kMain.
template <typename T>
Status TakeDiagonal(const RankContext& context, const Matrix<T>& matrix, T* diagonal);

// Overwrites the block and the overflow tile with the factor of A. factors: T, kPanelColumns x k;
// tau: k. *status is 0, or kNotFinite if A is not finite; then all results are NaN. Workspace:
// QrFactorSpace.
template <typename T>
Status QrFactorRoutine(const RankContext& context, const Operand<T>& operand, T* factors, T* tau);

// The following routines read the factor. The operand's `a` and `overflow` are the caller's memory
// and are unchanged unless stated.

// x (n x nrhs, row-major, on every rank) becomes op(Q) x. First copies `source` to x, unless it is
// null. Workspace: QrApplySpace.
template <typename T>
Status QrApplyRoutine(const RankContext& context, const Operand<T>& factor, const T* factors, Op op,
                      int64_t nrhs, T* x, const T* source = nullptr);

// x (rows x n, row-major: this rank's rows of a matrix) becomes x op(Q)^T. First copies `source` to
// x, unless it is null. Workspace: QrApplyRowsSpace.
template <typename T>
Status QrApplyRowsRoutine(const RankContext& context, const Operand<T>& factor, const T* factors,
                          Op op, int64_t rows, T* x, const T* source = nullptr);

// x (n x nrhs, row-major, on every rank; n >= m) becomes the result of LAPACK's gels. For kNone,
// the first m rows of x become the solution that minimizes |M x - b|, and the others the remaining
// rows of Q^H b, whose norm is the norm of the residual. For kTrans (kConjTrans), b is in the first
// m rows, and x becomes the shortest solution of M^T x = b (M^H x = b). First copies `source` to x,
// unless it is null. Workspace: QrSolveSpace.
template <typename T>
Status QrSolveRoutine(const RankContext& context, const Operand<T>& factor, const T* factors,
                      System system, int64_t nrhs, T* x, const T* source = nullptr);

// Overwrites the factor with rows: row j < min(m, n) is column j of Q, further rows are zero. The
// overflow tile is unchanged. Workspace: QrFormSpace.
template <typename T>
Status QrFormRoutine(const RankContext& context, const Operand<T>& factor, const T* factors);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_QR_FACTOR_H_
