// The first stage of a Hermitian eigensolver: M = Q1 B Q1^H, B a band matrix, and products with Q1.
//
//   tile column k:   ┌──┐          P = M[below the diagonal tile] = Q R, Q = I - V T V^H
//                    │ D│ R ...
//                    ├──┤          on the ranks' columns behind it, M := Q^H M Q:
//                    │ R│            X = M V T,  W = X - V (T^H V^H X) / 2
//                    │  │            M -= V W^H + W V^H
//                    │ V│
//                    └──┘          the owner keeps V where P was
//
// Each rank has whole columns of M, both triangles, so that Y = M V is one product of its columns
// and there is nothing to be summed over ranks: rows of Y are exchanged. That costs 2 n^3
// operations. A rank that is alone works on the lower triangle, in blocks of
// Tuning::triangle_columns columns: 4/3 n^3 operations, in products half as large.
//
// C. H. Bischof, B. Lang, X. Sun, "A framework for symmetric band reduction", ACM TOMS 26, 2000.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_BAND_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_BAND_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// A band of tiles.width() subdiagonals, column after column from the diagonal on, with room for
// those that come and go while it is made tridiagonal.
inline int64_t BandRows(const Tiles& tiles) { return 2 * tiles.width() + 1; }

// What products with Q1 need beside V: the factors T of all panels, on every rank.
inline int64_t BandFactors(const Tiles& tiles) { return tiles.width() * tiles.columns(); }

// Elements of workspace.
int64_t ReduceToBandWorkspace(const Tiles& tiles);
int64_t ApplyBandWorkspace(const Tiles& tiles, int64_t columns);

// Needs all of M, block-cyclic. Its tile columns keep V; `factors` holds BandFactors elements. The
// root's `band` (BandRows x n; null elsewhere) becomes B. kMain goes on after it.
template <typename T>
Status ReduceToBand(const RankContext& context, const Matrix<T>& matrix, T* factors, T* band,
                    T* workspace);

// z := z Q1^H, `columns` (which may differ from rank to rank) x n: the conjugate transpose of a
// product with Q1. Enqueued on kMain.
template <typename T>
Status ApplyBand(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                 int64_t columns, T* z, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_BAND_H_
