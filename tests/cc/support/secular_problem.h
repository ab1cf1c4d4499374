// Merges of divide and conquer, and checks of a device's SecularKernels on these merges.
#ifndef JAXMG_TESTS_CC_SUPPORT_SECULAR_PROBLEM_H_
#define JAXMG_TESTS_CC_SUPPORT_SECULAR_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/cc/support/testing.h"
#include "xla_ffi/device/eigen/secular_kernels.h"

namespace jaxmg::testing {

// The problem diag(d) + rho z z^T after deflation, with distinct poles and no small z.
template <typename R>
struct SecularProblem {
  std::vector<R> d, z;
  R rho;

  // With `clustered`, poles are close and the sizes of z vary widely.
  static SecularProblem Random(int64_t k, bool clustered, R rho, std::mt19937_64& random) {
    constexpr R kEps = std::numeric_limits<R>::epsilon();
    auto uniform = [&] { return std::uniform_real_distribution<R>(0, 1)(random); };
    SecularProblem problem{{}, {}, rho};
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
};

template <typename R>
void CheckMerge(SecularKernels<R>& kernels, int64_t k, bool clustered, R rho,
                std::mt19937_64& random) {
  constexpr Stream kMain = Stream::kMain;
  constexpr long double kEps = std::numeric_limits<R>::epsilon();
  const auto problem = SecularProblem<R>::Random(k, clustered, rho, random);
  const std::vector<R>&d = problem.d, &z = problem.z;
  // Computes in two parts, as on two ranks.
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
    // The root lies between the right poles and satisfies the equation up to rounding.
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
void CheckMerges(SecularKernels<R>& kernels, const std::vector<int64_t>& orders) {
  // The second problem has a root (float64, k = 100) for which Li's iteration does not converge by
  // itself.
  for (int seed : {3, 234}) {
    std::mt19937_64 random(seed);
    for (int64_t k : orders) {
      for (bool clustered : {false, true}) {
        for (R rho : {R(1), R(2e-3), R(1.5)}) CheckMerge<R>(kernels, k, clustered, rho, random);
      }
    }
  }
}

// Checks that *info is set if and only if the limit of evaluations is too low.
template <typename R>
void CheckLimit(SecularKernels<R>& kernels) {
  const R d[] = {0, 1, 2}, z[] = {R(0.6), R(0.4), R(0.7)};
  R origin[3], tau[3], roots[3];
  for (int limit : {0, 100}) {
    int32_t info = 0;
    EXPECT(kernels.Roots(Stream::kMain, 3, 0, 3, d, z, 1, limit, origin, tau, roots, &info).ok());
    EXPECT((info > 0) == (limit == 0));
  }
}

template <typename R>
void CheckRotations(SecularKernels<R>& kernels, int64_t rows) {
  constexpr int64_t kColumns = 9;
  const int64_t ld = rows + 1;
  std::vector<R> q(ld * kColumns);
  for (size_t i = 0; i < q.size(); ++i) q[i] = R(i % 37) - 11;
  std::vector<R> expected = q;
  // Chains of four, one and two rotations. Some rotations don't begin with the second column of the
  // previous one.
  const int32_t starts[] = {0, 4, 5, 7};
  const int32_t first[] = {0, 3, 4, 0, 1, 6, 7}, second[] = {3, 4, 0, 3, 2, 5, 8};
  const R c[] = {R(0.6), R(0.8), R(-0.6), R(0.28), 1, 0, R(0.6)};
  const R s[] = {R(0.8), R(-0.6), R(0.8), R(0.96), 0, 1, R(-0.8)};
  for (int i = 0; i < starts[3]; ++i) {
    for (int64_t row = 0; row < rows; ++row) {
      R &x = expected[first[i] * ld + row], &y = expected[second[i] * ld + row];
      const R old = x;
      x = c[i] * x + s[i] * y;
      y = c[i] * y - s[i] * old;
    }
  }
  EXPECT(kernels.RotateColumns(Stream::kMain, rows, 3, starts, first, second, c, s, q.data(), ld)
             .ok());
  for (size_t i = 0; i < q.size(); ++i) {
    EXPECT(std::abs(q[i] - expected[i]) <= 200 * std::numeric_limits<R>::epsilon()) << i;
  }
}

template <typename R>
void CheckCopies(SecularKernels<R>& kernels, int64_t rows, int64_t columns) {
  const int64_t lds = rows + 2, ldt = rows + 1;
  std::vector<R> source(lds * columns);
  std::iota(source.begin(), source.end(), R(1));
  std::vector<int32_t> index(columns);
  std::iota(index.rbegin(), index.rend(), 0);
  std::rotate(index.begin(), index.begin() + columns / 3, index.end());
  for (bool from : {false, true}) {
    for (bool to : {false, true}) {
      std::vector<R> target(ldt * columns, -1);
      EXPECT(kernels
                 .CopyColumns(Stream::kMain, rows, columns - 1, from ? index.data() : nullptr,
                              source.data(), lds, to ? index.data() : nullptr, target.data(), ldt)
                 .ok());
      std::vector<R> expected(ldt * columns, -1);
      for (int64_t j = 0; j < columns - 1; ++j) {
        std::copy_n(&source[(from ? index[j] : j) * lds], rows,
                    &expected[(to ? index[j] : j) * ldt]);
      }
      EXPECT(target == expected) << rows << " x " << columns << " " << from << to;
    }
  }
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_SECULAR_PROBLEM_H_
