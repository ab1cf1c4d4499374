// Generalized eigenproblems, from the caller's rows of A and B to its results.
#include "xla_ffi/engine/eigen/sygvd.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

// Whether all ranks solve the standard eigenproblem, and the panels' number of columns.
struct Variant {
  bool all;
  int64_t tile = 0;
};

Tuning TuningOf(const Variant& variant) {
  Tuning tuning;
  tuning.eigen.ShareFrom(variant.all ? 1 : 0);
  tuning.eigen.band_width = tuning.eigen.band_width_complex128 = 8;
  return tuning;
}

template <typename T>
struct Eigenpairs {
  std::vector<Real<T>> w;
  std::vector<std::vector<T>> v;  // each rank's rows
  int32_t status = -1;
};

template <typename T>
bool Same(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

// Computes all vectors in place of A, a subset of them in separate memory, or none.
template <typename T>
Eigenpairs<T> Solve(Problem<T> a, Problem<T> b, const Variant& variant, bool vectors,
                    Subset subset = {0, 0}, const DeviceMaker& make = OnHost) {
  const int64_t n = a.n;
  const bool some = subset.count() > 0;
  if (!some) subset = {0, n};
  std::vector<std::vector<Real<T>>> w(a.ranks, std::vector<Real<T>>(n, NaN<Real<T>>()));
  std::vector<std::vector<T>> v(a.ranks, std::vector<T>(a.block * subset.count(), NaN<T>()));
  std::vector<int32_t> status(a.ranks, -1);
  const auto outcomes = RunRanks(
      a.ranks,
      [&](const RankContext& context) {
        Tuned device(context.device, TuningOf(variant));
        const int rank = context.comm.rank();
        const Operand<T> left = a.operand(rank, variant.tile, &status[rank]);
        T* rows = !vectors ? nullptr : some ? v[rank].data() : left.a;
        return SygvdRoutine<T>({device, context.comm}, left, b.operand(rank, variant.tile, nullptr),
                               subset, w[rank].data(), rows);
      },
      kPatience, make);
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int rank = 0; rank < a.ranks; ++rank) {
    EXPECT(Same(w[rank], w[0]) && status[rank] == status[0]) << "rank " << rank;
  }
  return {w[0], some ? v : a.blocks, status[0]};
}

// Checks |A X - B X W| in units of n eps (|A| |X| + |B| |X W|) and |X^H B X - I| in units of n eps,
// for all vectors and for some. Compares the eigenvalues computed with and without vectors.
template <typename T>
void Check(const Problem<T>& a, const Problem<T>& b, const Variant& variant, Real<T> kappa = 1,
           const DeviceMaker& make = OnHost) {
  using R = Real<T>;
  const int64_t n = a.n;
  const R limit = n < 4 ? 10 : 4, unit = kEps<T> * static_cast<R>(n);
  const std::string name = "n " + std::to_string(n) + ", " + std::to_string(a.ranks) + " ranks" +
                           (variant.all ? ", all: " : ", one: ");
  const Subset whole = {0, n}, part = {n / 3, std::max<int64_t>(n / 3 + 1, n * 2 / 3)};
  std::vector<R> w;
  for (const bool some : {false, true}) {
    const Subset subset = some ? part : whole;
    const int64_t count = subset.count();
    const Eigenpairs<T> solved = Solve(a, b, variant, true, some ? part : Subset{0, 0}, make);
    EXPECT(solved.status == 0) << name << solved.status;
    EXPECT(std::is_sorted(solved.w.begin(), solved.w.end()));
    if (w.empty()) w = solved.w;
    auto x = [&](int64_t i, int64_t k) { return solved.v[i / a.block][(i % a.block) * count + k]; };
    std::vector<T> bx(n * count);
    R residual = 0, departure = 0, largest = 0;
    for (int64_t k = 0; k < count; ++k) {
      const R value = solved.w[subset.first + k];
      R of_x = 0;
      for (int64_t i = 0; i < n; ++i) {
        T sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          sum += a.a[i * n + j] * x(j, k);
          bx[k * n + i] += b.a[i * n + j] * x(j, k);
        }
        residual += std::norm(sum - bx[k * n + i] * value);
        of_x += std::norm(x(i, k));
      }
      largest += of_x * std::pow(a.norm() + std::abs(value) * b.norm(), R(2));
      for (int64_t l = 0; l < count; ++l) {
        T product = l == k ? -1 : 0;
        for (int64_t i = 0; i < n; ++i) product += Conj(x(i, l)) * bx[k * n + i];
        departure += std::norm(product);
      }
    }
    residual = std::sqrt(residual / largest) / unit;
    departure = std::sqrt(departure / static_cast<R>(n)) / unit;
    EXPECT(residual <= limit * std::sqrt(kappa)) << name << "residual " << residual;
    EXPECT(departure <= limit * kappa) << name << "departure " << departure;
  }
  const Eigenpairs<T> values = Solve(a, b, variant, false, {0, 0}, make);
  EXPECT(values.status == 0);
  const R size = std::max(std::abs(w.front()), std::abs(w.back()));
  for (int64_t k = 0; k < n; ++k) {
    EXPECT(std::abs(values.w[k] - w[k]) <= limit * unit * kappa * size) << name << k;
  }
}

template <typename T>
void CheckAll() {
  for (const bool all : {false, true}) {
    for (int64_t n = 1; n <= 20; ++n) {
      for (int ranks = 1; ranks <= 5; ++ranks) {
        const Case c = {n, ranks, 0, n % 3};
        Check(Problem<T>(c, n % 2 == 0), Problem<T>({n, ranks, 0, n % 3}), {all, n % 4});
      }
    }
    Check(Problem<T>({61, 2, 0}, false), Problem<T>({61, 2, 0}), {all});
    Check(Problem<T>({97, 4, 0, 2}, false), Problem<T>({97, 4, 0, 2}), {all, 7});
  }
}

TEST(EigenvectorsOfFloat32) { CheckAll<float>(); }
TEST(EigenvectorsOfFloat64) { CheckAll<double>(); }
TEST(EigenvectorsOfComplex64) { CheckAll<std::complex<float>>(); }
TEST(EigenvectorsOfComplex128) { CheckAll<std::complex<double>>(); }

// Tests a multiple of B, and diagonal matrices.
TEST(KnownEigenvalues) {
  const int64_t n = 30;
  for (const bool all : {false, true}) {
    for (const int ranks : {1, 2, 3}) {
      const Problem<double> b({n, ranks, 0});
      Problem<double> a = b;
      for (double& x : a.a) x *= -3;
      a.Scatter();
      for (const double w : Solve(a, b, {all}, true).w) EXPECT(std::abs(w + 3) < 1e-13) << w;
      const auto diagonal = Of<double>(n, ranks, [](int64_t i, int64_t j) {
        return i == j ? 1.0 + static_cast<double>(i) : 0.0;
      });
      const auto square = Of<double>(n, ranks, [](int64_t i, int64_t j) {
        return i == j ? (1.0 + static_cast<double>(i)) * (1.0 + static_cast<double>(i)) : 0.0;
      });
      const std::vector<double> w = Solve(square, diagonal, {all}, true).w;
      for (int64_t k = 0; k < n; ++k) EXPECT(std::abs(w[k] - 1 - double(k)) < 1e-12) << w[k];
    }
  }
}

// The error grows with the condition number of B, but no faster than the bound of the LAPACK Users'
// Guide, section 4.10.
TEST(IllConditionedB) {
  const int64_t n = 40;
  for (const double kappa : {1e2, 1e4, 1e6}) {
    const auto b = Of<double>(n, 3, [=](int64_t i, int64_t j) {  // Q diag Q, Q a reflection
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) {
        const double d = std::pow(kappa, -static_cast<double>(k) / (n - 1));
        sum += ((i == k) - 2.0 / n) * d * ((j == k) - 2.0 / n);
      }
      return sum;
    });
    for (const bool all : {false, true}) {
      Check(Problem<double>({n, 3, 0}, false), b, {all}, kappa);
    }
  }
}

template <typename T>
void ExpectNaN(const Eigenpairs<T>& solved) {
  for (const auto x : solved.w) EXPECT(std::isnan(x));
  for (const auto& rows : solved.v) {
    for (const T x : rows) EXPECT(x != x);
  }
}

TEST(AStatusOfBIsGreaterThanN) {
  for (const bool all : {false, true}) {
    for (const int ranks : {1, 3}) {
      for (const int64_t order : {1, 7, 20}) {
        Problem<double> b({20, ranks, 0});
        for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
          b.a[(order - 1) * 21] = wrong;
          b.Scatter();
          const auto solved = Solve(Problem<double>({20, ranks, 0}), b, {all, 3}, true);
          EXPECT(solved.status == 20 + order) << solved.status;
          ExpectNaN(solved);
          ExpectNaN(Solve(Problem<double>({20, ranks, 0}), b, {all, 3}, true, {2, 5}));
        }
      }
    }
  }
}

TEST(NonFiniteInputHasAStatusOnAllRanks) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool all : {false, true}) {
    for (const int ranks : {1, 3}) {
      for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), -infinity}) {
        for (const int64_t row : {0, 7, 19}) {
          const Problem<double> good({20, ranks, 0});
          Problem<double> bad = good;
          bad.a[row * 20 + 19] = wrong;
          bad.Scatter();
          const auto of_a = Solve(bad, good, {all}, true), of_b = Solve(good, bad, {all}, true);
          EXPECT(of_a.status > 0 && of_a.status <= 20) << of_a.status;
          EXPECT(of_b.status > 20) << of_b.status;
          ExpectNaN(of_a);
          ExpectNaN(of_b);
        }
      }
    }
  }
}

TEST(ResultsAreReproducible) {
  const Problem<double> a({64, 3, 0}, false), b({64, 3, 0});
  for (const bool all : {false, true}) {
    const auto first = Solve(a, b, {all}, true), second = Solve(a, b, {all}, true);
    EXPECT(Same(first.w, second.w));
    for (int rank = 0; rank < a.ranks; ++rank) EXPECT(Same(first.v[rank], second.v[rank]));
  }
}

TEST(OnConcurrentStreams) {
  for (const bool all : {false, true}) {
    const auto make = [=](int) -> std::unique_ptr<Device> {
      return NewAsyncDevice(NewHostDevice(), TuningOf({all}));
    };
    Check(Problem<double>({50, 3, 0}, false), Problem<double>({50, 3, 0}), {all, 5}, 1.0, make);
    using Z = std::complex<double>;
    Check(Problem<Z>({33, 2, 0}, false), Problem<Z>({33, 2, 0}), {all, 4}, 1.0, make);
  }
}

}  // namespace
}  // namespace jaxmg
