// The distributed eigensolver, from the caller's rows to its results.
#include "xla_ffi/engine/eigen/eigen.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;

Tuning Spread(int64_t band_width) {
  Tuning tuning;
  tuning.eigen.ShareFrom(1);
  tuning.eigen.band_width = tuning.eigen.band_width_complex128 = band_width;
  return tuning;
}

template <typename T>
struct Eigenpairs {
  std::vector<Real<T>> w;
  std::vector<std::vector<T>> v;  // each rank's rows
  int32_t status = -1;
};

template <typename T>
Eigenpairs<T> Solve(Problem<T> problem, bool vectors, int64_t band_width,
                    const DeviceMaker& make = OnHost) {
  const int64_t n = problem.n;
  Eigenpairs<T> solved;
  std::vector<std::vector<Real<T>>> w(problem.ranks, std::vector<Real<T>>(n, NaN<Real<T>>()));
  std::vector<int32_t> status(problem.ranks, -1);
  const Tuning tuning = Spread(band_width);
  const auto outcomes = RunRanks(
      problem.ranks,
      [&](const RankContext& context) {
        Tuned device(context.device, tuning);
        const int rank = context.comm.rank();
        return SyevdRoutine({device, context.comm}, problem.operand(rank, 0, &status[rank]),
                            vectors, w[rank].data());
      },
      kPatience, make);
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const auto same = [](const auto& a, const auto& b) {
      return std::equal(a.begin(), a.end(), b.begin(),
                        [](auto x, auto y) { return x == y || (x != x && y != y); });
    };
    EXPECT(same(w[rank], w[0]) && status[rank] == status[0]) << "rank " << rank;
  }
  solved.w = w[0];
  solved.v = problem.blocks;
  solved.status = status[0];
  return solved;
}

// Checks residuals in units of n eps |A|, and orthogonality in units of n eps.
template <typename T>
void Check(const Problem<T>& problem, int64_t band_width, Real<T> limit = 2,
           const DeviceMaker& make = OnHost) {
  const int64_t n = problem.n;
  const Eigenpairs<T> solved = Solve(problem, true, band_width, make);
  EXPECT(solved.status == 0) << solved.status;
  EXPECT(std::is_sorted(solved.w.begin(), solved.w.end()));
  auto v = [&](int64_t i, int64_t k) {
    return solved.v[i / problem.block][(i % problem.block) * n + k];
  };
  const Real<T> unit = kEps<T> * static_cast<Real<T>>(n);
  Real<T> residual = 0, orthogonality = 0;
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < n; ++i) {
      T sum = -v(i, k) * solved.w[k], product = i == k ? -1 : 0;
      for (int64_t j = 0; j < n; ++j) {
        sum += problem.a[i * n + j] * v(j, k);
        product += Conj(v(j, i)) * v(j, k);
      }
      residual += std::norm(sum);
      orthogonality += std::norm(product);
    }
  }
  residual = std::sqrt(residual);
  orthogonality = std::sqrt(orthogonality / static_cast<Real<T>>(n));
  const std::string name = "n " + std::to_string(n) + ", " + std::to_string(problem.ranks) +
                           " ranks, band " + std::to_string(band_width) + ": ";
  EXPECT(residual <= limit * unit * problem.norm()) << name << residual / unit / problem.norm();
  EXPECT(orthogonality <= limit * unit) << name << orthogonality / unit;
  const Eigenpairs<T> values = Solve(problem, false, band_width, make);
  EXPECT(values.status == 0);
  for (int64_t k = 0; k < n; ++k) {
    EXPECT(std::abs(values.w[k] - solved.w[k]) <= limit * unit * problem.norm()) << name << k;
  }
}

template <typename T>
void CheckAll() {
  for (int64_t n = 1; n <= 20; ++n) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const int64_t width : {1, 4}) {
        Check(Problem<T>({n, ranks, 0, n % 3}, n % 2 == 0), width, n < 4 ? 8 : 3);
      }
    }
  }
  Check(Problem<T>({61, 2, 0}, false), 8);
  Check(Problem<T>({100, 3, 0, 2}, false), 16);
  Check(Problem<T>({97, 4, 0}, false), 32);
}

TEST(EigenvectorsOfFloat32) { CheckAll<float>(); }
TEST(EigenvectorsOfFloat64) { CheckAll<double>(); }
TEST(EigenvectorsOfComplex64) { CheckAll<std::complex<float>>(); }
TEST(EigenvectorsOfComplex128) { CheckAll<std::complex<double>>(); }

TEST(SpecialMatrices) {
  using Z = std::complex<double>;
  const int64_t n = 45;
  for (const int ranks : {2, 3}) {
    Check<double>(Of<double>(n, ranks, [](int64_t, int64_t) { return 0; }), 8);
    Check<double>(Of<double>(n, ranks, [](int64_t i, int64_t j) { return i == j; }), 8);
    Check<double>(Of<double>(n, ranks, [](int64_t i, int64_t j) { return (i == j) + 1.0; }), 8);
    Check<double>(Of<double>(n, ranks,
                             [](int64_t i, int64_t j) {
                               return i == j ? std::abs(20.0 - static_cast<double>(i))
                                             : std::abs(i - j) == 1;
                             }),
                  8);
    Check<double>(Of<double>(n, ranks,
                             [](int64_t i, int64_t j) {
                               return std::exp(-0.01 * static_cast<double>((i - j) * (i - j)));
                             }),
                  8);
    for (const int sign : {1, -1}) {
      Check<double>(Of<double>(n, ranks,
                               [=](int64_t i, int64_t j) {
                                 return std::pow(10.0, sign * 0.2 * static_cast<double>(i + j)) /
                                        (1.0 + std::abs(i - j));
                               }),
                    8);
    }
    Check<Z>(
        Of<Z>(n, ranks, [](int64_t i, int64_t j) { return i == j ? Z(0) : Z(0, i < j ? 1 : -1); }),
        8);
  }
}

TEST(NonFiniteInputHasAStatusOnAllRanks) {
  for (const double wrong :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    for (const int64_t row : {0, 7, 19}) {
      Problem<double> problem({20, 3, 0}, false);
      problem.a[row * 20 + 19] = wrong;
      problem.Scatter();
      const Eigenpairs<double> solved = Solve(problem, true, 4);
      EXPECT(solved.status == row + 1) << solved.status;
      for (const double x : solved.w) EXPECT(std::isnan(x));
      for (const auto& rows : solved.v) {
        for (const double x : rows) EXPECT(std::isnan(x));
      }
    }
  }
}

TEST(ResultsAreReproducible) {
  const Problem<double> problem({64, 3, 0}, false);
  const auto first = Solve(problem, true, 8), second = Solve(problem, true, 8);
  EXPECT(first.w == second.w);
  for (size_t rank = 0; rank < first.v.size(); ++rank) {
    EXPECT(std::memcmp(first.v[rank].data(), second.v[rank].data(),
                       first.v[rank].size() * sizeof(double)) == 0);
  }
}

TEST(OnConcurrentStreams) {
  const auto make = [](int) -> std::unique_ptr<Device> {
    return NewAsyncDevice(NewHostDevice(), Spread(8));
  };
  Check(Problem<double>({50, 3, 0}, false), 8, 3.0, make);
  Check(Problem<std::complex<double>>({33, 2, 0}, false), 8, 3.0, make);
}

}  // namespace
}  // namespace jaxmg
