// geqrf: QR factorization M = Q R of a distributed matrix by Householder reflectors, right-looking,
// with look-ahead, on a 1 x P grid of tile columns.
//
//   for each tile column k:
//     owner of k:    factor the tile column from its diagonal on, in panels of kPanelColumns
//                    columns: Q_k = I - V T V^H; send V and T
//     owner of k+1, as soon as it has V and T:  apply Q_k^H to tile column k+1 and factor it
//     everyone:      apply Q_k^H to its other tile columns after k, and to its share of the
//                    right-hand sides
//
// A tile column is whole on one rank, so norms of columns need no communication. R and V overwrite
// M as in LAPACK's geqrf, with LAPACK's signs: H = I - tau v v^H, and R has a real diagonal. 2 n m
// (n - m / 3) flops for n rows and m <= n columns. A rank sends or receives about n m elements in
// all. (R. Schreiber and C. Van Loan, "A storage-efficient WY representation for products of
// Householder transformations", SIAM J. Sci. Stat. Comput. 10, 1989.)
#ifndef JAXMG_XLA_FFI_ENGINE_QR_GEQRF_H_
#define JAXMG_XLA_FFI_ENGINE_QR_GEQRF_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/qr/reflectors.h"

namespace jaxmg {

// The triangle of the factored matrix that is R.
inline constexpr Triangle kTriangleR = {Uplo::kUpper, Diag::kNonUnit};

// Right-hand sides in row form (right_hand_sides.h) that the factorization multiplies by Q^H: count
// x n, on every rank.
template <typename T>
struct FurtherColumns {
  int64_t count = 0;
  T* data = nullptr;
};

// Returns the number of right-hand sides that one rank multiplies by Q^H.
inline int64_t ShareOfColumns(int64_t count, int ranks) { return (count + ranks - 1) / ranks; }

// Returns the number of elements of workspace: two block reflectors, and space for products with
// them.
int64_t GeqrfWorkspace(const Tiles& tiles, int64_t n, int64_t further);

// Overwrites `matrix`, which must be block-cyclic and may have any number of rows, with V and R.
// Writes the panels' T to `factors`: kPanelColumns x k, k = min(rows, columns), equal on all ranks
// (reflectors.h), zero-padded for narrower panels. Writes LAPACK's tau, k numbers, unless it is
// null. `further` becomes Q^H B on every rank. Trailing updates are computed in `precision`.
// Enqueued on all streams, kMain last.
template <typename T>
Status Geqrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const FurtherColumns<T>& further, T* factors, T* tau, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_GEQRF_H_
