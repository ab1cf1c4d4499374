// The workspace of QR of tall matrices (tall_qr.h).
#ifndef JAXMG_XLA_FFI_ENGINE_QR_TALL_SPACE_H_
#define JAXMG_XLA_FFI_ENGINE_QR_TALL_SPACE_H_

#include <cstdint>

#include "xla_ffi/device/matrix_kernels.h"
#include "xla_ffi/engine/core/plan.h"

namespace jaxmg {

// What determines the workspace.
struct TallSizes {
  int64_t n;        // columns of A
  int64_t block;    // rows of A on each rank; those of padding are zeros
  int64_t further;  // rows of A below those of the ranks
  int64_t nrhs;     // right-hand sides
  bool with_b;      // whether there are any, 0 of them too
  bool with_q;
};

// By which ranks decide, one after the other: partial sums of squares of L, of its inverse, and of
// G - I; the diagonal of G; of each right-hand side its square and that of its correction.
enum TallSums { kOfFactor, kOfInverse, kOfIdentity, kNumTallSums };
template <typename T>
int64_t NumberElements(int64_t n, int64_t nrhs) {
  constexpr int64_t kSize = sizeof(T), kWord = sizeof(double);
  return int64_t{kNumTallSums} * kSquareSums + ((n + 2 * nrhs) * kSize + kWord - 1) / kWord;
}

template <typename T>
struct TallQrSpace {
  TallQrSpace(const TallSizes& sizes, const Ranks& ranks);

  Pieces pieces;
  // n x n: the Gram matrix and its factor; the inverse of that; what comes from other ranks.
  Piece<T> gram, inverse, received;
  Piece<Real<T>> lengths;    // of A's columns
  Piece<double> numbers;     // by which ranks decide
  Piece<int32_t> info;       // of Cholesky factorizations
  Piece<Real<T>> largest;    // entries of A's columns and of b's, of this rank and then of all
  Piece<Real<T>> factors_b;  // powers of two of the right-hand sides
  Piece<T> right, x, change, y, squares;  // right-hand sides of n rows
  Piece<T> work;                          // block x n: Q of a pass, or A^H
  Piece<T> below;                         // further x n: the same of further rows
  Piece<T> scaled_a, scaled_b, scaled_below;
  Piece<T> stack, triangle, reflectors, panels;  // of TSQR
  int64_t host_bytes;

  size_t bytes() const { return pieces.bytes(); }

 private:
  template <typename U>
  Piece<U> Reserve(int64_t elements) {
    return pieces.Reserve<U>(elements);
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_TALL_SPACE_H_
