// ormqr: products with the Q of a factorization (geqrf.h), and Q itself.
//
//   few right-hand sides, replicated     pass from the owner of a tile column to the owner of the
//                                        next, which multiplies them by its reflectors; V stays
//   different columns on each rank       V and T of each tile column go to all (DoubleBuffer), and
//                                        every rank multiplies its own columns
//   Q itself                             likewise, with tile columns of the identity; each replaces
//                                        a tile column of the factor after its reflectors were sent
//
// Q = Q_0 Q_1 ...: Q C takes the tile columns from the last to the first, Q^H C from the first on.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_ORMQR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_ORMQR_H_

#include <cstdint>

#include "xla_ffi/engine/qr/geqrf.h"

namespace jaxmg {

// The factor on the right of right-hand sides in row form: X Q is (Q^T B)^T, X Q^H is (conj(Q)
// B)^T.
enum class RightFactor { kQ, kAdjoint };

// Returns the number of elements of MultiplyRight's workspace for `nrhs` right-hand sides: a tile
// column's V, and a product with a panel.
int64_t MultiplyRightWorkspace(const Tiles& tiles, int64_t n, int64_t nrhs);

// X := X Q or X Q^H, where X is nrhs x n and equal on all ranks. With `conjugates`, X :=
// conj(conj(X) Q) or conj(conj(X) Q^H), that is (Q^H B)^T or (Q B)^T. 4 nrhs n k flops, one rank at
// a time. Enqueued on kMain.
template <typename T>
Status MultiplyRight(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                     RightFactor factor, bool conjugates, int64_t nrhs, T* x, T* workspace);

// Returns the number of elements of workspace of Ormqr and Orgqr: two block reflectors, and space
// for products with them.
int64_t OrmqrWorkspace(const Tiles& tiles, int64_t n);

// z := op(Q) z, where each rank has its own `columns` columns, contiguous with leading dimension n.
// `columns` may differ between ranks. Enqueued on kMain and kCopy, kMain last.
template <typename T>
Status Ormqr(const RankContext& context, const Matrix<T>& matrix, const T* factors, Op op,
             int64_t columns, T* z, T* workspace);

// Overwrites the factor with the first min(n, columns) columns of Q, and further tile columns with
// zeros (LAPACK's orgqr). Products are computed in `precision`. For n rows and m <= n columns, 2 n
// m^2 - 2 m^3 / 3 flops. Enqueued on kMain and kCopy, kMain last.
template <typename T>
Status Orgqr(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const T* factors, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_ORMQR_H_
