// PotrsRoutine on threads, with textbook LAPACK: every dtype, many sizes, layouts and rank counts,
// matrices that are not positive definite, and ranks with different right-hand sides.
#include "xla_ffi/engine/cholesky/potrs.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/constants.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
void CheckPotrs(const Case& c, const Tuning* tuning = nullptr,
                const std::vector<int64_t>& counts = {1, 3}) {
  for (int64_t nrhs : counts) {
    Problem<T> problem(c);
    const int64_t n = c.n;
    std::mt19937_64 random(99);
    std::vector<T> b(n * nrhs);
    for (T& value : b) value = Random<T>(random);
    // b is in x, or apart from it; x then has no numbers yet.
    const bool apart = (nrhs / 2 + c.ranks) % 2 == 1;
    std::vector<std::vector<T>> x(c.ranks, apart ? std::vector<T>(b.size(), T(NAN)) : b);
    std::vector<Real<T>> log_det(c.ranks);
    std::vector<int32_t> status(c.ranks, -1);
    const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
      const int rank = context.comm.rank();
      Tuned tuned(context.device, tuning != nullptr ? *tuning : context.device.tuning());
      const RankContext mine = {tuned, context.comm};
      return PotrsRoutine<T>(mine, problem.operand(rank, c.tile, &status[rank]),
                             {nrhs, x[rank].data(), &log_det[rank], apart ? b.data() : nullptr});
    });
    for (int rank = 0; rank < c.ranks; ++rank) {
      EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
      EXPECT(status[rank] == 0) << TextOf(c);
      EXPECT(x[rank] == x[0]) << TextOf(c) << ": ranks differ";
      EXPECT(log_det[rank] == log_det[0]) << TextOf(c);
    }
    Real<T> residual = 0, size = 0;
    for (int64_t r = 0; r < nrhs; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        T sum = -b[i * nrhs + r];
        for (int64_t j = 0; j < n; ++j) sum += problem.a[i * n + j] * x[0][j * nrhs + r];
        residual += std::norm(sum);
        size += std::norm(x[0][i * nrhs + r]);
      }
    }
    const Real<T> error = std::sqrt(residual) / (problem.norm() * std::sqrt(size));
    EXPECT(error <= 10 * n * kEps<T>) << TextOf(c) << " backward error " << error;
    // Computes log det by elimination without pivoting, in double precision.
    std::vector<std::complex<double>> u(problem.a.begin(), problem.a.end());
    double expected = 0;
    for (int64_t k = 0; k < n; ++k) {
      expected += std::log(std::abs(u[k * n + k]));
      for (int64_t i = k + 1; i < n; ++i) {
        const auto factor = u[i * n + k] / u[k * n + k];
        for (int64_t j = k; j < n; ++j) u[i * n + j] -= factor * u[k * n + j];
      }
    }
    EXPECT(std::abs(log_det[0] - expected) <= 100 * n * kEps<T> * (1 + std::abs(expected)))
        << TextOf(c) << " " << log_det[0] << " " << expected;
  }
}

template <typename T>
void CheckOnHost(const Case& c) {
  CheckPotrs<T>(c);
}

template <typename T>
void CheckLikeGpu(const Case& c) {
  const Tuning tuning = LikeGpu();
  CheckPotrs<T>(c, &tuning);
}

// Panels in place, copied from their owner to all ranks; then panels out of place, in pieces and
// without a chain.
template <typename T>
void CheckPotrsWithCopies(const Case& c) {
  Tuning tuning;
  CheckPotrs<T>(c, &tuning);
  tuning.cholesky.panel_block = 5;
  CheckPotrs<T>(c, &tuning);
}

template <typename T>
void CheckGathered(const Case& c) {
  Case chosen = c;
  chosen.tile = 0;
  for (const Tuning& tuning : GatheringTunings()) CheckPotrs<T>(chosen, &tuning);
}

JAXMG_TEST_EACH_DTYPE(PotrsSolves, CheckOnHost)
JAXMG_TEST_EACH_DTYPE(PotrsSolvesWithTheTuningOfGpus, CheckLikeGpu)
JAXMG_TEST_EACH_DTYPE(PotrsSolvesWithCopiedPanels, CheckPotrsWithCopies)
JAXMG_TEST_EACH_DTYPE(PotrsSolvesOnOneRank, CheckGathered)

TEST(StreamsOfPotrsWaitForEachOther) {
  for (const Case& c : kCases) {
    if (c.n > 70) continue;
    for (const Tuning& tuning : TuningsOnStreams()) {  // the dtype changes no order
      OnStreams(tuning, [&] { CheckPotrs<double>(c, nullptr, {3}); });
    }
  }
}

TEST(NotPositiveDefiniteIsAStatusAndNaN) {
  using T = std::complex<double>;
  for (int ranks : {1, 2, 4}) {
    for (int64_t bad : {0, 1, 12, 29}) {
      for (double value : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
        Problem<T> problem({30, ranks, 4});
        problem.a[bad * 30 + bad] = value;
        problem.Scatter();
        std::vector<int32_t> status(ranks, -1);
        std::vector<std::vector<T>> x(ranks, std::vector<T>(30, 1.0));
        std::vector<double> log_det(ranks);
        const auto outcomes = RunRanks(ranks, [&](const RankContext& context) {
          const int rank = context.comm.rank();
          return PotrsRoutine<T>(context, problem.operand(rank, 4, &status[rank]),
                                 {1, x[rank].data(), &log_det[rank]});
        });
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
          EXPECT(status[rank] == bad + 1) << status[rank] << " not " << bad + 1;
          EXPECT(std::isnan(log_det[rank]));
          for (const T& value : x[rank]) EXPECT(std::isnan(std::real(value)));
        }
      }
    }
  }
}

// Ranks with different right-hand sides return a status, with both algorithms.
TEST(DifferentRightHandSidesAreAStatus) {
  constexpr int kRanks = 3;
  for (bool gathers : {false, true}) {
    for (bool check : {false, true}) {
      Problem<double> problem({20, kRanks, 0});
      std::vector<std::vector<double>> b(kRanks, std::vector<double>(20, 1.0)), x = b;
      b[2][7] = 2;
      std::vector<int32_t> status(kRanks, -1);
      std::vector<double> log_det(kRanks);
      const auto outcomes = RunOnDevices(kRanks, [&](const RankContext& context) {
        const int rank = context.comm.rank();
        Tuning tuning = context.device.tuning();
        if (gathers) tuning.gather_to_solve = tuning.cholesky.whole_order = 20;
        Tuned tuned(context.device, tuning);
        return PotrsRoutine<double>({tuned, context.comm}, problem.operand(rank, 0, &status[rank]),
                                    {1, x[rank].data(), &log_det[rank], b[rank].data(), check});
      });
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
        EXPECT(status[rank] == (check ? kDifferentOperands : 0)) << status[rank];
        for (double value : x[rank]) EXPECT(std::isnan(value) == check);
        EXPECT(std::isnan(log_det[rank]) == check);
      }
    }
  }
}

}  // namespace
}  // namespace jaxmg
