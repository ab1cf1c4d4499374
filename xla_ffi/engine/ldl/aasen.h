// aasen: the factorization P M P^* = L T L^* of a distributed Hermitian or symmetric matrix that
// need not be definite, by Aasen's method in blocks (G. Ballard et al., "Implementing a blocked
// Aasen's algorithm with a dynamic scheduler on multicore architectures", IPDPS 2013). X^* is X^H
// for a Hermitian matrix and X^T for a symmetric one.
//
// L is lower triangular with a unit diagonal; its first tile column is the identity's. T is
// Hermitian or symmetric, and consists of tiles of the diagonal and beside it.
//
//   for each tile column j:
//     everyone:     take the rows of M that are now tile j; send them to the worker, which owns
//                   tile column j + 1 of L
//     everyone:     exchange the rows of L in tile j; compute H(k, j) = T(k, :) L(j, :)^* for its
//                   own tile columns k of L, and T(j, j) from the sum of L(j, k) H(k, j)
//     everyone:     multiply its tile columns of L by H(:, j), and send the product to the worker
//     worker:       subtract the products from M(:, j), and factor the difference by LU with
//                   partial pivoting: L(:, j + 1), interchanges, and U = T(j + 1, j) L(j, j)^*
//     everyone:     interchange rows of its tile columns of L
//
// M is only read, so neither its rows nor its columns are interchanged. A panel is whole on one
// rank, so the search for a pivot needs no communication. n^3 / 3 flops, nearly all in one product
// for each tile column on each rank, and 3 n^2 b in small ones with tiles of b columns. Each rank
// receives n^2 / 2 elements of L, and sends as many of M and as many of products.
#ifndef JAXMG_XLA_FFI_ENGINE_LDL_AASEN_H_
#define JAXMG_XLA_FFI_ENGINE_LDL_AASEN_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/ldl/block_band.h"

namespace jaxmg {

// Returns the tiles of L: of `tile` columns each but the last one. Every rank has the same number
// of slots, and no tile is an overflow tile.
Tiles LdlTiles(int64_t n, int ranks, int64_t tile);

// This rank's columns of M: at most `block`, contiguous, all n rows of each.
template <typename T>
struct Columns {
  const T* data;
  int64_t block;
};

// The workspace of Aasen, in elements.
struct AasenWorkspace {
  explicit AasenWorkspace(const Tiles& tiles);

  int64_t rows;      // rows of M or of L in a tile, of all columns
  int64_t column;    // a tile column of M, or a rank's product
  int64_t products;  // H(k, j) of a rank's tile columns
  int64_t sums;      // the ranks' terms of T(j, j), and other tiles
  int64_t elements() const { return 3 * rows + column + products + sums; }
};

// Overwrites `matrix`, whose tiles must be LdlTiles, with L, with ones on the diagonal and zeros
// above it, and `band` with T, equal on all ranks. Updates are computed in `precision`. Writes n
// pivots on every rank: row i was interchanged with row pivots[i]; those of the first tile stay.
// `order` must hold 0, 1, ..., n - 1 and becomes the order of M's rows. If M has NaN or infinity, T
// has NaN or infinity. `lu` factors T beside what follows. Enqueued on kMain.
template <typename T>
Status Aasen(const RankContext& context, Precision precision, bool hermitian,
             const Columns<T>& columns, const Matrix<T>& matrix, const BlockBand<T>& band,
             const BandLu<T>& lu, int32_t* pivots, int32_t* order, int32_t* info, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LDL_AASEN_H_
