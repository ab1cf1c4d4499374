#include "xla_ffi/device/cuda/products/matrix.h"

#include <cmath>
#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {

template <typename T>
Status CudaMatrix<T>::Combine(Stream stream, int64_t m, int64_t n, R alpha, const T* a, int64_t lda,
                              R beta, T* c, int64_t ldc) {
  return device_.LaunchElements(Kernel::combine, CudaType<T>::kLetter, stream, m * n, m, n, alpha,
                                a, lda, beta, c, ldc);
}

template <typename T>
Status CudaMatrix<T>::AddToDiagonal(Stream stream, int64_t m, int64_t n, int64_t first, R value,
                                    T* a, int64_t lda) {
  return device_.LaunchElements(Kernel::add_to_diagonal, CudaType<T>::kLetter, stream,
                                n > 0 ? m : 0, m, n, first, value, a, lda);
}

template <typename T>
Status CudaMatrix<T>::ScaleRowsAndColumns(Stream stream, bool divide, int64_t m, int64_t n,
                                          const R* left, const R* right, T* a, int64_t lda) {
  return device_.LaunchElements(Kernel::scale_rows_and_columns, CudaType<T>::kLetter, stream, m * n,
                                static_cast<int>(divide), m, n, left, right, a, lda);
}

template <typename T>
Status CudaMatrix<T>::TimesPowerOfTwo(Stream stream, int64_t m, int64_t n, int exponent, T* a,
                                      int64_t lda) {
  const R first = std::ldexp(R(1), exponent / 2);
  const R second = std::ldexp(R(1), exponent - exponent / 2);
  return device_.LaunchElements(Kernel::times_factors, CudaType<T>::kLetter, stream, m * n, m, n,
                                first, second, a, lda);
}

template <typename T>
Status CudaMatrix<T>::MakeHermitian(Stream stream, int64_t n, T* a, int64_t lda) {
  return device_.LaunchTiles(Kernel::make_hermitian, CudaType<T>::kLetter, stream, n, n, n, a, lda);
}

template <typename T>
Status CudaMatrix<T>::ClearTriangle(Stream stream, Uplo uplo, int64_t m, int64_t n, T* a,
                                    int64_t lda) {
  return device_.LaunchElements(Kernel::clear_triangle, CudaType<T>::kLetter, stream, m * n,
                                static_cast<int>(uplo == Uplo::kUpper), m, n, a, lda);
}

template <typename T>
Status CudaMatrix<T>::SquareSums(Stream stream, bool apart, int64_t m, int64_t n, const T* a,
                                 int64_t lda, double* sums) {
  return device_.LaunchBlocks(Kernel::square_sums, CudaType<T>::kLetter, stream, kSquareSums,
                              kThreads, static_cast<int>(apart), m, n, a, lda, sums);
}

template <typename T>
Status CudaMatrix<T>::DivideByRoot(Stream stream, int64_t m, int64_t n, const double* sums, T* a,
                                   int64_t lda) {
  return device_.LaunchElements(Kernel::divide_by_root, CudaType<T>::kLetter, stream, m * n,
                                kSquareSums, m, n, sums, a, lda);
}

template <typename T>
Status CudaMatrix<T>::LargestOfRows(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                                    R* largest) {
  return device_.LaunchElements(Kernel::largest_of_rows, CudaType<T>::kLetter, stream,
                                m * ((n + kLargestColumns - 1) / kLargestColumns), m, n, a, lda,
                                largest);
}

template <typename T>
Status CudaMatrix<T>::RootsOfDiagonal(Stream stream, int64_t n, const T* a, int64_t lda, R* roots) {
  return device_.LaunchElements(Kernel::roots_of_diagonal, CudaType<T>::kLetter, stream, n, n, a,
                                lda, roots);
}

template <typename T>
Status CudaMatrix<T>::SignsOfDiagonal(Stream stream, int64_t n, const T* a, int64_t lda, R* signs) {
  return device_.LaunchElements(Kernel::signs_of_diagonal, CudaType<T>::kLetter, stream, n, n, a,
                                lda, signs);
}

template <typename T>
Status CudaMatrix<T>::TakeRows(Stream stream, int64_t m, int64_t n, const int32_t* rows,
                               const R* factors, const T* a, int64_t lda, T* c, int64_t ldc) {
  return device_.LaunchElements(Kernel::take_scaled_rows, CudaType<T>::kLetter, stream, m * n, m, n,
                                rows, factors, a, lda, c, ldc);
}

template <typename T>
Status CudaMatrix<T>::AddNoise(Stream stream, int64_t m, int64_t n, int64_t row, int64_t column,
                               R size, T* a, int64_t lda) {
  return device_.LaunchElements(Kernel::add_noise, CudaType<T>::kLetter, stream, m * n, m, n, row,
                                column, size, a, lda);
}

template <typename T>
Status CudaMatrix<T>::Convert(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                              OtherPrecision<T>* c, int64_t ldc) {
  return device_.LaunchElements(Kernel::convert, CudaType<T>::kLetter, stream, m * n, m, n, a, lda,
                                c, ldc);
}

#define JAXMG_INSTANTIATE(T) template class CudaMatrix<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
