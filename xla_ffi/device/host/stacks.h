// StackKernels on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_STACKS_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_STACKS_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/host/secular.h"
#include "xla_ffi/device/secular_root.h"
#include "xla_ffi/device/stack_kernels.h"
#include "xla_ffi/device/tridiagonal_ql.h"

namespace jaxmg {

// One merge, with its poles in ascending order.
template <typename R>
class HostMerge {
 public:
  HostMerge(int64_t k, R gap, const R* high, const R* low, const R* z, R rho)
      : k_(k),
        rho_(rho),
        order_(k),
        high_(k),
        low_(k),
        z_(k),
        origin_high_(k),
        origin_low_(k),
        tau_(k),
        refined_(k) {
    std::iota(order_.begin(), order_.end(), 0);
    // Poles that are NaN are the last ones.
    auto key = [&](int64_t i) {
      return std::make_tuple(std::isnan(high[i]), std::isnan(high[i]) ? 0 : high[i], low[i]);
    };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int64_t i, int64_t j) { return key(i) < key(j); });
    for (int64_t place = 0; place < k; ++place) {
      const int64_t i = order_[place];
      high_[place] = high[i];
      low_[place] = low[i] + static_cast<R>(place) * gap;
      z_[place] = z[i];
    }
  }

  void FindRoots() {
    using Poles = HostPoles<R, secular::TwoPartPoles<R>>;
    const Poles poles(k_, d(), z_.data());
    for (int64_t j = 0; j < k_; ++j) {
      secular::Root<R, Poles, secular::TwoPartPole<R>> root(poles, k_, d(), z_.data(), rho_, j);
      (void)root.Find(kMostSecularEvaluations);  // the last iterate is used, converged or not
      origin_high_[j] = root.origin().high;
      origin_low_[j] = root.origin().low;
      tau_[j] = root.tau();
    }
  }

  void RefineZ() {
    for (int64_t i = 0; i < k_; ++i) {
      refined_[i] = RefinedElement(k_, i, d(), z_[i], rho_, origin(), tau_.data());
    }
  }

  // The results of merge `index`.
  void Write(int64_t index, const MergedPairs<R>& pairs) const {
    const int64_t half = k_ / 2;
    R* const vectors = pairs.vectors + index * k_ * k_;
    std::vector<R> u(k_);
    for (int64_t j = 0; j < k_; ++j) {
      R largest = 0, sum = 0;
      for (int64_t place = 0; place < k_; ++place) {
        const R value = refined_[place] / ((d()[place] - origin()[j]) - tau_[j]);
        u[order_[place]] = value;
        largest = std::max(largest, std::abs(value));
      }
      for (R& value : u) {  // whose squares might overflow
        value /= largest;
        sum += value * value;
      }
      const R scale = 1 / std::sqrt(sum);
      for (int64_t i = 0; i < k_; ++i) {
        vectors[(i / half * k_ + j) * half + i % half] = u[i] * scale;
      }
      const R low = origin_low_[j] + tau_[j], total = origin_high_[j] + low;
      const R rest = total - origin_high_[j];
      pairs.high[index * k_ + j] = total;
      pairs.low[index * k_ + j] = (origin_high_[j] - (total - rest)) + (low - rest);
    }
  }

 private:
  secular::TwoPartPoles<R> d() const { return {high_.data(), low_.data()}; }
  secular::TwoPartPoles<R> origin() const { return {origin_high_.data(), origin_low_.data()}; }

  const int64_t k_;
  const R rho_;
  std::vector<int64_t> order_;
  std::vector<R> high_, low_, z_, origin_high_, origin_low_, tau_, refined_;
};

template <typename T>
class HostStacks : public StackKernels<T> {
  using R = Real<T>;

 public:
  explicit HostStacks(Blas<T>& blas) : blas_(blas) {}

  Status SolveTridiagonal(Stream, int64_t count, int64_t n, const R* d, const R* e, R* w,
                          R* v) override {
    std::vector<R> beside(n);
    for (int64_t matrix = 0; matrix < count; ++matrix) {
      R *values = w + matrix * n, *vectors = v + matrix * n * n;
      std::copy_n(d + matrix * n, n, values);
      std::copy_n(e + matrix * (n - 1), n - 1, beside.data());
      for (int64_t i = 0; i < n * n; ++i) vectors[i] = i % (n + 1) == 0;
      const bool found =
          tridiagonal::SolveByQl(static_cast<int>(n), values, beside.data(), [&](int i, R c, R s) {
            for (int64_t row = 0; row < n; ++row) {
              R* const x = vectors + row * n + i;
              const R before = x[0];
              x[0] = c * before - s * x[1];
              x[1] = s * before + c * x[1];
            }
          });
      if (!found) std::fill_n(values, n, std::numeric_limits<R>::quiet_NaN());
    }
    return Status::Ok();
  }

  Status Merge(Stream, const StackedMerges<R>& merges, const MergedPairs<R>& pairs) override {
    const int64_t k = merges.k;
    for (int64_t i = 0; i < merges.count; ++i) {
      HostMerge<R> merge(k, merges.gap, merges.high + i * k, merges.low + i * k, merges.z + i * k,
                         merges.rho[i]);
      merge.FindRoots();
      merge.RefineZ();
      merge.Write(i, pairs);
    }
    return Status::Ok();
  }

  Status FactorLu(Stream, int64_t count, int64_t n, T* a, int32_t* pivots) override {
    for (int64_t i = 0; i < count; ++i) FactorOne(n, a + i * n * n, pivots + i * n);
    return Status::Ok();
  }

  Status Multiply(Stream stream, bool transposed, int64_t count, int64_t m, int64_t n, int64_t k,
                  const T* x, const T* y, T* product) override {
    for (int64_t i = 0; i < count; ++i) {
      JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, transposed ? Op::kTrans : Op::kNone, Op::kNone, n, m,
                                       k, 1, y + i * n * k, transposed ? k : n, x + i * m * k, k, 0,
                                       product + i * m * n, n));
    }
    return Status::Ok();
  }

 private:
  static void FactorOne(int64_t n, T* a, int32_t* pivots) {
    for (int64_t j = 0; j < n; ++j) {
      int64_t chosen = j;
      for (int64_t i = j + 1; i < n; ++i) {
        if (Size(a[i * n + j]) > Size(a[chosen * n + j])) chosen = i;
      }
      pivots[j] = static_cast<int32_t>(chosen);
      if (chosen != j) std::swap_ranges(a + j * n, a + (j + 1) * n, a + chosen * n);
      const T pivot = a[j * n + j];
      for (int64_t i = j + 1; i < n; ++i) {
        T* const row = a + i * n;
        if (pivot != T(0)) row[j] /= pivot;
        for (int64_t c = j + 1; c < n; ++c) row[c] -= row[j] * a[j * n + c];
      }
    }
  }

  // What LAPACK takes the largest of.
  static R Size(T x) { return std::abs(std::real(x)) + std::abs(std::imag(x)); }

  Blas<T>& blas_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_STACKS_H_
