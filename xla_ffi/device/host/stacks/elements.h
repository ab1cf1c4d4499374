// StackElements on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_STACKS_ELEMENTS_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_STACKS_ELEMENTS_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "xla_ffi/device/stacks/stack_elements.h"

namespace jaxmg {

template <typename T>
class HostElements : public StackElements<T> {
  using R = Real<T>;

 public:
  Status Scale(Stream, int64_t count, int64_t size, int64_t step, const T* a, T* scaled,
               int32_t* exponents) override {
    for (int64_t matrix = 0; matrix < count; ++matrix, a += size, scaled += size) {
      R largest = 0;
      bool finite = true;
      for (int64_t i = 0; i < size; ++i) {
        for (const R part : {std::abs(std::real(a[i])), std::abs(std::imag(a[i]))}) {
          finite &= std::isfinite(part);
          largest = std::max(largest, part);
        }
      }
      exponents[matrix] =
          finite && largest > 0 ? ScaleExponent<R>(std::ilogb(largest), static_cast<int>(step)) : 0;
      const int half = (-exponents[matrix]) >> 1, rest = -exponents[matrix] - half;
      const R first = std::ldexp(R(1), half), second = std::ldexp(R(1), rest);
      for (int64_t i = 0; i < size; ++i) scaled[i] = a[i] * first * second;
    }
    return Status::Ok();
  }

  Status Sum(Stream, StackedSum what, int64_t count, int64_t size, int64_t n, const T* x,
             const T* y, double* sums) override {
    for (int64_t matrix = 0; matrix < count; ++matrix) {
      const T *left = x + matrix * size, *right = y == nullptr ? nullptr : y + matrix * size;
      double sum = 0;
      for (int64_t i = 0; i < size; ++i) {
        if (what == StackedSum::kInner) {
          sum += static_cast<double>(std::real(left[i])) * std::real(right[i]) +
                 static_cast<double>(std::imag(left[i])) * std::imag(right[i]);
          continue;
        }
        const bool identity = what == StackedSum::kFromIdentity;
        const T apart = left[i] - (identity ? T(i / n == i % n ? 1 : 0) : right[i]);
        const double re = std::real(apart), im = std::imag(apart);
        sum += re * re + im * im;
      }
      sums[matrix] = sum;
    }
    return Status::Ok();
  }

  Status DivideByRoots(Stream, int64_t count, int64_t size, const double* sums, const T* a,
                       T* x) override {
    for (int64_t i = 0; i < count * size; ++i) {
      const double root = sums[i / size] == 0 ? 1 : std::sqrt(sums[i / size]);
      if constexpr (std::is_same_v<T, R>) {
        x[i] = static_cast<R>(a[i] / root);
      } else {
        x[i] = T(static_cast<R>(a[i].real() / root), static_cast<R>(a[i].imag() / root));
      }
    }
    return Status::Ok();
  }

  Status Combine(Stream, int64_t count, int64_t size, int64_t n, const StackedTerms<T>& terms,
                 T* out) override {
    for (int64_t i = 0; i < count * size; ++i) {
      const int64_t matrix = i / size, row = i % size / n, column = i % size % n;
      const R of_x = terms.of_x[matrix];
      const R of_y = terms.of_y == nullptr ? R(0) : terms.of_y[matrix];
      T sum = of_x == 0 ? T(0) : of_x * terms.x[i];
      if (of_y != 0) sum += of_y * terms.y[i];
      if (terms.of_identity != nullptr && row == column) sum += terms.of_identity[matrix];
      out[i] = sum / terms.divisor;
    }
    return Status::Ok();
  }

  Status MakeHermitian(Stream, int64_t count, int64_t n, T* a) override {
    for (int64_t matrix = 0; matrix < count; ++matrix, a += n * n) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = i; j < n; ++j) {
          const T mean = (a[i * n + j] + Conj(a[j * n + i])) / R(2);
          a[i * n + j] = mean;
          a[j * n + i] = Conj(mean);
        }
      }
    }
    return Status::Ok();
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_STACKS_ELEMENTS_H_
