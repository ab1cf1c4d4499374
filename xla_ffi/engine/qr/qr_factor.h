// The QR factorization as a value: what makes it, and what is done with it, as a rank runs it.
//
// A is m x n and M = A^T, n x m; M = Q R. The factor is this rank's tiles of Householder vectors
// and R in the block-cyclic layout, as columns in the place of the rows of A; one overflow tile,
// where the layout has one; and T of its panels, kPanelColumns x k with k = min(m, n), the same on
// every rank (reflectors.h). The tile width is part of it.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_QR_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_QR_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/right_hand_sides.h"
#include "xla_ffi/engine/qr/geqrf.h"
#include "xla_ffi/engine/qr/ormqr.h"

namespace jaxmg {

// Of which system the solution is asked for, by the operation with b: of M x = b by least squares,
// or the shortest one of M^T x = b or M^H x = b, which M's rows outnumber.
using System = Op;

// The tiles of a matrix that is factored: as Tuning::qr_tile says if the caller names no width.
Tiles QrTiles(const Sizes& sizes, const Ranks& ranks);

// The precision of QR's products, for one that was asked for: as LU's.
template <typename T>
Precision QrPrecision(const Sizes& sizes, const Tuning& tuning);

// What Geqrf needs. The overflow tile and T are the caller's.
template <typename T>
struct QrFactorSpace : RoutineSpace<T> {
  QrFactorSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// What MultiplyRight needs.
template <typename T>
struct QrApplySpace : RoutineSpace<T> {
  QrApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);
};

// What Ormqr needs.
template <typename T>
struct QrApplyRowsSpace : RoutineSpace<T> {
  QrApplyRowsSpace(const Sizes& sizes, const Ranks& ranks);
};

// What MultiplyRight needs; right-hand sides of this rank's tiles, and what it has to add to those
// of others.
template <typename T>
struct QrSolveSpace : RoutineSpace<T> {
  QrSolveSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Piece<T> local, sums;
};

// What Orgqr needs, and an overflow tile.
template <typename T>
struct QrFormSpace : RoutineSpace<T> {
  QrFormSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// *info becomes kNotFinite where this rank's rows of A have NaN or infinity. Enqueued on kMain.
template <typename T>
Status CheckRows(const RankContext& context, const Operand<T>& operand, int32_t* info);

// The solution of a system with R that has been multiplied by Q^H, or has still to be by Q, in row
// form: X := (R^-1 B)^T of the first m of n rows of B, or X := (R^-T B)^T of those, and zeros in
// the others. `space` has `local` and `sums`. Enqueued on all streams, kMain last.
template <typename T>
Status SolveWithR(const RankContext& context, const Matrix<T>& matrix, const RightHandSides<T>& x,
                  bool transposed, T* sums);

// X in row form becomes that of the solution of `system`. `multiplied`: it has been by Q^H.
template <typename T>
Status SolveWithFactor(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                       System system, bool multiplied, const RightHandSides<T>& x, T* sums,
                       T* workspace);

// diagonal (min(m, n), on every rank) := the diagonal of R. Enqueued on kMain.
template <typename T>
Status TakeDiagonal(const RankContext& context, const Matrix<T>& matrix, T* diagonal);

// The block, and the overflow tile, become the factor of A; factors: T, kPanelColumns x k; tau: k.
// *status is 0, or kNotFinite where A is not finite: all is NaN then. Workspace: QrFactorSpace.
template <typename T>
Status QrFactorRoutine(const RankContext& context, const Operand<T>& operand, T* factors, T* tau);

// The factor, read alone. Operand's a and overflow are the caller's memory, which stays as it is
// where nothing else is said.

// x (n x nrhs, row-major, on every rank) becomes op(Q) x; copied from `source` first, if that is
// given. Workspace: QrApplySpace.
template <typename T>
Status QrApplyRoutine(const RankContext& context, const Operand<T>& factor, const T* factors, Op op,
                      int64_t nrhs, T* x, const T* source = nullptr);

// x (rows x n, row-major: this rank's rows of a matrix) becomes x op(Q)^T; copied from `source`
// first. Workspace: QrApplyRowsSpace.
template <typename T>
Status QrApplyRowsRoutine(const RankContext& context, const Operand<T>& factor, const T* factors,
                          Op op, int64_t rows, T* x, const T* source = nullptr);

// x (n x nrhs, row-major, on every rank), with n >= m, becomes as in LAPACK's gels: for kNone its
// first m rows the x that minimizes |M x - b|, the others Q^H b, whose norm is the residual's; for
// kTrans (kConjTrans) the shortest x with M^T x = b (M^H x = b), b in the first m rows. Copied from
// `source` first. Workspace: QrSolveSpace.
template <typename T>
Status QrSolveRoutine(const RankContext& context, const Operand<T>& factor, const T* factors,
                      System system, int64_t nrhs, T* x, const T* source = nullptr);

// The factor, which is used up, becomes rows: row j < min(m, n) is column j of Q, further rows are
// zero. The overflow tile stays. Workspace: QrFormSpace.
template <typename T>
Status QrFormRoutine(const RankContext& context, const Operand<T>& factor, const T* factors);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_QR_FACTOR_H_
