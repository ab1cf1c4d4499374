// What a device does for merges of divide and conquer: roots, the refined z, vectors and columns.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/cc/testing.h"
#include "xla_ffi/device/host.h"
#include "xla_ffi/device/secular_kernels.h"

namespace jaxmg {
namespace {

constexpr Stream kMain = Stream::kMain;

// diag(d) + rho z z^T as deflation leaves it: poles apart, no z too small.
template <typename R>
struct Problem {
  std::vector<R> d, z;
  R rho;
};

// `clustered` poles are hardly apart, and z of many sizes.
template <typename R>
Problem<R> Random(int64_t k, bool clustered, R rho, std::mt19937_64& random) {
  constexpr R kEps = std::numeric_limits<R>::epsilon();
  auto uniform = [&] { return std::uniform_real_distribution<R>(0, 1)(random); };
  Problem<R> problem{{}, {}, rho};
  R pole = -1, sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    problem.d.push_back(pole);
    pole += clustered ? std::pow(kEps, uniform()) + 8 * kEps : (uniform() + R(0.01)) / k;
    const R size = clustered ? std::pow(kEps, uniform() * R(0.8)) : uniform() + R(0.01);
    problem.z.push_back(random() % 2 ? size : -size);
    sum += size * size;
  }
  for (R& value : problem.z) value /= std::sqrt(sum);
  return problem;
}

template <typename R>
void CheckMerge(int64_t k, bool clustered, R rho, std::mt19937_64& random) {
  constexpr long double kEps = std::numeric_limits<R>::epsilon();
  auto device = NewHostDevice();
  SecularKernels<R>& kernels = *device->template eigen<R>().secular;
  const Problem<R> problem = Random(k, clustered, rho, random);
  const std::vector<R>&d = problem.d, &z = problem.z;
  // In two shares, as ranks have them.
  const std::vector<std::pair<int64_t, int64_t>> shares = {{0, k / 3}, {k / 3, k}};
  std::vector<R> origin(k), tau(k), roots(k), refined(k);
  std::vector<int32_t> order(k);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  int32_t info = 0;
  for (const auto& [begin, end] : shares) {
    EXPECT(kernels
               .Roots(kMain, k, begin, end, d.data(), z.data(), rho, 100, origin.data(), tau.data(),
                      roots.data(), &info)
               .ok());
  }
  EXPECT(info == 0);
  for (const auto& [begin, end] : shares) {
    EXPECT(kernels
               .RefineZ(kMain, k, begin, end, order.data(), d.data(), z.data(), rho, origin.data(),
                        tau.data(), refined.data())
               .ok());
  }
  const long double norm = 1 + rho;
  for (int64_t j = 0; j < k; ++j) {
    // The equation holds but for rounding, between the right poles.
    long double w = 1 / static_cast<long double>(rho), noise = w;
    for (int64_t i = 0; i < k; ++i) {
      const long double distance = static_cast<long double>(d[i]) - origin[j] - tau[j];
      const long double term = static_cast<long double>(z[i]) * z[i] / distance;
      w += term;
      noise += 8 * std::abs(term) + std::abs(tau[j] * term / distance);
      EXPECT((distance < 0) == (i <= j)) << "root " << j << " pole " << i;
    }
    EXPECT(std::abs(w) <= 4 * kEps * noise) << "k " << k << " root " << j;
    EXPECT(j == 0 || roots[j - 1] <= roots[j]);
  }

  std::vector<R> grouped(k), u((k + 1) * k);
  for (int64_t g = 0; g < k; ++g) grouped[g] = d[order[g]];
  for (int64_t j = 0; j < k; j += 7) {
    EXPECT(kernels
               .Vectors(kMain, k, j, std::min(j + 7, k), grouped.data(), refined.data(),
                        origin.data(), tau.data(), &u[j * (k + 1)], k + 1)
               .ok());
  }
  for (int64_t j = 0; j < k; ++j) {
    const R* x = &u[j * (k + 1)];
    long double zx = 0;
    for (int64_t g = 0; g < k; ++g) zx += static_cast<long double>(z[order[g]]) * x[g];
    for (int64_t g = 0; g < k; ++g) {
      const long double residual =
          (static_cast<long double>(grouped[g]) - roots[j]) * x[g] + rho * z[order[g]] * zx;
      EXPECT(std::abs(residual) <= (10 + k) * kEps * norm) << "k " << k << " root " << j;
    }
    for (int64_t c = 0; c <= j; ++c) {
      long double dot = c == j ? -1 : 0;
      for (int64_t g = 0; g < k; ++g) dot += static_cast<long double>(x[g]) * u[c * (k + 1) + g];
      EXPECT(std::abs(dot) <= 20 * kEps) << "k " << k << " roots " << c << " " << j;
    }
  }
}

template <typename R>
void CheckMerges() {
  // The second one has a root (float64, k = 100) that Li's iteration alone does not come to.
  for (int seed : {3, 234}) {
    std::mt19937_64 random(seed);
    for (int64_t k : {1, 2, 3, 4, 7, 8, 9, 17, 40, 65, 100}) {
      for (bool clustered : {false, true}) {
        for (R rho : {R(1), R(2e-3), R(1.5)}) CheckMerge<R>(k, clustered, rho, random);
      }
    }
  }
}

TEST(MergesAreSolvedFloat32) { CheckMerges<float>(); }
TEST(MergesAreSolvedFloat64) { CheckMerges<double>(); }

TEST(ALimitIsAnInfo) {
  auto device = NewHostDevice();
  const double d[] = {0, 1, 2}, z[] = {0.6, 0.4, 0.7};
  double origin[3], tau[3], roots[3];
  int32_t info = 0;
  EXPECT(device->eigen<double>()
             .secular->Roots(kMain, 3, 0, 3, d, z, 1, 0, origin, tau, roots, &info)
             .ok());
  EXPECT(info > 0);
}

TEST(ColumnsAreRotatedInTurnAndCopied) {
  auto device = NewHostDevice();
  SecularKernels<double>& kernels = *device->eigen<double>().secular;
  constexpr int64_t kRows = 3, kLd = 4, kColumns = 5;
  std::vector<double> q(kLd * kColumns), expected;
  std::iota(q.begin(), q.end(), 1);
  expected = q;
  // A chain of two and one of one.
  const int32_t starts[] = {0, 2, 3}, first[] = {0, 3, 1}, second[] = {3, 4, 2};
  const double c[] = {0.6, 0.8, 1}, s[] = {0.8, -0.6, 0};
  for (int i = 0; i < 3; ++i) {
    for (int64_t row = 0; row < kRows; ++row) {
      double &x = expected[first[i] * kLd + row], &y = expected[second[i] * kLd + row];
      const double old = x;
      x = c[i] * x + s[i] * y;
      y = c[i] * y - s[i] * old;
    }
  }
  EXPECT(kernels.RotateColumns(kMain, kRows, 2, starts, first, second, c, s, q.data(), kLd).ok());
  for (size_t i = 0; i < q.size(); ++i) EXPECT(std::abs(q[i] - expected[i]) <= 1e-14) << i;

  const int32_t index[] = {4, 0, 2};
  for (bool from : {false, true}) {
    for (bool to : {false, true}) {
      std::vector<double> target(kLd * kColumns, -1);
      EXPECT(kernels
                 .CopyColumns(kMain, kRows, 3, from ? index : nullptr, q.data(), kLd,
                              to ? index : nullptr, target.data(), kLd)
                 .ok());
      for (int j = 0; j < 3; ++j) {
        for (int64_t row = 0; row < kLd; ++row) {
          const double copied = q[(from ? index[j] : j) * kLd + row];
          EXPECT(target[(to ? index[j] : j) * kLd + row] == (row < kRows ? copied : -1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace jaxmg
