// SecularKernels on the host. Included only by device.cc.
//
// Source of the refined z: M. Gu and S. Eisenstat, A divide-and-conquer algorithm for the symmetric
// tridiagonal eigenproblem (1995).
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_SECULAR_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_SECULAR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "xla_ffi/device/eigen/secular_kernels.h"
#include "xla_ffi/device/eigen/secular_root.h"

namespace jaxmg {

// The sums over the poles in the iteration for a root. D has the poles by index.
template <typename R, typename D = const R*>
class HostPoles {
 public:
  HostPoles(int64_t k, D d, const R* z) : k_(k), d_(d), z_(z) {}

  template <typename Pole>
  secular::Sums<R> SumsOf(int64_t end, int64_t begin, Pole origin, R tau) const {
    const Sum below = SumOf(0, end, origin, tau), above = SumOf(begin, k_, origin, tau);
    return {below.value, below.slope, above.value, above.slope};
  }

  R Squares() const {
    R sum = 0;
    for (int64_t i = 0; i < k_; ++i) sum += z_[i] * z_[i];
    return sum;
  }

 private:
  struct Sum {
    R value = 0, slope = 0;
  };

  // Sums over poles [begin, end), in lanes that the compiler vectorizes.
  template <typename Pole>
  Sum SumOf(int64_t begin, int64_t end, Pole origin, R tau) const {
    constexpr int kLanes = 8;
    R value[kLanes] = {}, slope[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const D d = d_ + i;
      const R* z = z_ + i;
      for (int lane = 0; lane < kLanes; ++lane) {
        const R ratio = z[lane] / ((d[lane] - origin) - tau);
        value[lane] += z[lane] * ratio;
        slope[lane] += ratio * ratio;
      }
    }
    Sum sum;
    for (; i < end; ++i) {
      const R ratio = z_[i] / ((d_[i] - origin) - tau);
      sum.value += z_[i] * ratio;
      sum.slope += ratio * ratio;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      sum.value += value[lane];
      sum.slope += slope[lane];
    }
    return sum;
  }

  const int64_t k_;
  const D d_;
  const R* const z_;
};

// Computes element i of the refined z; `d` and `origin` have the poles by index. Pairs each root
// with the pole on its other side, so that all factors are between 0 and 1. Then no partial product
// underflows unless the whole product does.
template <typename R, typename D>
R RefinedElement(int64_t k, int64_t i, D d, R z, R rho, D origin, const R* tau) {
  constexpr int kLanes = 8;
  const auto pole = d[i];
  R lanes[kLanes];
  std::fill_n(lanes, kLanes, R(1));
  R product = ((origin[k - 1] - pole) + tau[k - 1]) / rho;
  // Multiplies the factors of roots [first, last): root j divided by pole j + shift.
  auto multiply = [&](int64_t first, int64_t last, int64_t shift) {
    int64_t j = first;
    for (; j + kLanes <= last; j += kLanes) {
      const D from = origin + j, other = d + (j + shift);
      const R* distance = tau + j;
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] *= ((from[lane] - pole) + distance[lane]) / (other[lane] - pole);
      }
    }
    for (; j < last; ++j) product *= ((origin[j] - pole) + tau[j]) / (d[j + shift] - pole);
  };
  multiply(0, i, 0);
  multiply(i, k - 1, 1);
  for (R lane : lanes) product *= lane;
  return std::copysign(std::sqrt(std::abs(product)), z);
}

template <typename T>
class HostSecular : public SecularKernels<T> {
  using R = Real<T>;

 public:
  Status Roots(Stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z, R rho,
               int limit, R* origin, R* tau, R* roots, int32_t* info) override {
    const HostPoles<R> poles(k, d, z);
    for (int64_t j = begin; j < end; ++j) {
      secular::Root<R, HostPoles<R>> root(poles, k, d, z, rho, j);
      if (!root.Find(limit)) *info = 1;
      origin[j] = root.origin();
      tau[j] = root.tau();
      roots[j] = root.origin() + root.tau();
    }
    return Status::Ok();
  }

  Status RefineZ(Stream, int64_t k, int64_t begin, int64_t end, const int32_t* order, const R* d,
                 const R* z, R rho, const R* origin, const R* tau, R* refined) override {
    for (int64_t g = begin; g < end; ++g) {
      refined[g] = RefinedElement(k, order[g], d, z[order[g]], rho, origin, tau);
    }
    return Status::Ok();
  }

  Status Vectors(Stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z,
                 const R* origin, const R* tau, R* u, int64_t ldu) override {
    constexpr int kLanes = 8;
    for (int64_t j = begin; j < end; ++j, u += ldu) {
      const R from = origin[j], distance = tau[j];
      R lanes[kLanes] = {};
      int64_t g = 0;
      for (; g + kLanes <= k; g += kLanes) {
        R values[kLanes];  // unlike u, can't alias z and d
        for (int lane = 0; lane < kLanes; ++lane) {
          values[lane] = z[g + lane] / ((d[g + lane] - from) - distance);
          lanes[lane] += values[lane] * values[lane];
        }
        std::copy_n(values, kLanes, u + g);
      }
      R sum = 0;
      for (; g < k; ++g) {
        u[g] = z[g] / ((d[g] - from) - distance);
        sum += u[g] * u[g];
      }
      for (R lane : lanes) sum += lane;
      const R scale = 1 / std::sqrt(sum);
      for (g = 0; g < k; ++g) u[g] *= scale;
    }
    return Status::Ok();
  }

  Status RotateColumns(Stream, int64_t rows, int64_t chains, const int32_t* starts,
                       const int32_t* first, const int32_t* second, const R* c, const R* s, R* q,
                       int64_t ldq) override {
    for (int64_t i = 0; i < (chains > 0 ? starts[chains] : 0); ++i) {
      R *x = q + first[i] * ldq, *y = q + second[i] * ldq;
      for (int64_t row = 0; row < rows; ++row) {
        const R old = x[row];
        x[row] = c[i] * old + s[i] * y[row];
        y[row] = c[i] * y[row] - s[i] * old;
      }
    }
    return Status::Ok();
  }

  Status CopyColumns(Stream, int64_t rows, int64_t columns, const int32_t* from, const R* source,
                     int64_t lds, const int32_t* to, R* target, int64_t ldt) override {
    for (int64_t j = 0; j < columns; ++j) {
      std::copy_n(source + (from != nullptr ? from[j] : j) * lds, rows,
                  target + (to != nullptr ? to[j] : j) * ldt);
    }
    return Status::Ok();
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_SECULAR_H_
