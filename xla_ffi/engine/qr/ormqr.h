// ormqr: products with the Q of a factorization (geqrf.h), and Q itself.
//
//   few right-hand sides, replicated     from the owner of a tile column to the owner of the next,
//                                        who multiplies them by its reflectors; V stays
//   columns that each rank has           V and T of each tile column go to all (DoubleBuffer), and
//                                        every rank multiplies its own columns
//   Q itself                             the same, on tile columns of the identity that replace
//                                        those of the factor once their reflectors are on their way
//
// Q = Q_0 Q_1 ...: Q C takes the tile columns from the last to the first, Q^H C from the first on.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_ORMQR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_ORMQR_H_

#include <cstdint>

#include "xla_ffi/engine/qr/geqrf.h"

namespace jaxmg {

// What multiplies right-hand sides in row form from the right: X Q is (Q^T B)^T, X Q^H is
// (conj(Q) B)^T.
enum class RightFactor { kQ, kAdjoint };

// Elements of workspace for `nrhs` right-hand sides: a tile column's V, and a product with a panel.
int64_t MultiplyRightWorkspace(const Tiles& tiles, int64_t n, int64_t nrhs);

// X := X Q or X Q^H, X nrhs x n and the same on every rank. With `conjugates` X := conj(conj(X) Q)
// and so on, that is (Q^H B)^T and (Q B)^T. 4 nrhs n k multiplications and additions, one rank at a
// time. Enqueued on kMain.
template <typename T>
Status MultiplyRight(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                     RightFactor factor, bool conjugates, int64_t nrhs, T* x, T* workspace);

// Elements of workspace of the two below: two block reflectors, and what products with them take.
int64_t OrmqrWorkspace(const Tiles& tiles, int64_t n);

// z := op(Q) z for `columns` columns of which each rank has its own, side by side with leading
// dimension n; `columns` may differ from rank to rank. Enqueued on kMain and kCopy, kMain last.
template <typename T>
Status Ormqr(const RankContext& context, const Matrix<T>& matrix, const T* factors, Op op,
             int64_t columns, T* z, T* workspace);

// Replaces the factor by the first min(n, columns) columns of Q, and further tile columns by zeros
// (LAPACK's orgqr). Products in `precision`. For n rows and m <= n columns 2 n m^2 - 2 m^3 / 3
// multiplications and additions. Enqueued on kMain and kCopy, kMain last.
template <typename T>
Status Orgqr(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const T* factors, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_ORMQR_H_
