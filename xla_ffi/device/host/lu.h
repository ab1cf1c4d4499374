// LuKernels on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_LU_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_LU_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/device/host/lapack_checks.h"
#include "xla_ffi/device/lu_kernels.h"

namespace jaxmg {

template <typename T>
class HostLu : public LuKernels<T> {
  using R = Real<T>;

 public:
  Status FactorPanel(Stream, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                     int32_t* pivots, int32_t* info) override {
    const int64_t count = std::min(m, n);
    if (count == 0) return Status::Ok();
    // LAPACK's search for the largest of NaNs may fail and return a row that doesn't exist.
    // Elimination that overflows produces NaN, so the pivots are checked too.
    if (!IsFinite(m, n, a, lda)) {
      std::iota(pivots, pivots + count, static_cast<int32_t>(offset));
      *info = std::min(*info, kNotFinite);
      return Status::Ok();
    }
    LapackInts ints(m, n, lda);
    JAXMG_CHECK_LAPACK(getrf, ints);
    int failed = 0;
    HostLapack<T>().getrf(ints[0], ints[1], a, ints[2], pivots, &failed);
    if (failed > 0) *info = std::min(*info, static_cast<int32_t>(offset + failed));
    for (int64_t i = 0; i < count; ++i) {
      int64_t row = pivots[i] - 1;
      const T pivot = a[i * lda + i];
      const bool found = i <= row && row < m;
      if (!found || !std::isfinite(std::real(pivot)) || !std::isfinite(std::imag(pivot))) {
        *info = std::min(*info, kNotFinite);
      }
      if (!found) row = i;
      pivots[i] = static_cast<int32_t>(offset + row);
    }
    return Status::Ok();
  }

  // Goes column by column, because a column of a tile stays in a cache while its rows are
  // interchanged.
  Status SwapRows(Stream, Order order, int64_t n, T* a, int64_t lda, int64_t offset, int64_t count,
                  const int32_t* pivots) override {
    for (int64_t j = 0; j < n; ++j) {
      T* column = a + j * lda;
      ForEach(order, count, [&](int64_t i) { std::swap(column[i], column[pivots[i] - offset]); });
    }
    return Status::Ok();
  }

  Status SwapAllRows(Stream stream, const std::vector<MovedColumns<T>>& all, int64_t, int64_t lda,
                     int64_t count, const int32_t* pivots, T*, int64_t) override {
    for (const MovedColumns<T>& columns : all) {
      const int64_t first = columns.first;
      JAXMG_RETURN_IF_ERROR(SwapRows(stream, Order::kForward, columns.n, columns.a + first, lda,
                                     first, count - first, pivots + first));
    }
    return Status::Ok();
  }

  Status SwapColumns(Stream, Order order, int64_t m, T* a, int64_t lda, int64_t count,
                     const int32_t* pivots) override {
    ForEach(order, count, [&](int64_t i) {
      if (pivots[i] != i) std::swap_ranges(a + i * lda, a + i * lda + m, a + pivots[i] * lda);
    });
    return Status::Ok();
  }

  Status AddDeterminant(Stream, int64_t n, const T* u, int64_t ldu, int64_t offset,
                        const int32_t* pivots, R* log_abs, T* sign) override {
    double sum = 0;  // also for float32, in which the sum would lose digits
    T phase = *sign;
    for (int64_t j = 0; j < n; ++j) {
      const T x = u[j * ldu + j];
      const R size = std::abs(x);
      sum += std::log(double{size});
      phase *= size == 0 ? T(0) : x / size;
      if (pivots[j] != offset + j) phase = -phase;
    }
    *log_abs += static_cast<R>(sum);
    *sign = phase;
    return Status::Ok();
  }

 private:
  static bool IsFinite(int64_t m, int64_t n, const T* a, int64_t lda) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        const T x = a[j * lda + i];
        if (!std::isfinite(std::real(x)) || !std::isfinite(std::imag(x))) return false;
      }
    }
    return true;
  }

  template <typename F>
  static void ForEach(Order order, int64_t count, const F& f) {
    if (order == Order::kForward) {
      for (int64_t i = 0; i < count; ++i) f(i);
    } else {
      for (int64_t i = count - 1; i >= 0; --i) f(i);
    }
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_LU_H_
