// StackElements of the host, the GPU kernels run on the host, and the iterations that consist of
// them.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/engine/stacks/iterations.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/stacks/element_stacks.cuh"
#pragma GCC diagnostic pop

namespace jaxmg::testing {
namespace {

using host_cuda::Cast;
using host_cuda::Launch;

// Launches the kernels like CudaElements, in `pieces` pieces.
template <typename T>
class EmulatedElements : public StackElements<T> {
  using R = Real<T>;

 public:
  explicit EmulatedElements(int pieces) : pieces_(pieces) {}

  Status Scale(Stream, int64_t count, int64_t size, int64_t step, const T* a, T* scaled,
               int32_t* exponents) override {
    std::vector<unsigned long long> largest(count * pieces_);
    Run(count, [&] { kernels::LargestOfStack(size, pieces_, Cast(a), largest.data()); });
    Run(count, [&] {
      kernels::ScaleStack(size, pieces_, static_cast<int>(step), largest.data(), Cast(a),
                          Cast(scaled), exponents);
    });
    return Status::Ok();
  }
  Status Sum(Stream, StackedSum what, int64_t count, int64_t size, int64_t n, const T* x,
             const T* y, double* sums) override {
    std::vector<double> parts(count * pieces_);
    Run(count, [&] {
      kernels::SumStack(static_cast<int>(what), size, pieces_, n, Cast(x), Cast(y), parts.data());
    });
    // Runs with fewer threads than matrices.
    Launch(1, 2, 1, [&] { kernels::AddStackParts(count, pieces_, parts.data(), sums); });
    return Status::Ok();
  }
  Status DivideByRoots(Stream, int64_t count, int64_t size, const double* sums, const T* a,
                       T* x) override {
    Run(count, [&] { kernels::DivideStack(size, pieces_, sums, Cast(a), Cast(x)); });
    return Status::Ok();
  }
  Status Combine(Stream, int64_t count, int64_t size, int64_t n, const StackedTerms<T>& terms,
                 T* out) override {
    Run(count, [&] {
      kernels::CombineStack(size, pieces_, n, Cast(terms.x), Cast(terms.y), terms.of_x, terms.of_y,
                            terms.of_identity, terms.divisor, Cast(out));
    });
    return Status::Ok();
  }
  Status MakeHermitian(Stream, int64_t count, int64_t n, T* a) override {
    Run(count, [&] { kernels::MakeStackHermitian(pieces_, n, Cast(a)); });
    return Status::Ok();
  }

 private:
  template <typename F>
  void Run(int64_t count, const F& kernel) {
    Launch(static_cast<unsigned>(count * pieces_), kStackElementThreads, 1, kernel);
  }

  const int pieces_;
};

template <typename T>
struct Rand {
  T operator()() {
    if constexpr (std::is_same_v<T, Real<T>>) {
      return uniform(random);
    } else {
      return {uniform(random), uniform(random)};
    }
  }
  std::mt19937_64 random{5};
  std::uniform_real_distribution<Real<T>> uniform{-1, 1};
};

template <typename T>
void ForBoth(const std::function<void(StackElements<T>&)>& check) {
  check(NewHostDevice()->template elements<T>());
  for (int pieces : {1, 3}) {
    EmulatedElements<T> emulated(pieces);
    check(emulated);
  }
}

template <typename T>
void CheckScales() {
  using R = Real<T>;
  using Limits = std::numeric_limits<R>;
  constexpr int64_t kSize = 7;
  struct Case {
    R largest;
    int step, exponent;
  };
  const int least = Limits::min_exponent - 1, most = Limits::max_exponent - 1;
  const std::vector<Case> cases = {
      {R(1), 1, 0},
      {R(-1.75), 1, 0},
      {R(0.75), 1, -1},
      {R(0), 1, 0},
      {Limits::infinity(), 1, 0},
      {Limits::quiet_NaN(), 1, 0},
      {Limits::denorm_min(), 1, least},
      {Limits::min(), 1, least},
      {Limits::max(), 1, most},
      {R(40), 3, 3},
      {R(0.75), 3, -3},
      {R(0.1), 4, -4},
  };
  ForBoth<T>([&](StackElements<T>& elements) {
    for (const Case& one : cases) {
      for (int64_t place : {int64_t{0}, kSize - 1}) {
        for (bool imaginary : {false, true}) {
          // The second matrix must not be affected.
          std::vector<T> a(2 * kSize, T(0)), scaled(2 * kSize);
          std::vector<int32_t> exponents(2);
          R* const parts = reinterpret_cast<R*>(a.data() + place);
          parts[imaginary && sizeof(T) > sizeof(R) ? 1 : 0] = one.largest;
          a[kSize + 2] = R(6);
          EXPECT(elements
                     .Scale(Stream::kMain, 2, kSize, one.step, a.data(), scaled.data(),
                            exponents.data())
                     .ok());
          EXPECT(exponents[0] == one.exponent);
          EXPECT(exponents[1] == 2 / one.step * one.step);
          for (int64_t i = 0; i < 2 * kSize; ++i) {
            const int exponent = exponents[i / kSize];
            const R* const from = reinterpret_cast<const R*>(a.data() + i);
            const R* const to = reinterpret_cast<const R*>(scaled.data() + i);
            for (size_t part = 0; part < sizeof(T) / sizeof(R); ++part) {
              const R exact = std::ldexp(from[part], -exponent);
              EXPECT(to[part] == exact || (std::isnan(exact) && std::isnan(to[part])));
            }
          }
        }
      }
    }
  });
}

template <typename T>
void CheckSumsAndCombinations() {
  using R = Real<T>;
  constexpr int64_t kCount = 3, kN = 5, kSize = kN * kN;
  Rand<T> random;
  std::vector<T> x(kCount * kSize), y(x.size());
  for (T& value : x) value = random();
  for (T& value : y) value = random();
  const std::vector<R> of_x = {2, 0, -1}, of_y = {0.5, 3, 0}, of_identity = {0, 1, 4};
  std::fill_n(x.begin() + kSize, kSize, std::numeric_limits<R>::quiet_NaN());  // isn't read
  const double eps = std::numeric_limits<R>::epsilon();
  ForBoth<T>([&](StackElements<T>& elements) {
    std::vector<double> sums(kCount);
    for (auto what : {StackedSum::kInner, StackedSum::kDifference, StackedSum::kFromIdentity}) {
      EXPECT(elements.Sum(Stream::kMain, what, kCount, kSize, kN, x.data(), y.data(), sums.data())
                 .ok());
      for (int64_t matrix : {0, 2}) {
        double exact = 0;
        for (int64_t i = 0; i < kSize; ++i) {
          const std::complex<double> a = x[matrix * kSize + i], b = y[matrix * kSize + i];
          const double one = i % (kN + 1) == 0 ? 1 : 0;
          exact += what == StackedSum::kInner        ? std::real(std::conj(a) * b)
                   : what == StackedSum::kDifference ? std::norm(a - b)
                                                     : std::norm(a - one);
        }
        EXPECT(std::abs(sums[matrix] - exact) <= 50 * eps * (1 + std::abs(exact)));
      }
      EXPECT(std::isnan(sums[1]));
    }
    std::vector<T> out(x.size());
    const StackedTerms<T> terms = {x.data(),    y.data(),           of_x.data(),
                                   of_y.data(), of_identity.data(), R(4)};
    EXPECT(elements.Combine(Stream::kMain, kCount, kSize, kN, terms, out.data()).ok());
    for (int64_t i = 0; i < kCount * kSize; ++i) {
      const int64_t matrix = i / kSize;
      T exact = matrix == 1 ? T(0) : of_x[matrix] * x[i];
      exact += of_y[matrix] * y[i];
      if (i % kSize % (kN + 1) == 0) exact += of_identity[matrix];
      EXPECT(std::abs(out[i] - exact / R(4)) <= 4 * eps);
    }
    const StackedTerms<T> only = {y.data(), nullptr, of_x.data(), nullptr, nullptr, R(1)};
    EXPECT(elements.Combine(Stream::kMain, kCount, kSize, kN, only, out.data()).ok());
    EXPECT(out[0] == R(2) * y[0] && out[kSize] == T(0) && out[2 * kSize] == -y[2 * kSize]);
    // A matrix whose sum is 0 must not change.
    out = y;
    const std::vector<double> squares = {4, 0, 0.25};
    const auto divide = [&](const T* a) {
      EXPECT(
          elements.DivideByRoots(Stream::kMain, kCount, kSize, squares.data(), a, out.data()).ok());
      EXPECT(out[3] == y[3] / R(2) && out[kSize] == y[kSize] &&
             out[kCount * kSize - 1] == y[kCount * kSize - 1] * R(2));
    };
    divide(y.data());
    out = y;
    divide(out.data());
    // Threads have several elements, some one less than others; one root is outside of float's
    // range.
    constexpr int64_t kMany = 4099;
    std::vector<T> many(2 * kMany), parts(many.size());
    std::generate(many.begin(), many.end(), Rand<T>());
    const std::vector<double> roots = {16.0 * std::numeric_limits<float>::max(), 2};
    const std::vector<double> of_many = {roots[0] * roots[0], 4};
    for (int64_t i = 0; i < kMany; ++i) many[i] *= std::numeric_limits<float>::max() / 4;
    EXPECT(
        elements.DivideByRoots(Stream::kMain, 2, kMany, of_many.data(), many.data(), parts.data())
            .ok());
    for (size_t i = 0; i < many.size(); ++i) {
      const R exact = static_cast<R>(std::real(many[i]) / roots[i / kMany]);
      EXPECT(std::abs(std::real(parts[i]) - exact) <= 2 * eps * std::abs(exact));
    }
    out = y;
    EXPECT(elements.MakeHermitian(Stream::kMain, kCount, kN, out.data()).ok());
    for (int64_t matrix = 0; matrix < kCount; ++matrix) {
      for (int64_t i = 0; i < kN; ++i) {
        for (int64_t j = 0; j < kN; ++j) {
          const T *a = y.data() + matrix * kSize,
                  exact = (a[i * kN + j] + Conj(a[j * kN + i])) / R(2);
          EXPECT(std::abs(out[matrix * kSize + i * kN + j] - exact) <= eps);
        }
      }
    }
  });
}

// Returns max |X Y - Z|, or max |X^H Y - Z| if `adjoint`, for n x n matrices. A null Z is the
// identity.
template <typename T>
Real<T> Apart(int64_t n, bool adjoint, const T* x, const T* y, const T* z) {
  Real<T> most = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T sum = z == nullptr ? T(i == j ? -1 : 0) : -z[i * n + j];
      for (int64_t k = 0; k < n; ++k) {
        sum += (adjoint ? Conj(x[k * n + i]) : x[i * n + k]) * y[k * n + j];
      }
      if (!(std::abs(sum) <= most)) most = std::abs(sum);
    }
  }
  return most;
}

// Checks a matrix of full rank, a huge and a tiny one, one of rank 1, zeros, and one with NaN.
template <typename T>
void CheckPolar() {
  using R = Real<T>;
  constexpr int64_t kCount = 6, kN = 6, kSize = kN * kN;
  Rand<T> random;
  std::vector<T> a(kCount * kSize), u(a.size()), h(a.size());
  for (T& value : a) value = random();
  const int far = std::numeric_limits<R>::max_exponent - 8;
  for (int64_t i = 0; i < kSize; ++i) {
    a[kSize + i] *= std::ldexp(R(1), far);
    a[2 * kSize + i] *= std::ldexp(R(1), -far);
    a[3 * kSize + i] = a[i / kN] * a[i % kN];
    a[4 * kSize + i] = 0;
  }
  a[5 * kSize + 3] = std::numeric_limits<R>::quiet_NaN();
  std::vector<int32_t> exponents(kCount);
  const auto device = NewHostDevice();
  EXPECT(PolarOfStack(*device, kCount, kN, a.data(), u.data(), h.data(), exponents.data()).ok());
  const R limit = 200 * std::numeric_limits<R>::epsilon();
  for (int64_t matrix = 0; matrix + 1 < kCount; ++matrix) {
    const T* const q = u.data() + matrix * kSize;
    EXPECT(Apart<T>(kN, true, q, q, nullptr) <= limit);
    std::vector<T> scaled(kSize);
    for (int64_t i = 0; i < kSize; ++i) {
      const int half = -exponents[matrix] / 2;
      scaled[i] = a[matrix * kSize + i] * std::ldexp(R(1), half);
      scaled[i] *= std::ldexp(R(1), -exponents[matrix] - half);
    }
    EXPECT(Apart<T>(kN, false, q, h.data() + matrix * kSize, scaled.data()) <= 10 * limit);
  }
  EXPECT(std::isnan(std::real(u[5 * kSize])));
  std::vector<T> only(a.size());
  EXPECT(
      PolarOfStack<T>(*device, kCount, kN, a.data(), only.data(), nullptr, exponents.data()).ok());
  EXPECT(std::equal(u.begin(), u.begin() + 5 * kSize, only.begin()));
}

template <typename T>
void CheckRoots() {
  using R = Real<T>;
  constexpr int64_t kCount = 3, kN = 5, kSize = kN * kN;
  Rand<T> random;
  std::vector<T> x(kCount * kSize), a(x.size()), roots(x.size());
  for (T& value : x) value = random();
  for (int64_t e = 0; e < kCount * kSize; ++e) {
    const int64_t matrix = e / kSize, i = e % kSize / kN, j = e % kN;
    const T* const of = x.data() + matrix * kSize;
    for (int64_t k = 0; k < kN; ++k) a[e] += of[i * kN + k] * Conj(of[j * kN + k]);
    if (i == j) a[e] += R(0.3);
    a[e] *= std::ldexp(R(1), matrix == 1 ? 40 : 0);
  }
  a[2 * kSize] = -1;  // not positive definite
  const auto device = NewHostDevice();
  for (int64_t p : {1, 2, 3, 5, 34}) {
    EXPECT(InverseRootsOfStack(*device, kCount, kN, p, 0.0, a.data(), roots.data()).ok());
    for (int64_t matrix : {0, 1}) {
      std::vector<T> product(a.begin() + matrix * kSize, a.begin() + (matrix + 1) * kSize);
      for (int64_t power = 0; power < p; ++power) {
        std::vector<T> next(kSize), zero(kSize);
        for (int64_t i = 0; i < kN; ++i) {
          for (int64_t j = 0; j < kN; ++j) {
            for (int64_t k = 0; k < kN; ++k) {
              next[i * kN + j] += roots[matrix * kSize + i * kN + k] * product[k * kN + j];
            }
          }
        }
        product = next;
      }
      std::vector<T> eye(kSize);
      for (int64_t i = 0; i < kN; ++i) eye[i * (kN + 1)] = 1;
      const R limit = 100000 * static_cast<R>(p) * std::numeric_limits<R>::epsilon();
      const R apart = Apart<T>(kN, false, product.data(), eye.data(), nullptr);
      EXPECT(apart <= limit) << "p = " << p << ", matrix " << matrix << ": " << apart;
    }
  }
}

// Checks diagonal matrices; in some, one error is just below another that isn't in the region of
// convergence yet.
template <typename T>
void CheckRootsOfDiagonals() {
  using R = Real<T>;
  constexpr int64_t kCount = 200;
  std::vector<T> a(4 * kCount), roots(a.size());
  for (int64_t i = 0; i < kCount; ++i) {
    a[4 * i] = 1;
    a[4 * i + 3] = std::pow(R(10), -3 * static_cast<R>(i) / kCount);
  }
  const auto device = NewHostDevice();
  for (int64_t p : {1, 2, 4}) {
    EXPECT(InverseRootsOfStack(*device, kCount, 2, p, 0.0, a.data(), roots.data()).ok());
    for (int64_t i = 0; i < kCount; ++i) {
      const R root = std::real(roots[4 * i + 3]), value = std::real(a[4 * i + 3]);
      EXPECT(std::abs(root * std::pow(value, 1 / static_cast<R>(p)) - 1) <=
             1000 * std::numeric_limits<R>::epsilon())
          << "p = " << p << ": " << root << " of " << value;
    }
  }
}

template <typename T>
void CheckAll() {
  CheckScales<T>();
  CheckSumsAndCombinations<T>();
  CheckPolar<T>();
  CheckRoots<T>();
  CheckRootsOfDiagonals<T>();
}

TEST(ElementsOfStacks) {
  CheckAll<float>();
  CheckAll<double>();
  CheckAll<std::complex<float>>();
  CheckAll<std::complex<double>>();
}

}  // namespace
}  // namespace jaxmg::testing
