// Elementwise operations and sums over whole matrices on one NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_MATRIX_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_MATRIX_H_

#include <cstdint>

#include "xla_ffi/device/products/matrix_kernels.h"

namespace jaxmg {

class CudaDevice;

template <typename T>
class CudaMatrix : public MatrixKernels<T> {
  using R = Real<T>;

 public:
  explicit CudaMatrix(CudaDevice& device) : device_(device) {}

  Status Combine(Stream stream, int64_t m, int64_t n, R alpha, const T* a, int64_t lda, R beta,
                 T* c, int64_t ldc) override;
  Status AddToDiagonal(Stream stream, int64_t m, int64_t n, int64_t first, R value, T* a,
                       int64_t lda) override;
  Status ScaleRowsAndColumns(Stream stream, bool divide, int64_t m, int64_t n, const R* left,
                             const R* right, T* a, int64_t lda) override;
  Status TimesPowerOfTwo(Stream stream, int64_t m, int64_t n, int exponent, T* a,
                         int64_t lda) override;
  Status MakeHermitian(Stream stream, int64_t n, T* a, int64_t lda) override;
  Status ClearTriangle(Stream stream, Uplo uplo, int64_t m, int64_t n, T* a, int64_t lda) override;
  Status SquareSums(Stream stream, bool apart, int64_t m, int64_t n, const T* a, int64_t lda,
                    double* sums) override;
  Status DivideByRoot(Stream stream, int64_t m, int64_t n, const double* sums, T* a,
                      int64_t lda) override;
  Status LargestOfRows(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                       R* largest) override;
  Status RootsOfDiagonal(Stream stream, int64_t n, const T* a, int64_t lda, R* roots) override;
  Status SignsOfDiagonal(Stream stream, int64_t n, const T* a, int64_t lda, R* signs) override;
  Status TakeRows(Stream stream, int64_t m, int64_t n, const int32_t* rows, const R* factors,
                  const T* a, int64_t lda, T* c, int64_t ldc) override;
  Status AddNoise(Stream stream, int64_t m, int64_t n, int64_t row, int64_t column, R size, T* a,
                  int64_t lda) override;
  Status Convert(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, OtherPrecision<T>* c,
                 int64_t ldc) override;

 private:
  CudaDevice& device_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_MATRIX_H_
