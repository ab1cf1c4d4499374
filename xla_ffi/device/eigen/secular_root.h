// The iteration for one root of a secular equation, shared by the host and kernels. NVRTC compiles
// this header without the standard library.
//
// Source: R.-C. Li, Solving secular equations stably and efficiently (1993, LAPACK working note
// 89).
#ifndef JAXMG_XLA_FFI_DEVICE_EIGEN_SECULAR_ROOT_H_
#define JAXMG_XLA_FFI_DEVICE_EIGEN_SECULAR_ROOT_H_

#ifdef __CUDACC__
#define JAXMG_DEVICE __device__
#else
#include <cmath>
#define JAXMG_DEVICE
#endif

namespace jaxmg::secular {

#ifndef __CUDACC__
// CUDA has these functions without std.
using std::copysign;
using std::fabs;
using std::isfinite;
using std::sqrt;
#endif

// The sums of z^2 / (d - x) and of its derivative, over the poles below and above x.
template <typename R>
struct Sums {
  R below, below_slope, above, above_slope;
};

// A pole as the sum of two numbers, the second one much smaller than the first, so that the
// difference of nearby poles has all of its digits.
template <typename R>
struct TwoPartPole {
  R high, low;

  JAXMG_DEVICE R operator-(const TwoPartPole& other) const {
    return (high - other.high) + (low - other.low);
  }
  JAXMG_DEVICE bool operator==(const TwoPartPole& other) const {
    return high == other.high && low == other.low;
  }
};

// The poles whose parts are in two arrays.
template <typename R>
struct TwoPartPoles {
  const R *high, *low;

  JAXMG_DEVICE TwoPartPole<R> operator[](long long i) const { return {high[i], low[i]}; }
  JAXMG_DEVICE TwoPartPoles operator+(long long i) const { return {high + i, low + i}; }
};

// A root of 1/rho + sum_i z_i^2 / (d_i - x) = 0. A pole d_i is a Pole: a number, or any type that
// has differences. `Poles` does the O(k) work. Its Sums<R> SumsOf(end, begin, origin, tau) sums
// over poles [0, end) and [begin, k), at origin + tau; its R Squares() returns the sum of z^2. If
// several threads work on one root, these functions return equal values to all of them, so that all
// take the same branches here.
template <typename R, typename Poles, typename Pole = R>
class Root {
  using Index = long long;

 public:
  // `d` has the poles by index.
  template <typename D>
  JAXMG_DEVICE Root(const Poles& poles, Index k, const D& d, const R* z, R rho, Index j)
      : poles_(poles),
        k_(k),
        rho_(rho),
        inverse_rho_(1 / rho),
        last_(j == k - 1),
        left_(k == 1  ? 0
              : last_ ? k - 2
                      : j),
        right_(k == 1 ? 0 : left_ + 1),
        left_pole_(d[left_]),
        right_pole_(d[right_]),
        left_z_(z[left_]),
        right_z_(z[right_]) {}

  // Computes the root. Returns false if `limit` evaluations were not enough.
  JAXMG_DEVICE bool Find(int limit) {
    if (k_ == 1) {
      origin_ = left_pole_;
      tau_ = rho_ * left_z_ * left_z_;
      return true;
    }
    if (last_) {
      StartBeyond();
    } else {
      StartBetween();
    }
    return Iterate(limit);
  }
  JAXMG_DEVICE Pole origin() const { return origin_; }
  JAXMG_DEVICE R tau() const { return tau_; }

 private:
  static constexpr R kEps = sizeof(R) == 4 ? R(0x1p-24) : R(0x1p-53);

  JAXMG_DEVICE static R Larger(R a, R b) { return a < b ? b : a; }
  JAXMG_DEVICE static R Smaller(R a, R b) { return b < a ? b : a; }

  // Returns (b - sqrt(b^2 - 4 a c)) / (2 a), the root of a x^2 - b x + c between two poles, without
  // cancellation.
  JAXMG_DEVICE static R RootBetween(R a, R b, R c) {
    const R root = sqrt(Larger(b * b - 4 * a * c, 0));
    return b > 0 ? 2 * c / (b + root) : (b - root) / (2 * a);
  }
  // Returns the other root, outside of the interval of the two poles.
  JAXMG_DEVICE static R RootBeyond(R a, R b, R c) {
    const R root = sqrt(Larger(b * b - 4 * a * c, 0));
    return b < 0 ? 2 * c / (b - root) : (b + root) / (2 * a);
  }

  // Starts between two poles. The sign of the function in the middle determines the nearer pole.
  JAXMG_DEVICE void StartBetween() {
    const R gap = right_pole_ - left_pole_, middle = gap / 2;
    const R left = left_z_ * left_z_, right = right_z_ * right_z_;
    origin_ = left_pole_;
    const Sums<R> sums = poles_.SumsOf(left_, right_ + 1, origin_, middle);
    const R rest = inverse_rho_ + sums.below + sums.above;
    const R w = rest + (right - left) / middle;
    // A lower bound of the distance of the root from its pole: at this distance the pole's own term
    // equals the largest possible sum of all other terms, which is their sum in the middle.
    const R noise = 8 * kEps * (inverse_rho_ - sums.below + sums.above);
    if (w >= 0) {
      upper_ = middle;
      lower_ = Smaller(left / (2 * (w + left / middle + noise)), middle);
      tau_ = RootBetween(rest, rest * gap + left + right, left * gap);
    } else {
      origin_ = right_pole_;
      lower_ = -middle;
      upper_ = -Smaller(right / (2 * (right / middle - w + noise)), middle);
      tau_ = RootBetween(rest, -rest * gap + left + right, -right * gap);
    }
    if (!(lower_ <= tau_ && tau_ <= upper_)) tau_ = Bisected();
  }

  // Starts above the last pole.
  JAXMG_DEVICE void StartBeyond() {
    origin_ = right_pole_;
    lower_ = rho_ * right_z_ * right_z_ * (1 - 8 * kEps);
    upper_ = rho_ * poles_.Squares() * (1 + 8 * kEps);
    const R middle = Larger(upper_ / 2, lower_);
    const R gap = right_pole_ - left_pole_;
    const R left = left_z_ * left_z_, right = right_z_ * right_z_;
    const R rest = inverse_rho_ + poles_.SumsOf(left_, k_, origin_, middle).below;
    const R w = rest - left / (gap + middle) - right / middle;
    (w <= 0 ? lower_ : upper_) = middle;
    // rest + left / (-gap - tau) + right / (-tau) = 0
    tau_ = RootBeyond(rest, left + right - rest * gap, -right * gap);
    if (!(lower_ <= tau_ && tau_ <= upper_)) tau_ = Bisected();
  }

  // Returns the geometric mean of the bracket if it spans orders of magnitude, else its middle.
  JAXMG_DEVICE R Bisected() const {
    const R a = fabs(lower_), b = fabs(upper_);
    if (Larger(a, b) <= 4 * Smaller(a, b)) return lower_ + (upper_ - lower_) / 2;
    return copysign(sqrt(a) * sqrt(b), lower_);
  }

  JAXMG_DEVICE bool Iterate(int limit) {
    const bool from_left = origin_ == left_pole_;
    const R own = from_left ? left_z_ : right_z_;
    bool middle_way = last_;
    R before = 0;
    int poor = 0;
    for (int evaluation = 0; evaluation < limit; ++evaluation) {
      // Interpolates the sums by two rational functions with the same values and slopes at tau.
      // Each has one of the two poles next to the root (above the last pole: one of the last two).
      const Sums<R> sums = poles_.SumsOf(right_, right_, origin_, tau_);
      const R slope = sums.below_slope + sums.above_slope;
      const R w = inverse_rho_ + sums.below + sums.above;
      if (!isfinite(w) || !isfinite(slope)) return false;
      // The rounding error of w at the root.
      const R noise = 8 * (fabs(sums.below) + fabs(sums.above)) + inverse_rho_ + fabs(tau_) * slope;
      if (fabs(w) <= kEps * noise) return true;
      (w <= 0 ? lower_ : upper_) = tau_;
      // After a step with little progress it uses the other interpolation. After several such steps
      // it bisects, because both interpolations may alternate between the sides of the root.
      if (evaluation > 0 && fabs(w) > before / 10) {
        middle_way = last_ || !middle_way;
        ++poor;
      }
      before = fabs(w);

      const R to_left = (left_pole_ - origin_) - tau_, to_right = (right_pole_ - origin_) - tau_;
      R c;
      if (middle_way) {
        c = w - to_left * sums.below_slope - to_right * sums.above_slope;
      } else {
        // The nearer pole has its own weight, and the other one the rest of the slope.
        const R ratio = own / (from_left ? to_left : to_right);
        const R gap = right_pole_ - left_pole_;
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
      const bool still =
          fabs(next - tau_) <= kEps * fabs(tau_) || upper_ - lower_ <= 2 * kEps * fabs(tau_);
      tau_ = next;
      if (still) return true;
    }
    return false;
  }

  const Poles& poles_;
  const Index k_;
  const R rho_, inverse_rho_;
  const bool last_;
  const Index left_, right_;
  const Pole left_pole_, right_pole_;
  const R left_z_, right_z_;
  Pole origin_ = {};
  R tau_ = 0;
  R lower_ = 0, upper_ = 0;  // bounds of tau, with the sign of tau
};

}  // namespace jaxmg::secular

#undef JAXMG_DEVICE

#endif  // JAXMG_XLA_FFI_DEVICE_EIGEN_SECULAR_ROOT_H_
