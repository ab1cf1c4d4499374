// The first stage of a Hermitian eigensolver: M = Q1 B Q1^H, where B is a band matrix, and products
// with Q1.
//
//   tile column k:   ┌──┐          P = M[below the diagonal tile] = Q R, Q = I - V T V^H
//                    │ D│ R ...
//                    ├──┤          then M := Q^H M Q for the columns right of the tile column:
//                    │ R│            X = M V T,  W = X - V (T^H V^H X) / 2
//                    │  │            M -= V W^H + W V^H
//                    │ V│
//                    └──┘          V overwrites P on the owner
//
// Each rank has whole columns of M, both triangles. So Y = M V is one product with its columns, and
// ranks exchange rows of Y instead of summing over ranks. That takes 2 n^3 operations. A single
// rank works on the lower triangle only, in blocks of Tuning::Eigen::triangle_columns columns: 4/3
// n^3 operations, in products half as large.
//
// C. H. Bischof, B. Lang, X. Sun, "A framework for symmetric band reduction", ACM TOMS 26, 2000.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_BAND_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_BAND_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Returns the number of rows of the band's storage: each column from its diagonal on, with
// tiles.width() subdiagonals and space for the bulges of the reduction to a tridiagonal matrix.
inline int64_t BandRows(const Tiles& tiles) { return 2 * tiles.width() + 1; }

// Returns the number of elements of the factors T of all panels. Every rank needs T, in addition to
// V, for products with Q1.
inline int64_t BandFactors(const Tiles& tiles) { return tiles.width() * tiles.columns(); }

// Return the number of elements of workspace.
int64_t ReduceToBandWorkspace(const Tiles& tiles);
int64_t ApplyBandWorkspace(const Tiles& tiles, int64_t columns);

// Reads all of M, block-cyclic, and overwrites its tile columns with V. Writes BandFactors elements
// to `factors` and B to the root's `band` (BandRows x n; null on other ranks). Later work on kMain
// waits for it.
template <typename T>
Status ReduceToBand(const RankContext& context, const Matrix<T>& matrix, T* factors, T* band,
                    T* workspace);

// z := z Q1^H, with z `columns` x n (`columns` may differ between ranks): the conjugate transpose
// of a product with Q1. Enqueued on kMain.
template <typename T>
Status ApplyBand(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                 int64_t columns, T* z, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_BAND_H_
