// MatrixKernels on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_MATRIX_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_MATRIX_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "xla_ffi/device/products/matrix_kernels.h"
#include "xla_ffi/device/products/noise.h"

namespace jaxmg {

template <typename T>
class HostMatrix : public MatrixKernels<T> {
  using R = Real<T>;

 public:
  Status Combine(Stream, int64_t m, int64_t n, R alpha, const T* a, int64_t lda, R beta, T* c,
                 int64_t ldc) override {
    for (int64_t j = 0; j < n; ++j) {
      const T* from = a + j * lda;
      T* to = c + j * ldc;
      if (alpha == 0) {
        for (int64_t i = 0; i < m; ++i) to[i] = beta == 0 ? T(0) : beta * to[i];
      } else if (beta == 0) {
        for (int64_t i = 0; i < m; ++i) to[i] = alpha * from[i];
      } else {
        for (int64_t i = 0; i < m; ++i) to[i] = alpha * from[i] + beta * to[i];
      }
    }
    return Status::Ok();
  }

  Status AddToDiagonal(Stream, int64_t m, int64_t n, int64_t first, R value, T* a,
                       int64_t lda) override {
    for (int64_t i = std::max<int64_t>(0, -first); i < m && i + first < n; ++i) {
      a[(i + first) * lda + i] += value;
    }
    return Status::Ok();
  }

  Status ScaleRowsAndColumns(Stream, bool divide, int64_t m, int64_t n, const R* left,
                             const R* right, T* a, int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) {
      T* column = a + j * lda;
      for (int64_t i = 0; i < m; ++i) {
        if (left != nullptr) column[i] = divide ? column[i] / left[i] : column[i] * left[i];
        if (right != nullptr) column[i] = divide ? column[i] / right[j] : column[i] * right[j];
      }
    }
    return Status::Ok();
  }

  Status TimesPowerOfTwo(Stream, int64_t m, int64_t n, int exponent, T* a, int64_t lda) override {
    const R half = std::ldexp(R(1), exponent / 2);
    const R rest = std::ldexp(R(1), exponent - exponent / 2);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) a[j * lda + i] = a[j * lda + i] * half * rest;
    }
    return Status::Ok();
  }

  Status MakeHermitian(Stream, int64_t n, T* a, int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) {
      a[j * lda + j] = std::real(a[j * lda + j]);
      for (int64_t i = j + 1; i < n; ++i) {
        const T mean = (a[j * lda + i] + Conj(a[i * lda + j])) / R(2);
        a[j * lda + i] = mean;
        a[i * lda + j] = Conj(mean);
      }
    }
    return Status::Ok();
  }

  Status ClearTriangle(Stream, Uplo uplo, int64_t m, int64_t n, T* a, int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) {
      T* column = a + j * lda;
      if (uplo == Uplo::kUpper) {
        std::fill_n(column, std::min(j, m), T(0));
      } else if (j + 1 < m) {
        std::fill_n(column + j + 1, m - j - 1, T(0));
      }
    }
    return Status::Ok();
  }

  Status SquareSums(Stream, bool apart, int64_t m, int64_t n, const T* a, int64_t lda,
                    double* sums) override {
    std::fill_n(sums, kSquareSums, 0.0);
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < m; ++i) {
        const double re = static_cast<double>(std::real(a[j * lda + i])) - (apart && i == j);
        const double im = std::imag(a[j * lda + i]);
        sum += re * re + im * im;
      }
      sums[j % kSquareSums] += sum;
    }
    return Status::Ok();
  }

  Status DivideByRoot(Stream, int64_t m, int64_t n, const double* sums, T* a,
                      int64_t lda) override {
    const double sum = std::accumulate(sums, sums + kSquareSums, 0.0);
    if (sum == 0) return Status::Ok();
    const R root = static_cast<R>(std::sqrt(sum));
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) a[j * lda + i] /= root;
    }
    return Status::Ok();
  }

  Status LargestOfRows(Stream, int64_t m, int64_t n, const T* a, int64_t lda, R* largest) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) largest[i] = Larger(largest[i], a[j * lda + i]);
    }
    return Status::Ok();
  }

  Status RootsOfDiagonal(Stream, int64_t n, const T* a, int64_t lda, R* roots) override {
    for (int64_t i = 0; i < n; ++i) {
      const R root = std::sqrt(std::real(a[i * lda + i]));
      roots[i] = root > 0 && std::isfinite(root) ? root : 1;
    }
    return Status::Ok();
  }

  Status SignsOfDiagonal(Stream, int64_t n, const T* a, int64_t lda, R* signs) override {
    for (int64_t i = 0; i < n; ++i) signs[i] = std::real(a[i * lda + i]) < 0 ? -1 : 1;
    return Status::Ok();
  }

  Status TakeRows(Stream, int64_t m, int64_t n, const int32_t* rows, const R* factors, const T* a,
                  int64_t lda, T* c, int64_t ldc) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        const T x = a[j * lda + rows[i]];
        c[j * ldc + i] = factors == nullptr ? x : x * factors[i];
      }
    }
    return Status::Ok();
  }

  Status AddNoise(Stream, int64_t m, int64_t n, int64_t row, int64_t column, R size, T* a,
                  int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        a[j * lda + i] += size * static_cast<R>(NoiseAt(row + i, column + j));
      }
    }
    return Status::Ok();
  }

  Status Convert(Stream, int64_t m, int64_t n, const T* a, int64_t lda, OtherPrecision<T>* c,
                 int64_t ldc) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        c[j * ldc + i] = static_cast<OtherPrecision<T>>(a[j * lda + i]);
      }
    }
    return Status::Ok();
  }

 private:
  // Returns the larger magnitude. NaN takes precedence.
  static R Larger(R largest, T x) {
    for (const R part : {std::abs(std::real(x)), std::abs(std::imag(x))}) {
      if (!(part <= largest)) largest = std::isnan(largest) ? largest : part;
    }
    return largest;
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_MATRIX_H_
