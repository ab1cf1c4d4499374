// The merges of divide and conquer on the host. Included by host.cc alone.
//
// Sources: R.-C. Li, Solving secular equations stably and efficiently (1993, LAPACK working note
// 89), for the iteration; M. Gu and S. Eisenstat, A divide-and-conquer algorithm for the symmetric
// tridiagonal eigenproblem (1995), for the refined z.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_SECULAR_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_SECULAR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "xla_ffi/device/secular_kernels.h"

namespace jaxmg {

// One root of the secular equation, divided by rho: 1/rho + sum_i z_i^2 / (d_i - x) = 0.
template <typename R>
class SecularRoot {
 public:
  SecularRoot(int64_t k, const R* d, const R* z, R rho, int64_t j)
      : k_(k),
        d_(d),
        z_(z),
        inverse_rho_(1 / rho),
        last_(j == k - 1),
        left_(last_ ? k - 2 : j),
        right_(left_ + 1) {}

  // False where `limit` evaluations were too few.
  bool Find(R rho, int limit) {
    if (k_ == 1) {
      origin_ = d_[0];
      tau_ = rho * z_[0] * z_[0];
      return true;
    }
    if (last_) {
      StartBeyond(rho);
    } else {
      StartBetween();
    }
    return Iterate(limit);
  }
  R origin() const { return origin_; }
  R tau() const { return tau_; }

 private:
  static constexpr R kEps = std::numeric_limits<R>::epsilon() / 2;

  // A sum of z^2 / (d - x) and its derivative.
  struct Sum {
    R value = 0, slope = 0;
  };

  // Of poles [begin, end). In lanes, which the compiler makes vectors of.
  Sum SumOf(int64_t begin, int64_t end, R tau) const {
    constexpr int kLanes = 8;
    R value[kLanes] = {}, slope[kLanes] = {};
    const R origin = origin_;
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const R *d = d_ + i, *z = z_ + i;
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

  R Distance(int64_t i, R tau) const { return (d_[i] - origin_) - tau; }

  // (b - sqrt(b^2 - 4 a c)) / (2 a), a root of a x^2 - b x + c, without cancellation: of the
  // equations here the one between two poles.
  static R RootBetween(R a, R b, R c) {
    const R root = std::sqrt(std::max<R>(b * b - 4 * a * c, 0));
    return b > 0 ? 2 * c / (b + root) : (b - root) / (2 * a);
  }
  // The other one: beyond both.
  static R RootBeyond(R a, R b, R c) {
    const R root = std::sqrt(std::max<R>(b * b - 4 * a * c, 0));
    return b < 0 ? 2 * c / (b - root) : (b + root) / (2 * a);
  }

  // Between two poles. The sign in the middle says which of them is nearer.
  void StartBetween() {
    const R gap = d_[right_] - d_[left_], middle = gap / 2;
    const R left = z_[left_] * z_[left_], right = z_[right_] * z_[right_];
    origin_ = d_[left_];
    const Sum below = SumOf(0, left_, middle), above = SumOf(right_ + 1, k_, middle);
    const R rest = inverse_rho_ + below.value + above.value;
    const R w = rest + (right - left) / middle;
    // How far the root is from its pole at least: there the pole's own term makes up for all
    // others, which grow no larger than they are in the middle.
    const R noise = 8 * kEps * (inverse_rho_ - below.value + above.value);
    if (w >= 0) {
      upper_ = middle;
      lower_ = std::min(left / (2 * (w + left / middle + noise)), middle);
      tau_ = RootBetween(rest, rest * gap + left + right, left * gap);
    } else {
      origin_ = d_[right_];
      lower_ = -middle;
      upper_ = -std::min(right / (2 * (right / middle - w + noise)), middle);
      tau_ = RootBetween(rest, -rest * gap + left + right, -right * gap);
    }
    if (!(lower_ <= tau_ && tau_ <= upper_)) tau_ = Bisected();
  }

  // Beyond the last pole.
  void StartBeyond(R rho) {
    origin_ = d_[right_];
    R sum = 0;
    for (int64_t i = 0; i < k_; ++i) sum += z_[i] * z_[i];
    lower_ = rho * z_[right_] * z_[right_] * (1 - 8 * kEps);
    upper_ = rho * sum * (1 + 8 * kEps);
    const R middle = std::max(upper_ / 2, lower_);
    const R gap = d_[right_] - d_[left_];
    const R left = z_[left_] * z_[left_], right = z_[right_] * z_[right_];
    const R rest = inverse_rho_ + SumOf(0, left_, middle).value;
    const R w = rest - left / (gap + middle) - right / middle;
    (w <= 0 ? lower_ : upper_) = middle;
    // rest + left / (-gap - tau) + right / (-tau) = 0
    tau_ = RootBeyond(rest, left + right - rest * gap, -right * gap);
    if (!(lower_ <= tau_ && tau_ <= upper_)) tau_ = Bisected();
  }

  // Of a bracket that spans orders of magnitude, the middle of these.
  R Bisected() const {
    const R a = std::abs(lower_), b = std::abs(upper_);
    if (std::max(a, b) <= 4 * std::min(a, b)) return lower_ + (upper_ - lower_) / 2;
    return std::copysign(std::sqrt(a) * std::sqrt(b), lower_);
  }

  bool Iterate(int limit) {
    const R own = origin_ == d_[left_] ? z_[left_] : z_[right_];
    bool middle_way = last_;
    R before = 0;
    int poor = 0;
    for (int evaluation = 0; evaluation < limit; ++evaluation) {
      // Two rational functions, each with one of the two poles beside the root (beyond the last
      // pole: the last two), that have the sums' values and slopes at tau.
      const Sum psi = SumOf(0, right_, tau_), phi = SumOf(right_, k_, tau_);
      const R slope = psi.slope + phi.slope;
      const R w = inverse_rho_ + psi.value + phi.value;
      if (!std::isfinite(w) || !std::isfinite(slope)) return false;
      // What rounding alone makes of w at the root.
      const R noise =
          8 * (std::abs(psi.value) + std::abs(phi.value)) + inverse_rho_ + std::abs(tau_) * slope;
      if (std::abs(w) <= kEps * noise) return true;
      (w <= 0 ? lower_ : upper_) = tau_;
      // A step that brought little is not taken in the same way again; after some of these, neither
      // way helps: they may lead from one side of the root to the other and back.
      if (evaluation > 0 && std::abs(w) > before / 10) {
        middle_way = last_ || !middle_way;
        ++poor;
      }
      before = std::abs(w);

      const R to_left = Distance(left_, tau_), to_right = Distance(right_, tau_);
      R c;
      if (middle_way) {
        c = w - to_left * psi.slope - to_right * phi.slope;
      } else {
        // The nearer pole with its own weight, the other one with what is left of the slope.
        const bool from_left = origin_ == d_[left_];
        const R ratio = own / (from_left ? to_left : to_right);
        const R gap = d_[right_] - d_[left_];
        c = from_left ? w - to_right * slope + gap * ratio * ratio
                      : w - to_left * slope - gap * ratio * ratio;
      }
      const R a = (to_left + to_right) * w - to_left * to_right * slope;
      const R b = to_left * to_right * w;
      R step = c == 0 ? b / a : last_ ? RootBeyond(c, a, b) : RootBetween(c, a, b);
      if (!(w * step < 0)) step = -w / slope;
      R next = tau_ + step;
      if (poor == 3 || !(lower_ < next && next < upper_)) {
        next = Bisected();
        poor = 0;
      }
      const bool still = std::abs(next - tau_) <= kEps * std::abs(tau_) ||
                         upper_ - lower_ <= 2 * kEps * std::abs(tau_);
      tau_ = next;
      if (still) return true;
    }
    return false;
  }

  const int64_t k_;
  const R *const d_, *const z_;
  const R inverse_rho_;
  const bool last_;
  const int64_t left_, right_;  // poles
  R origin_ = 0, tau_ = 0;
  R lower_ = 0, upper_ = 0;  // of tau, both of its sign
};

template <typename T>
class HostSecular : public SecularKernels<T> {
  using R = Real<T>;

 public:
  Status Roots(Stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z, R rho,
               int limit, R* origin, R* tau, R* roots, int32_t* info) override {
    for (int64_t j = begin; j < end; ++j) {
      SecularRoot<R> root(k, d, z, rho, j);
      if (!root.Find(rho, limit)) *info = 1;
      origin[j] = root.origin();
      tau[j] = root.tau();
      roots[j] = root.origin() + root.tau();
    }
    return Status::Ok();
  }

  Status RefineZ(Stream, int64_t k, int64_t begin, int64_t end, const int32_t* order, const R* d,
                 const R* z, R rho, const R* origin, const R* tau, R* refined) override {
    // Of factors between 0 and 1, so that no product of some of them underflows where that of all
    // does not: each root with the pole on its other side.
    constexpr int kLanes = 8;
    for (int64_t g = begin; g < end; ++g) {
      const int64_t i = order[g];
      const R pole = d[i];
      R lanes[kLanes];
      std::fill_n(lanes, kLanes, R(1));
      R product = ((origin[k - 1] - pole) + tau[k - 1]) / rho;
      // Roots [first, last), root j divided by pole j + shift.
      auto multiply = [&](int64_t first, int64_t last, int64_t shift) {
        int64_t j = first;
        for (; j + kLanes <= last; j += kLanes) {
          const R *from = origin + j, *distance = tau + j, *other = d + j + shift;
          for (int lane = 0; lane < kLanes; ++lane) {
            lanes[lane] *= ((from[lane] - pole) + distance[lane]) / (other[lane] - pole);
          }
        }
        for (; j < last; ++j) {
          product *= ((origin[j] - pole) + tau[j]) / (d[j + shift] - pole);
        }
      };
      multiply(0, i, 0);
      multiply(i, k - 1, 1);
      for (R lane : lanes) product *= lane;
      refined[g] = std::copysign(std::sqrt(std::abs(product)), z[i]);
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
        R values[kLanes];  // which, unlike u, can't be where z and d are
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

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_SECULAR_H_
