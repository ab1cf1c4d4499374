// The product of a Hermitian matrix with vectors. A keeps its rows and is unchanged.
//
// In column-major form, x is X (nrhs x n), A is M = conj(A), and Y = X M. A rank's rows of A are
// columns of M, and only the lower triangle of M is read. They contribute
//
//   Y[:, mine]  += X[:, mine] D + X[:, below] B
//   Y[:, below] += X[:, mine] B^H
//
// clang-format off
//        ┌───┐    D is halved down to diagonal tiles, which are copied and made Hermitian. Both
//   mine │ D │    products with a rectangle are computed at once, by pieces that stay in a cache if
//        ├───┤    the device's tuning has such pieces (Tuning::resident_bytes). So each element is
//  below │ B │    read once or twice, and only diagonal tiles are copied.
//        └───┘
// clang-format on
//
// The rank that owns a column of Y adds the ranks' contributions in rank order and sends the sum to
// all ranks. So every rank and every run gets the same bits. Half as much of A is read as by a
// product with the whole matrix. The first rank reads the most, nearly twice the average.
//
// The rounding of a BLAS grows with the length of its sums. With `parts` > 1, each vector is cut
// into this many parts of consecutive elements, and the products with the parts are added pairwise.
// X then has a row for each part of each vector, zero outside the part. A piece of A is multiplied
// only by the rows that are nonzero there, so no more of A is read and hardly more is multiplied.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_HEMM_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_HEMM_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

template <typename T>
struct HermitianProduct {
  int64_t n;      // order of A, without padding
  int64_t block;  // rows of A on each rank, padding included
  int64_t tile;   // the largest width of diagonal tiles; 0: choose
  const T* a;     // this rank's block: block x n, row-major; the upper triangle is read
  int64_t nrhs;
  const T* x;         // n x nrhs, row-major, the same on every rank
  T* y;               // A x, likewise
  int64_t parts = 1;  // of each vector
};

// Every rank calls it with the same sizes; all return the same Status, as in routines.h. Workspace:
// another y, this rank's rows of y, and a diagonal tile; if `parts` > 1, also x and y of every
// part.
template <typename T>
Status HemmRoutine(const RankContext& context, const HermitianProduct<T>& product);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_HEMM_H_
