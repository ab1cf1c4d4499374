// The product of a Hermitian matrix with vectors, in the rows that the caller has: nothing is dealt
// out, and A stays as it is.
//
// With Y = X M in row form (x is nrhs x n when read column by column, M = conj(A)), this rank's
// columns of M, of which the lower triangle is read, give
//
//   Y[:, mine]  += X[:, mine] D + X[:, below] B
//   Y[:, below] += X[:, mine] B^H
//
// clang-format off
//        ┌───┐    D is halved until a diagonal tile is left, which is made whole beside it; every
//   mine │ D │    rectangle has its two products at once, in pieces that stay in a cache where the
//        ├───┤    device's tuning has such pieces. So each element is read once or twice, and none
//  below │ B │    is copied but those of diagonal tiles.
//        └───┘
// clang-format on
//
// What the ranks have of a column is added by the rank whose rows of A it belongs to, in the order
// of the ranks, and sent to all: the same bits on all of them, and on every run. Half as many
// multiply-adds as a product with the whole matrix would read; the first rank has the most of them,
// nearly twice its share.
//
// What a BLAS rounds as it adds up a row's products grows with how many those are. In parts, each
// product is with some of x's elements that follow each other, and the parts' products are added up
// two by two. X then has a row for each part of each vector, zero elsewhere, of which a piece of A
// is multiplied by those that aren't: no more of A is read, and hardly more multiplied.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_HEMM_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_HEMM_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

template <typename T>
struct HermitianProduct {
  int64_t n;      // order of A, without padding
  int64_t block;  // rows of A on each rank, padding included
  int64_t tile;   // width of diagonal tiles at most, 0: choose
  const T* a;     // this rank's block: block x n, row-major; the upper triangle is read
  int64_t nrhs;
  const T* x;  // n x nrhs, row-major, the same on every rank
  T* y;        // A x, likewise
  int64_t parts = 1;
};

// Every rank calls it with the same sizes; all return the same Status, as in routines.h.
// Workspace: y once more, this rank's rows of it, and a diagonal tile; x and y of every part, where
// there are several.
template <typename T>
Status HemmRoutine(const RankContext& context, const HermitianProduct<T>& product);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_HEMM_H_
