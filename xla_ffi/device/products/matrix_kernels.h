// MatrixKernels: elementwise operations and sums over whole matrices, for algorithms that consist
// of products (polar decomposition, Cholesky QR).
#ifndef JAXMG_XLA_FFI_DEVICE_PRODUCTS_MATRIX_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_PRODUCTS_MATRIX_KERNELS_H_

#include <complex>
#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// The number of partial sums that SquareSums writes.
inline constexpr int kSquareSums = 128;

// The other precision of a dtype.
template <typename T>
struct OtherPrecisionOf;
template <>
struct OtherPrecisionOf<float> {
  using type = double;
};
template <>
struct OtherPrecisionOf<double> {
  using type = float;
};
template <typename R>
struct OtherPrecisionOf<std::complex<R>> {
  using type = std::complex<typename OtherPrecisionOf<R>::type>;
};
template <typename T>
using OtherPrecision = typename OtherPrecisionOf<T>::type;

// Matrices are column-major, m x n. Vectors are in device memory, numbers in host memory.
template <typename T>
class MatrixKernels {
 public:
  virtual ~MatrixKernels() = default;

  // C := alpha A + beta C. A isn't read if alpha is 0, C isn't read if beta is 0; A may be C.
  virtual Status Combine(Stream stream, int64_t m, int64_t n, Real<T> alpha, const T* a,
                         int64_t lda, Real<T> beta, T* c, int64_t ldc) = 0;
  // a_(i, i + first) += value for the rows i for which i + first is a column: the diagonal of a
  // matrix if A holds its rows from `first` on. With a negative `first`, A holds its columns from
  // -first on.
  virtual Status AddToDiagonal(Stream stream, int64_t m, int64_t n, int64_t first, Real<T> value,
                               T* a, int64_t lda) = 0;
  // a_ij := a_ij left_i right_j, or a_ij / left_i / right_j if `divide`. Either may be null.
  virtual Status ScaleRowsAndColumns(Stream stream, bool divide, int64_t m, int64_t n,
                                     const Real<T>* left, const Real<T>* right, T* a,
                                     int64_t lda) = 0;
  // A := 2^exponent A. The power itself may be out of range.
  virtual Status TimesPowerOfTwo(Stream stream, int64_t m, int64_t n, int exponent, T* a,
                                 int64_t lda) = 0;
  // A := (A + A^H) / 2 for a square matrix. Its diagonal becomes real.
  virtual Status MakeHermitian(Stream stream, int64_t n, T* a, int64_t lda) = 0;
  // Sets the elements below the diagonal (kLower) or above it (kUpper) to zero.
  virtual Status ClearTriangle(Stream stream, Uplo uplo, int64_t m, int64_t n, T* a,
                               int64_t lda) = 0;

  // sums (kSquareSums numbers) := partial sums of |a_ij - d_ij|^2, where d is the identity if
  // `apart` from the identity, else 0. Accumulated in double precision, in an order that depends
  // only on the shape.
  virtual Status SquareSums(Stream stream, bool apart, int64_t m, int64_t n, const T* a,
                            int64_t lda, double* sums) = 0;
  // A := A / sqrt(s), where s is the sum of the partial sums of SquareSums, unless s is 0.
  virtual Status DivideByRoot(Stream stream, int64_t m, int64_t n, const double* sums, T* a,
                              int64_t lda) = 0;
  // largest_i := max(largest_i, |Re a_ij|, |Im a_ij|) over all j. NaN counts as larger than any
  // number.
  virtual Status LargestOfRows(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                               Real<T>* largest) = 0;
  // roots_i := the square root of the real part of a_ii, or 1 if that part isn't positive and
  // finite.
  virtual Status RootsOfDiagonal(Stream stream, int64_t n, const T* a, int64_t lda,
                                 Real<T>* roots) = 0;
  // signs_i := -1 if the real part of a_ii is negative, else 1.
  virtual Status SignsOfDiagonal(Stream stream, int64_t n, const T* a, int64_t lda,
                                 Real<T>* signs) = 0;
  // c_ij := a_(rows_i, j) factors_i, m x n; factors may be null.
  virtual Status TakeRows(Stream stream, int64_t m, int64_t n, const int32_t* rows,
                          const Real<T>* factors, const T* a, int64_t lda, T* c, int64_t ldc) = 0;
  // a_ij += size times a pseudorandom number between -1 and 1 that depends only on row + i and
  // column + j.
  virtual Status AddNoise(Stream stream, int64_t m, int64_t n, int64_t row, int64_t column,
                          Real<T> size, T* a, int64_t lda) = 0;
  // C := A, converted to the other precision.
  virtual Status Convert(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                         OtherPrecision<T>* c, int64_t ldc) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PRODUCTS_MATRIX_KERNELS_H_
