// The matrix kernels of an AsyncDevice. Included only by async_device.cc.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_MATRIX_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_MATRIX_H_

#include "tests/cc/support/devices/async_workers.h"
#include "xla_ffi/device/products/matrix_kernels.h"

namespace jaxmg::testing {

template <typename T>
class AsyncMatrix : public MatrixKernels<T> {
  using R = Real<T>;

 public:
  AsyncMatrix(Workers& workers, MatrixKernels<T>& real) : workers_(workers), real_(real) {}

  Status Combine(Stream s, int64_t m, int64_t n, R alpha, const T* a, int64_t lda, R beta, T* c,
                 int64_t ldc) override {
    return Later(workers_, s, [=] { return real_.Combine(s, m, n, alpha, a, lda, beta, c, ldc); });
  }
  Status AddToDiagonal(Stream s, int64_t m, int64_t n, int64_t first, R value, T* a,
                       int64_t lda) override {
    return Later(workers_, s, [=] { return real_.AddToDiagonal(s, m, n, first, value, a, lda); });
  }
  Status ScaleRowsAndColumns(Stream s, bool divide, int64_t m, int64_t n, const R* left,
                             const R* right, T* a, int64_t lda) override {
    return Later(workers_, s,
                 [=] { return real_.ScaleRowsAndColumns(s, divide, m, n, left, right, a, lda); });
  }
  Status TimesPowerOfTwo(Stream s, int64_t m, int64_t n, int exponent, T* a, int64_t lda) override {
    return Later(workers_, s, [=] { return real_.TimesPowerOfTwo(s, m, n, exponent, a, lda); });
  }
  Status MakeHermitian(Stream s, int64_t n, T* a, int64_t lda) override {
    return Later(workers_, s, [=] { return real_.MakeHermitian(s, n, a, lda); });
  }
  Status ClearTriangle(Stream s, Uplo uplo, int64_t m, int64_t n, T* a, int64_t lda) override {
    return Later(workers_, s, [=] { return real_.ClearTriangle(s, uplo, m, n, a, lda); });
  }
  Status SquareSums(Stream s, bool apart, int64_t m, int64_t n, const T* a, int64_t lda,
                    double* sums) override {
    return Later(workers_, s, [=] { return real_.SquareSums(s, apart, m, n, a, lda, sums); });
  }
  Status DivideByRoot(Stream s, int64_t m, int64_t n, const double* sums, T* a,
                      int64_t lda) override {
    return Later(workers_, s, [=] { return real_.DivideByRoot(s, m, n, sums, a, lda); });
  }
  Status LargestOfRows(Stream s, int64_t m, int64_t n, const T* a, int64_t lda,
                       R* largest) override {
    return Later(workers_, s, [=] { return real_.LargestOfRows(s, m, n, a, lda, largest); });
  }
  Status RootsOfDiagonal(Stream s, int64_t n, const T* a, int64_t lda, R* roots) override {
    return Later(workers_, s, [=] { return real_.RootsOfDiagonal(s, n, a, lda, roots); });
  }
  Status SignsOfDiagonal(Stream s, int64_t n, const T* a, int64_t lda, R* signs) override {
    return Later(workers_, s, [=] { return real_.SignsOfDiagonal(s, n, a, lda, signs); });
  }
  Status TakeRows(Stream s, int64_t m, int64_t n, const int32_t* rows, const R* factors, const T* a,
                  int64_t lda, T* c, int64_t ldc) override {
    return Later(workers_, s,
                 [=] { return real_.TakeRows(s, m, n, rows, factors, a, lda, c, ldc); });
  }
  Status AddNoise(Stream s, int64_t m, int64_t n, int64_t row, int64_t column, R size, T* a,
                  int64_t lda) override {
    return Later(workers_, s, [=] { return real_.AddNoise(s, m, n, row, column, size, a, lda); });
  }
  Status Convert(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, OtherPrecision<T>* c,
                 int64_t ldc) override {
    return Later(workers_, s, [=] { return real_.Convert(s, m, n, a, lda, c, ldc); });
  }

 private:
  Workers& workers_;
  MatrixKernels<T>& real_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_MATRIX_H_
