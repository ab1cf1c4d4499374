// The first stage of a singular value decomposition: A = U1 B V1^H, where B is upper triangular and
// has only the diagonals 0 to b. b is the width of a tile.
//
//   tile column k:   ┌──┬──────┐    A[from the diagonal tile down] = Q R
//                    │ R│ L    │    [row of tiles right of the diagonal tile]^H = P L^H
//                    ├──┼──────┤
//                    │  │      │    A := Q^H A P for the columns right of the tile column:
//                    │ V│  A   │      W = A^H V T,   Y = (A - V W^H) X T'
//                    │  │      │      A -= V W^H + Y X^H
//                    └──┴──────┘    Q = I - V T V^H,  P = I - X T' X^H
//
// So each element is read three times and written once per tile column. The reduction takes 8/3 n^3
// operations, shared by the ranks, which hold whole columns of A. Each rank computes its rows of W
// from its own columns, the row of tiles is sent to the owner of the tile column, and Y is a sum
// over ranks.
//
// [0 B^H; B 0] has the singular values as eigenvalues, each with both signs. If its rows and
// columns are reordered so that tiles of B^H and of B alternate, it is a band of b subdiagonals,
// because R and L are triangles (B. Grosser, B. Lang, "Efficient parallel reduction to bidiagonal
// form", Parallel Comput. 25, 1999; G. H. Golub, W. Kahan, SIAM J. Numer. Anal. 2, 1965).
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_BIDIAGONAL_BAND_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_BIDIAGONAL_BAND_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Returns the number of elements of workspace.
int64_t ReduceToBidiagonalBandWorkspace(const Tiles& tiles);

// Reads A (n x n, block-cyclic, in tiles of equal width), and overwrites it. Writes the Hermitian
// band of order 2 n to the root's `band` (BandRows x 2 n, band.h; null on other ranks). Later work
// on kMain waits until the band is complete.
template <typename T>
Status ReduceToBidiagonalBand(const RankContext& context, const Matrix<T>& matrix, T* band,
                              T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_BIDIAGONAL_BAND_H_
