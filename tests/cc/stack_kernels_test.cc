// StackKernels of the host, and the GPU kernels run on the host.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/stacks/lu_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/secular_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/tridiagonal_stacks.cuh"
#pragma GCC diagnostic pop

namespace jaxmg::testing {
namespace {

using host_cuda::Launch;

// Launches the kernels like CudaStacks, but with few threads, which take less time here.
template <typename R>
class EmulatedStacks : public StackKernels<R> {
 public:
  explicit EmulatedStacks(unsigned threads) : threads_(threads) {}

  Status Merge(Stream, const StackedMerges<R>& merges, const MergedPairs<R>& pairs) override {
    const int64_t k = merges.k;
    const auto poles = static_cast<unsigned>(merges.count * k);
    std::vector<int> places(poles);
    std::vector<R> high(poles), low(poles), z(poles), origin_high(poles), origin_low(poles),
        tau(poles), refined(poles);
    // Fewer threads than poles, so that each thread has several.
    Launch(1, threads_, 1, [&] {
      kernels::SortPoles(merges.count, k, merges.gap, merges.high, merges.low, merges.z,
                         places.data(), high.data(), low.data(), z.data());
    });
    Launch(poles, threads_, 1, [&] {
      kernels::StackedRoots(k, high.data(), low.data(), z.data(), merges.rho, origin_high.data(),
                            origin_low.data(), tau.data());
    });
    Launch(poles, threads_, 1, [&] {
      kernels::RefineStackedZ(k, high.data(), low.data(), z.data(), merges.rho, origin_high.data(),
                              origin_low.data(), tau.data(), refined.data());
    });
    Launch(poles, threads_, 1, [&] {
      kernels::StackedVectors(k, places.data(), high.data(), low.data(), refined.data(),
                              origin_high.data(), origin_low.data(), tau.data(), pairs.high,
                              pairs.low, pairs.vectors);
    });
    return Status::Ok();
  }

  Status SolveTridiagonal(Stream, int64_t count, int64_t n, const R* d, const R* e, R* w,
                          R* v) override {
    const auto blocks = static_cast<unsigned>((count * kMostQl + threads_ - 1) / threads_);
    Launch(blocks, threads_, 1,
           [&] { kernels::SolveTridiagonal(count, static_cast<int>(n), d, e, w, v); });
    return Status::Ok();
  }

  Status ReduceToTridiagonal(Stream, int64_t count, int64_t n, R* a, R* d, R* e, R* tau) override {
    Launch(static_cast<unsigned>(count), threads_, 1,
           [&] { kernels::StackedTridiagonal<R>(static_cast<int>(n), a, d, e, tau).Run(); });
    return Status::Ok();
  }

  Status FactorLu(Stream, int64_t, int64_t, R*, int32_t*) override {
    return Error(Code::kInternal, "FactorByKernels tests it");
  }
  Status InvertSmall(Stream, int64_t, int64_t, const R*, R*) override { return NotHere(); }
  Status SolveSmall(Stream, int64_t, int64_t, int64_t, const R*, const R*, R*) override {
    return NotHere();
  }
  Status FactorCholesky(Stream, bool, int64_t, int64_t, R*) override { return NotHere(); }
  Status InvertTriangle(Stream, bool, int64_t, int64_t, R*) override { return NotHere(); }
  Status SolveTriangle(Stream, StackedTriangle, int64_t, int64_t, int64_t, const R*, R*) override {
    return NotHere();
  }
  Status MultiplyTriangle(Stream, int64_t, int64_t, const R*, R*) override { return NotHere(); }
  Status FactorQr(Stream, int64_t, int64_t, int64_t, R*, R*) override { return NotHere(); }
  Status ApplyReflectors(Stream, int64_t, int64_t, int64_t, const R*, const R*, R*) override {
    return NotHere();
  }
  Status MapSingularValues(Stream, int64_t, int64_t, int64_t, Polynomials, R*) override {
    return NotHere();
  }
  Status Multiply(Stream, Op, Op, int64_t, int64_t, int64_t, int64_t, const R*, const R*,
                  R*) override {
    return NotHere();
  }

 private:
  static Status NotHere() { return Error(Code::kInternal, "another test's"); }

  const unsigned threads_;
};

// Merges of order k: with random poles, equal poles, small z among large ones, and two equal
// halves.
template <typename R>
struct Problem {
  static constexpr int64_t kCount = 4;
  static constexpr bool kSingle = sizeof(R) == 4;

  explicit Problem(int64_t k)
      : k(k),
        gap(kSingle ? R(0x1p-36) : R(0x1p-90)),
        high(kCount * k),
        low(kCount * k),
        z(kCount * k),
        rho(kCount) {
    const R least = kSingle ? R(0x1p-28) : R(0x1p-60);
    std::mt19937_64 random(k);
    auto uniform = [&] { return std::uniform_real_distribution<R>(-1, 1)(random); };
    for (int64_t i = 0; i < kCount; ++i) {
      rho[i] = i == 1 ? (kSingle ? R(0x1p-26) : R(0x1p-56)) : std::abs(uniform()) + R(0.1);
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = i * k + j;
        high[e] = i == 1 ? R(0.5) : i == 3 ? R(j % (k / 2)) / k : uniform();
        low[e] = high[e] * std::numeric_limits<R>::epsilon() / 4 * uniform();
        z[e] = i == 2 && j % 3 != 0 ? least : uniform();
      }
    }
  }

  StackedMerges<R> merges() const {
    return {kCount, k, gap, high.data(), low.data(), z.data(), rho.data()};
  }

  const int64_t k;
  const R gap;
  std::vector<R> high, low, z, rho;
};

template <typename R>
struct Solved {
  explicit Solved(const Problem<R>& problem)
      : high(problem.high.size()), low(high.size()), vectors(high.size() * problem.k) {}
  MergedPairs<R> pairs() { return {high.data(), low.data(), vectors.data()}; }

  std::vector<R> high, low, vectors;
};

// Checks that the eigenpairs satisfy the problem and are orthogonal, up to rounding.
template <typename R>
void CheckPairs(StackKernels<R>& kernels, int64_t k) {
  constexpr long double kEps = std::numeric_limits<R>::epsilon();
  const Problem<R> problem(k);
  Solved<R> solved(problem);
  EXPECT(kernels.Merge(Stream::kMain, problem.merges(), solved.pairs()).ok());
  for (int64_t merge = 0; merge < Problem<R>::kCount; ++merge) {
    const R *high = &problem.high[merge * k], *low = &problem.low[merge * k];
    const R *z = &problem.z[merge * k], *roots = &solved.high[merge * k];
    const R* u = &solved.vectors[merge * k * k];
    auto element = [&](int64_t i, int64_t j) -> long double {
      return u[(i / (k / 2) * k + j) * (k / 2) + i % (k / 2)];
    };
    const long double rho = problem.rho[merge];
    long double norm = 1;
    for (int64_t i = 0; i < k; ++i) norm += rho * z[i] * z[i];
    for (int64_t j = 0; j < k; ++j) {
      const R rest = solved.low[merge * k + j];
      EXPECT(std::abs(rest) <= kEps * (std::abs(roots[j]) + kEps));
      EXPECT(j == 0 || roots[j - 1] <= roots[j] + kEps * norm) << "merge " << merge;
      long double zu = 0;
      for (int64_t i = 0; i < k; ++i) zu += z[i] * element(i, j);
      for (int64_t i = 0; i < k; ++i) {
        const long double pole = static_cast<long double>(high[i]) + low[i];
        const long double residual = (pole - roots[j] - rest) * element(i, j) + rho * z[i] * zu;
        EXPECT(std::abs(residual) <= 8 * kEps * norm)
            << "k " << k << " merge " << merge << " root " << j << ": " << double(residual / kEps);
      }
      for (int64_t c = 0; c <= j; ++c) {
        long double dot = c == j ? -1 : 0;
        for (int64_t i = 0; i < k; ++i) dot += element(i, c) * element(i, j);
        EXPECT(std::abs(dot) <= 16 * kEps)
            << "k " << k << " merge " << merge << " roots " << c << " " << j;
      }
    }
  }
}

// Checks that NaN in one merge doesn't change the others.
template <typename R>
void CheckNan(StackKernels<R>& kernels) {
  Problem<R> problem(6);
  Solved<R> expected(problem), solved(problem);
  EXPECT(kernels.Merge(Stream::kMain, problem.merges(), expected.pairs()).ok());
  problem.high[7] = problem.z[7] = std::numeric_limits<R>::quiet_NaN();
  EXPECT(kernels.Merge(Stream::kMain, problem.merges(), solved.pairs()).ok());
  for (int64_t e = 0; e < 4 * 36; ++e) {
    EXPECT(e / 36 == 1 ? std::isnan(solved.vectors[e]) : solved.vectors[e] == expected.vectors[e])
        << e;
  }
}

template <typename R>
void CheckMerges() {
  const std::unique_ptr<Device> host = NewHostDevice();
  for (int64_t k : {2, 4, 10, 64, 200}) CheckPairs(host->stacks<R>(), k);
  EmulatedStacks<R> few(8), many(kStackThreads);
  for (int64_t k : {2, 4, 10, 26}) CheckPairs(few, k);
  CheckPairs(many, 10);
  CheckNan(host->stacks<R>());
  CheckNan(few);
}

TEST(MergesFloat32) { CheckMerges<float>(); }
TEST(MergesFloat64) { CheckMerges<double>(); }

// Checks a random matrix, one of equal rows, one with zeros, and two that are graded, one in each
// direction.
template <typename R>
void CheckTridiagonal(StackKernels<R>& kernels, int64_t n) {
  constexpr int64_t kCount = 5;
  constexpr long double kEps = std::numeric_limits<R>::epsilon();
  std::mt19937_64 random(n);
  std::uniform_real_distribution<R> uniform(-1, 1);
  std::vector<R> d(kCount * n), e(kCount * (n - 1)), w(kCount * n), v(kCount * n * n);
  for (int64_t matrix = 0; matrix < kCount; ++matrix) {
    for (int64_t i = 0; i < n; ++i) {
      const R grade = std::pow(R(10), -R(matrix == 3 ? i : matrix == 4 ? n - i : 0));
      d[matrix * n + i] = matrix == 1 ? 0 : grade * uniform(random);
      if (i + 1 == n) continue;
      e[matrix * (n - 1) + i] = matrix == 1                 ? R(0.5)
                                : matrix == 2 && i % 3 == 0 ? 0
                                                            : grade * uniform(random);
    }
  }
  EXPECT(kernels.SolveTridiagonal(Stream::kMain, kCount, n, d.data(), e.data(), w.data(), v.data())
             .ok());
  for (int64_t matrix = 0; matrix < kCount; ++matrix) {
    const R *diagonal = &d[matrix * n], *beside = e.data() + matrix * (n - 1);
    const R* u = &v[matrix * n * n];
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        long double residual =
            (static_cast<long double>(diagonal[i]) - w[matrix * n + j]) * u[i * n + j];
        if (i > 0) residual += static_cast<long double>(beside[i - 1]) * u[(i - 1) * n + j];
        if (i + 1 < n) residual += static_cast<long double>(beside[i]) * u[(i + 1) * n + j];
        EXPECT(std::abs(residual) <= 24 * kEps) << n << " " << matrix << ": " << i << " " << j;
      }
      for (int64_t c = 0; c <= j; ++c) {
        long double dot = c == j ? -1 : 0;
        for (int64_t i = 0; i < n; ++i) {
          dot += static_cast<long double>(u[i * n + c]) * u[i * n + j];
        }
        EXPECT(std::abs(dot) <= 16 * kEps) << n << " " << matrix << ": " << c << " " << j;
      }
    }
  }
}

template <typename R>
void CheckTridiagonals() {
  const std::unique_ptr<Device> host = NewHostDevice();
  EmulatedStacks<R> kernels(64);
  for (int64_t n : {1, 2, 3, 17, kMostQl}) {
    CheckTridiagonal(host->stacks<R>(), n);
    CheckTridiagonal(kernels, n);
  }
}

TEST(TridiagonalFloat32) { CheckTridiagonals<float>(); }
TEST(TridiagonalFloat64) { CheckTridiagonals<double>(); }

// Checks A = Q T Q^T with orthogonal Q, for a random matrix, one with zeros, and one whose
// eigenvalues decrease so quickly that squares of entries vanish.
template <typename R>
void CheckReduction(StackKernels<R>& kernels, int64_t n) {
  constexpr int64_t kCount = 3;
  constexpr long double kEps = std::numeric_limits<R>::epsilon();
  std::mt19937_64 random(n);
  std::uniform_real_distribution<R> uniform(-1, 1);
  std::vector<R> a(kCount * n * n), d(kCount * n), e(kCount * (n - 1)), tau(kCount * n);
  for (int64_t matrix = 0; matrix < kCount; ++matrix) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        R x = uniform(random);
        if (matrix == 1 && (i + j) % 3 != 0) x = 0;
        if (matrix == 2) x = std::pow(R(10), -R(4 * (i + j)));
        a[(matrix * n + i) * n + j] = a[(matrix * n + j) * n + i] = x;
      }
    }
  }
  std::vector<R> reduced = a;
  EXPECT(kernels
             .ReduceToTridiagonal(Stream::kMain, kCount, n, reduced.data(), d.data(), e.data(),
                                  tau.data())
             .ok());
  for (int64_t matrix = 0; matrix < kCount; ++matrix) {
    const R *diagonal = &d[matrix * n], *beside = e.data() + matrix * (n - 1);
    std::vector<long double> q(n * n);
    for (int64_t i = 0; i < n; ++i) q[i * n + i] = 1;
    for (int64_t j = n - 1; j >= 0; --j) {
      const R* const v = &reduced[(matrix * n + j) * n];
      for (int64_t i = 0; j + 1 < n && i <= j + 1; ++i) {
        EXPECT(v[i] == R(i == j + 1)) << n << " " << matrix << ": " << j << " " << i;
      }
      for (int64_t c = 0; j + 1 < n && c < n; ++c) {
        long double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += v[i] * q[i * n + c];
        for (int64_t i = 0; i < n; ++i) q[i * n + c] -= tau[matrix * n + j] * sum * v[i];
      }
    }
    EXPECT(tau[matrix * n + n - 1] == 0);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        long double residual = -static_cast<long double>(a[(matrix * n + i) * n + j]);
        long double dot = i == j ? -1 : 0;
        for (int64_t p = 0; p < n; ++p) {
          long double t = diagonal[p] * q[j * n + p];
          if (p > 0) t += beside[p - 1] * q[j * n + p - 1];
          if (p + 1 < n) t += beside[p] * q[j * n + p + 1];
          residual += q[i * n + p] * t;
          dot += q[p * n + i] * q[p * n + j];
        }
        EXPECT(std::abs(residual) <= 20 * n * kEps) << n << " " << matrix << ": " << i << " " << j;
        EXPECT(std::abs(dot) <= 20 * n * kEps) << n << " " << matrix << ": " << i << " " << j;
      }
    }
  }
}

template <typename R>
void CheckReductions() {
  const std::unique_ptr<Device> host = NewHostDevice();
  EmulatedStacks<R> few(32), kernels(96);
  for (int64_t n : {2, 3, 5, 33, 70}) {
    CheckReduction(host->stacks<R>(), n);
    CheckReduction(few, n);
    CheckReduction(kernels, n);
  }
}

TEST(ReductionsFloat32) { CheckReductions<float>(); }
TEST(ReductionsFloat64) { CheckReductions<double>(); }

// Launches the kernels of an LU factorization like CudaStacks, with panels of this width.
template <typename T>
void FactorByKernels(int64_t count, int n, int width, unsigned threads, T* a, int32_t* pivots) {
  std::vector<int> moves(count * 2 * width);
  const auto matrices = static_cast<unsigned>(count);
  for (int first = 0; first < n; first += width) {
    const int columns = std::min(width, n - first), end = first + columns;
    Launch(matrices, threads, 1,
           [&] { kernels::FactorStackedPanel(n, first, columns, a, pivots, moves.data()); });
    const unsigned blocks = (n - columns + 3) / 4;
    Launch(matrices * blocks, 4, 1, [&] {
      kernels::MoveStackedRows<T, kStackLuColumns>(n, first, columns, a, moves.data());
    });
    for (int64_t e = 0; e < count; ++e) {
      T* const one = a + e * n * n;
      for (int i = end; i < n; ++i) {
        for (int j = end; j < n; ++j) {
          for (int p = first; p < end; ++p) {
            one[i * n + j] = kernels::MultiplyAdd(
                kernels::Scale(one[i * n + p], typename kernels::RealOf<T>::type(-1)),
                one[p * n + j], one[i * n + j]);
          }
        }
      }
    }
  }
}

// Returns random matrices. One is singular, and one has equal rows except in the last column.
template <typename R>
std::vector<std::complex<R>> Matrices(int64_t count, int n) {
  std::mt19937_64 random(n);
  std::vector<std::complex<R>> a(count * n * n);
  std::uniform_real_distribution<R> uniform(-1, 1);
  for (auto& value : a) value = {uniform(random), uniform(random)};
  for (int i = 0; count > 1 && i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      auto& value = a[(n + i) * n + j];
      if (j == n / 2) value = 0;
      if (count > 2 && j + 1 < n) a[(2 * n + i) * n + j] = R(j + 1);
    }
  }
  return a;
}

// Checks P A = L U up to rounding, with multipliers of at most 1 in size (2^(1/2) if complex).
template <typename R>
void CheckFactors(int64_t count, int n, const std::vector<std::complex<R>>& a,
                  const std::vector<std::complex<R>>& lu, const std::vector<int32_t>& pivots) {
  constexpr long double kEps = std::numeric_limits<R>::epsilon();
  using Complex = std::complex<long double>;
  for (int64_t e = 0; e < count; ++e) {
    const auto* f = &lu[e * n * n];
    std::vector<int> order(n);
    for (int i = 0; i < n; ++i) order[i] = i;
    for (int i = 0; i < n; ++i) {
      const int pivot = pivots[e * n + i];
      EXPECT(i <= pivot && pivot < n);
      std::swap(order[i], order[pivot]);
    }
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        EXPECT(i <= j || std::abs(f[i * n + j]) <= R(1.4143)) << n << " " << i << " " << j;
        Complex sum = 0;
        for (int p = 0; p <= std::min(i, j); ++p) {
          sum += (p == i ? Complex(1) : Complex(f[i * n + p])) * Complex(f[p * n + j]);
        }
        const auto wanted = Complex(a[(e * n + order[i]) * n + j]);
        EXPECT(std::abs(sum - wanted) <= 20 * n * kEps) << n << ": " << i << " " << j;
      }
    }
  }
}

template <typename R, typename T>
std::vector<T> Narrowed(const std::vector<std::complex<R>>& a) {
  std::vector<T> narrow(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    narrow[i] = kernels::FromParts<T>(a[i].real(), a[i].imag());
  }
  return narrow;
}

template <typename T>
void CheckLuByKernels() {
  using R = typename kernels::RealOf<T>::type;
  constexpr int64_t kCount = 3;
  // Orders: one column, one panel, several panels, and with a partial last panel; more rows than
  // threads and fewer.
  for (int n : {1, 2, 5, 32, 45, 70}) {
    for (int width : {4, 32}) {
      auto a = Matrices<R>(kCount, n);
      if (sizeof(T) == sizeof(R)) {
        for (auto& value : a) value = value.real();
      }
      std::vector<T> f = Narrowed<R, T>(a);
      std::vector<int32_t> pivots(kCount * n);
      FactorByKernels<T>(kCount, n, width, 32, f.data(), pivots.data());
      std::vector<std::complex<R>> lu;
      for (const T& value : f) {
        lu.emplace_back(kernels::RealPart(value), kernels::ImaginaryPart(value));
      }
      CheckFactors<R>(kCount, n, a, lu, pivots);
      EXPECT(n == 1 || pivots[2 * n] == 0) << n << ": of equal ones the first is the pivot";
    }
  }
}

TEST(LuByKernels) {
  CheckLuByKernels<float>();
  CheckLuByKernels<double>();
  CheckLuByKernels<cuComplex>();
  CheckLuByKernels<cuDoubleComplex>();
}

TEST(LuOnTheHost) {
  const std::unique_ptr<Device> host = NewHostDevice();
  for (int n : {1, 2, 5, 45}) {
    const auto a = Matrices<double>(3, n);
    auto lu = a;
    std::vector<int32_t> pivots(3 * n);
    EXPECT(host->stacks<std::complex<double>>()
               .FactorLu(Stream::kMain, 3, n, lu.data(), pivots.data())
               .ok());
    CheckFactors<double>(3, n, a, lu, pivots);
  }
}

}  // namespace
}  // namespace jaxmg::testing
