// The workspace of QR of tall matrices (tall_qr.h).
#ifndef JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_SPACE_H_
#define JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_SPACE_H_

#include <cstdint>

#include "xla_ffi/device/products/matrix_kernels.h"
#include "xla_ffi/engine/core/plan.h"

namespace jaxmg {

// The sizes that determine the workspace.
struct TallSizes {
  int64_t n;        // columns of A
  int64_t block;    // rows of A on each rank; padding rows are zero
  int64_t further;  // rows of A below the ranks' rows
  int64_t nrhs;     // right-hand sides
  bool with_b;      // whether the call has right-hand sides, possibly 0 of them
  bool with_q;
};

// Ranks choose the next algorithm by these numbers, in this order: partial sums of squares of L, of
// its inverse, and of G - I; the diagonal of G; for each right-hand side, its square and the square
// of its correction. NumberElements returns their size in doubles.
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
  // n x n: the Gram matrix and its factor; the inverse of the factor; matrices from other ranks.
  Piece<T> gram, inverse, received;
  Piece<Real<T>> lengths;    // of A's columns
  Piece<double> numbers;     // NumberElements
  Piece<int32_t> info;       // of Cholesky factorizations
  Piece<Real<T>> largest;    // largest entries of A's columns and of b's, on this rank and then on
                             // all ranks
  Piece<Real<T>> factors_b;  // powers of two of the right-hand sides
  Piece<T> right, x, change, y, squares;  // right-hand sides of n rows
  Piece<T> work;                          // block x n: Q of a pass, or conj(A)
  Piece<T> below;                         // further x n: as `work`, for the further rows
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

#endif  // JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_SPACE_H_
