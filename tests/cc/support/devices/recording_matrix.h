// The matrix kernels of a RecordingDevice. Included only by recording_device.cc.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_MATRIX_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_MATRIX_H_

#include "tests/cc/support/devices/recorder.h"
#include "xla_ffi/device/products/matrix_kernels.h"

namespace jaxmg::testing {

template <typename T>
class RecordingMatrix : public MatrixKernels<T> {
  using R = Real<T>;

 public:
  RecordingMatrix(Recorder& to, MatrixKernels<T>& real) : to_(to), real_(real) {}

  Status Combine(Stream s, int64_t m, int64_t n, R alpha, const T* a, int64_t lda, R beta, T* c,
                 int64_t ldc) override {
    to_.Add(s, "combine", {to_.Read(a, lda, m, n), to_.Write(c, ldc, m, n)});
    return real_.Combine(s, m, n, alpha, a, lda, beta, c, ldc);
  }
  Status AddToDiagonal(Stream s, int64_t m, int64_t n, int64_t first, R value, T* a,
                       int64_t lda) override {
    to_.Add(s, "add to diagonal", {to_.Write(a, lda, m, n)});
    return real_.AddToDiagonal(s, m, n, first, value, a, lda);
  }
  Status ScaleRowsAndColumns(Stream s, bool divide, int64_t m, int64_t n, const R* left,
                             const R* right, T* a, int64_t lda) override {
    to_.Add(s, "scale rows and columns",
            {to_.Read(left, m, left == nullptr ? 0 : m, 1),
             to_.Read(right, n, right == nullptr ? 0 : n, 1), to_.Write(a, lda, m, n)});
    return real_.ScaleRowsAndColumns(s, divide, m, n, left, right, a, lda);
  }
  Status TimesPowerOfTwo(Stream s, int64_t m, int64_t n, int exponent, T* a, int64_t lda) override {
    to_.Add(s, "times power of two", {to_.Write(a, lda, m, n)});
    return real_.TimesPowerOfTwo(s, m, n, exponent, a, lda);
  }
  Status MakeHermitian(Stream s, int64_t n, T* a, int64_t lda) override {
    to_.Add(s, "make hermitian", {to_.Write(a, lda, n, n)});
    return real_.MakeHermitian(s, n, a, lda);
  }
  Status ClearTriangle(Stream s, Uplo uplo, int64_t m, int64_t n, T* a, int64_t lda) override {
    to_.Add(s, "clear triangle", {to_.Write(a, lda, m, n)});
    return real_.ClearTriangle(s, uplo, m, n, a, lda);
  }
  Status SquareSums(Stream s, bool apart, int64_t m, int64_t n, const T* a, int64_t lda,
                    double* sums) override {
    to_.Add(s, "square sums",
            {to_.Read(a, lda, m, n), to_.Write(sums, kSquareSums, kSquareSums, 1)});
    return real_.SquareSums(s, apart, m, n, a, lda, sums);
  }
  Status DivideByRoot(Stream s, int64_t m, int64_t n, const double* sums, T* a,
                      int64_t lda) override {
    to_.Add(s, "divide by root",
            {to_.Read(sums, kSquareSums, kSquareSums, 1), to_.Write(a, lda, m, n)});
    return real_.DivideByRoot(s, m, n, sums, a, lda);
  }
  Status LargestOfRows(Stream s, int64_t m, int64_t n, const T* a, int64_t lda,
                       R* largest) override {
    to_.Add(s, "largest of rows", {to_.Read(a, lda, m, n), to_.Write(largest, m, m, 1)});
    return real_.LargestOfRows(s, m, n, a, lda, largest);
  }
  Status RootsOfDiagonal(Stream s, int64_t n, const T* a, int64_t lda, R* roots) override {
    to_.Add(s, "roots of diagonal", {to_.Read(a, lda, n, n), to_.Write(roots, n, n, 1)});
    return real_.RootsOfDiagonal(s, n, a, lda, roots);
  }
  Status SignsOfDiagonal(Stream s, int64_t n, const T* a, int64_t lda, R* signs) override {
    to_.Add(s, "signs of diagonal", {to_.Read(a, lda, n, n), to_.Write(signs, n, n, 1)});
    return real_.SignsOfDiagonal(s, n, a, lda, signs);
  }
  Status TakeRows(Stream s, int64_t m, int64_t n, const int32_t* rows, const R* factors, const T* a,
                  int64_t lda, T* c, int64_t ldc) override {
    to_.Add(s, "take rows",
            {to_.Read(rows, m, m, 1), to_.Read(factors, m, factors == nullptr ? 0 : m, 1),
             to_.Read(a, lda, lda, n), to_.Write(c, ldc, m, n)});
    return real_.TakeRows(s, m, n, rows, factors, a, lda, c, ldc);
  }
  Status AddNoise(Stream s, int64_t m, int64_t n, int64_t row, int64_t column, R size, T* a,
                  int64_t lda) override {
    to_.Add(s, "add noise", {to_.Write(a, lda, m, n)});
    return real_.AddNoise(s, m, n, row, column, size, a, lda);
  }
  Status Convert(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, OtherPrecision<T>* c,
                 int64_t ldc) override {
    to_.Add(s, "convert", {to_.Read(a, lda, m, n), to_.Write(c, ldc, m, n)});
    return real_.Convert(s, m, n, a, lda, c, ldc);
  }

 private:
  Recorder& to_;
  MatrixKernels<T>& real_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_MATRIX_H_
