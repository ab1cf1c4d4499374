// The routine gesv: solutions, determinants and status, on the host, with the tuning of GPUs, on an
// AsyncDevice and on a RecordingDevice.
#include "xla_ffi/engine/lu/gesv.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/devices/tf32_device.h"
#include "tests/cc/support/general_problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
struct Answer {
  std::vector<std::vector<T>> x;  // by rank, as all members
  std::vector<Real<T>> log_abs;
  std::vector<T> sign;
  std::vector<int32_t> status;
};

// `b` holds the right-hand sides of each rank.
template <typename T>
Answer<T> Solve(GeneralProblem<T>& problem, int64_t tile, const std::vector<std::vector<T>>& b,
                const DeviceMaker& make, bool check_b = false) {
  const int ranks = problem.ranks;
  const int64_t nrhs = static_cast<int64_t>(b[0].size()) / problem.n;
  Answer<T> answer = {std::vector<std::vector<T>>(ranks, std::vector<T>(b[0].size(), NaN<T>())),
                      std::vector<Real<T>>(ranks, 7), std::vector<T>(ranks, T(7)),
                      std::vector<int32_t>(ranks, 7)};
  const auto outcomes = RunRanks(
      ranks,
      [&](const RankContext& context) {
        const int rank = context.comm.rank();
        const GeneralSolution<T> solution = {nrhs,
                                             answer.x[rank].data(),
                                             &answer.log_abs[rank],
                                             &answer.sign[rank],
                                             b[rank].data(),
                                             check_b};
        return GesvRoutine<T>(context, problem.operand(rank, tile, &answer.status[rank]), solution);
      },
      kPatience, make);
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int rank = 1; rank < ranks; ++rank) {
    EXPECT(std::memcmp(answer.x[rank].data(), answer.x[0].data(), b[0].size() * sizeof(T)) == 0 &&
           std::memcmp(&answer.log_abs[rank], &answer.log_abs[0], sizeof(Real<T>)) == 0 &&
           std::memcmp(&answer.sign[rank], &answer.sign[0], sizeof(T)) == 0 &&
           answer.status[rank] == answer.status[0])
        << problem.name() << "ranks differ";
  }
  return answer;
}

template <typename T>
std::vector<T> RightHandSidesOf(int64_t n, int64_t nrhs) {
  std::mt19937_64 random(n + nrhs);
  std::vector<T> b(n * nrhs);
  for (T& value : b) value = Random<T>(random);
  return b;
}

// Returns log |det A| and the sign of det A, from unblocked elimination of A in double precision.
template <typename T>
std::pair<double, std::complex<double>> DeterminantOf(int64_t n, const std::vector<T>& a) {
  std::vector<std::complex<double>> u(a.begin(), a.end());
  double log_abs = 0;
  std::complex<double> sign = 1;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k; i < n; ++i) {
      if (std::abs(u[i * n + k]) > std::abs(u[pivot * n + k])) pivot = i;
    }
    if (pivot != k) sign = -sign;
    for (int64_t j = 0; j < n; ++j) std::swap(u[k * n + j], u[pivot * n + j]);
    const std::complex<double> diagonal = u[k * n + k];
    log_abs += std::log(std::abs(diagonal));
    sign *= diagonal / std::abs(diagonal);
    for (int64_t i = k + 1; i < n; ++i) {
      const std::complex<double> factor = u[i * n + k] / diagonal;
      for (int64_t j = k; j < n; ++j) u[i * n + j] -= factor * u[k * n + j];
    }
  }
  return {log_abs, sign};
}

template <typename T>
void Check(int64_t n, int ranks, int64_t tile, int64_t extra_rows, int64_t nrhs,
           const DeviceMaker& make) {
  GeneralProblem<T> problem(n, n, ranks, extra_rows);
  const std::vector<T> b = RightHandSidesOf<T>(n, nrhs);
  const Answer<T> answer = Solve(problem, tile, std::vector<std::vector<T>>(ranks, b), make, true);
  EXPECT(answer.status[0] == 0) << problem.name() << answer.status[0];
  const Real<T> error = BackwardError(Op::kNone, n, problem.a, answer.x[0], b);
  EXPECT(error <= 5 * (n + 2)) << problem.name() << "tile " << tile << ": backward error " << error;
  const auto [log_abs, sign] = DeterminantOf(n, problem.a);
  // The error of a determinant is relative to the smallest pivot.
  const double bound = 1e4 * n * kEps<T>;
  EXPECT(std::abs(answer.log_abs[0] - log_abs) <= bound * (1 + std::abs(log_abs)))
      << problem.name() << answer.log_abs[0] << " for " << log_abs;
  EXPECT(std::abs(std::complex<double>(answer.sign[0]) - sign) <= bound)
      << problem.name() << answer.sign[0] << " for " << sign;
}

DeviceMaker On(const Tuning& tuning) {
  return [tuning](int) { return std::make_unique<TunedHost>(tuning); };
}

DeviceMaker OnThreadsLikeGpus() {
  return [](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); };
}

template <typename T>
void CheckAll() {
  for (int ranks : {1, 2, 3, 4, 5, 8}) {
    for (int64_t n = 1; n <= 40; ++n) {
      const int64_t tile = n % 4 == 0 ? 0 : 1 + n % 7;
      Check<T>(n, ranks, tile, n % 3, n % 4, OnHost);
      if (n % 3 == 1) Check<T>(n, ranks, tile, n % 2, 1 + n % 3, On(LikeGpu()));
    }
  }
  for (const auto& [n, ranks, tile] : {std::tuple{97, 3, 8}, {130, 4, 11}, {101, 1, 16}}) {
    Check<T>(n, ranks, tile, 0, 2, OnHost);
    Check<T>(n, ranks, tile, 0, 2, OnThreadsLikeGpus());
  }
}

TEST(SolutionsAndDeterminants) {
  CheckAll<float>();
  CheckAll<double>();
  CheckAll<std::complex<float>>();
  CheckAll<std::complex<double>>();
}

TEST(OneRankSolvesForAllIfTheTuningSaysSo) {
  Tuning tuning = LikeGpu();
  tuning.gather_to_solve = 50;
  tuning.lu.whole_order = 30;
  tuning.usual_tile = 8;
  for (int ranks : {1, 2, 5}) {
    for (int64_t n : {1, 7, 30, 31, 50, 51}) {
      Check<double>(n, ranks, 0, 1, 2, On(tuning));
      Check<std::complex<float>>(n, ranks, 0, 0, 1, On(tuning));
    }
  }
}

template <typename T>
int64_t WidthOfTiles(int64_t n, int64_t tile, int ranks, const Tuning& tuning) {
  const Sizes sizes = {n, n, (n + ranks - 1) / ranks, tile};
  return GesvSpace<T>(sizes, 1, {ranks, 0, tuning}).tiles.width();
}

TEST(WidthOfTilesOnOneRank) {
  Tuning tuning = LikeGpu();
  tuning.usual_tile = 32;
  tuning.lu.whole_order = 0;
  tuning.lu.wide_order = 240;
  EXPECT(WidthOfTiles<double>(256, 0, 1, tuning) == 64);
  EXPECT(WidthOfTiles<double>(224, 0, 1, tuning) == 32);
  EXPECT(WidthOfTiles<double>(256, 32, 1, tuning) == 32);
  EXPECT(WidthOfTiles<double>(256, 0, 2, tuning) == 32);
  EXPECT(WidthOfTiles<float>(256, 0, 1, tuning) == 32);
  EXPECT(WidthOfTiles<std::complex<double>>(192, 0, 1, tuning) == 64);
  EXPECT(WidthOfTiles<std::complex<double>>(128, 0, 1, tuning) == 32);
  tuning.lu.wide_order = 0;
  EXPECT(WidthOfTiles<double>(256, 0, 1, tuning) == 32);
  tuning.lu.whole_order = 240;
  EXPECT(WidthOfTiles<double>(240, 0, 1, tuning) == 240);
  EXPECT(WidthOfTiles<std::complex<float>>(240, 0, 1, tuning) == 240);
  EXPECT(WidthOfTiles<std::complex<float>>(256, 0, 1, tuning) == 32);
  EXPECT(WidthOfTiles<std::complex<double>>(144, 0, 1, tuning) == 144);
  EXPECT(WidthOfTiles<std::complex<double>>(160, 0, 1, tuning) == 32);
  tuning.lu.whole_order_float32 = 256;
  EXPECT(WidthOfTiles<float>(256, 0, 1, tuning) == 256);
  EXPECT(WidthOfTiles<std::complex<float>>(256, 0, 1, tuning) == 32);
  EXPECT(WidthOfTiles<double>(256, 0, 1, tuning) == 32);
  tuning.lu.whole_order = 0;
  tuning.lu.wide_order = 60;
  for (int64_t n : {59, 61, 64, 77}) Check<double>(n, 1, 0, 1, 2, On(tuning));
}

TEST(WidthOfTilesOnSeveralRanks) {
  Tuning tuning = LikeGpu();
  tuning.usual_tile = 32;
  tuning.lu.quarter_order = 100;
  tuning.lu.half_order = 200;
  for (int ranks : {2, 3}) {
    EXPECT(WidthOfTiles<double>(99, 0, ranks, tuning) == 8);
    EXPECT(WidthOfTiles<double>(199, 0, ranks, tuning) == 16);
    EXPECT(WidthOfTiles<float>(99, 0, ranks, tuning) == 32);
    EXPECT(WidthOfTiles<double>(200, 0, ranks, tuning) == 32);
    EXPECT(WidthOfTiles<double>(99, 32, ranks, tuning) == 32);
    EXPECT(WidthOfTiles<std::complex<double>>(60, 0, ranks, tuning) == 16);
    EXPECT(WidthOfTiles<std::complex<double>>(120, 0, ranks, tuning) == 32);
    EXPECT(WidthOfTiles<std::complex<float>>(119, 0, ranks, tuning) == 32);
    for (int64_t n : {61, 99, 131, 200}) Check<double>(n, ranks, 0, 1, 2, On(tuning));
  }
  EXPECT(WidthOfTiles<double>(99, 0, 1, tuning) == 32);
  tuning.gather_to_solve = 150;
  EXPECT(WidthOfTiles<double>(99, 0, 2, tuning) == 32);
  EXPECT(WidthOfTiles<double>(199, 0, 2, tuning) == 16);
}

// Returns LAPACK's info, and substitution's quotients by zero instead of NaN everywhere.
TEST(ASingularMatrixHasAnInfoAndInfiniteSolutions) {
  for (int ranks : {1, 2, 3, 5}) {
    for (int64_t zero : {0, 6, 16}) {
      GeneralProblem<double> problem(17, 17, ranks);
      for (int64_t j = 0; j < 17; ++j) problem.a[zero * 17 + j] = 0;  // a row of A is a column of M
      problem.Scatter();
      const std::vector<double> b = RightHandSidesOf<double>(17, 2);
      const Answer<double> answer =
          Solve(problem, 2, std::vector<std::vector<double>>(ranks, b), OnHost);
      EXPECT(answer.status[0] == zero + 1) << answer.status[0] << " for row " << zero;
      EXPECT(answer.sign[0] == 0 && answer.log_abs[0] == -std::numeric_limits<double>::infinity())
          << answer.sign[0] << " " << answer.log_abs[0];
      const bool finite = std::all_of(answer.x[0].begin(), answer.x[0].end(),
                                      [](double x) { return std::isfinite(x); });
      EXPECT(!finite);
    }
  }
  // The last row has 3 / 0, and the first row has 0 times that, as in LAPACK.
  GeneralProblem<double> problem(2, 2, 2);
  problem.a = {4, 0, 0, 0};
  problem.Scatter();
  const Answer<double> answer = Solve(problem, 1, {{8, 3}, {8, 3}}, OnHost);
  EXPECT(answer.status[0] == 2 && std::isnan(answer.x[0][0]) && std::isinf(answer.x[0][1]))
      << answer.status[0] << ": " << answer.x[0][0] << " " << answer.x[0][1];
}

template <typename T>
void ExpectNaN(const Answer<T>& answer) {
  EXPECT(std::isnan(std::abs(answer.sign[0])) && std::isnan(answer.log_abs[0]))
      << answer.sign[0] << " " << answer.log_abs[0];
  for (const T& x : answer.x[0]) EXPECT(std::isnan(std::abs(x))) << x;
}

template <typename T>
void CheckNotFinite() {
  using R = Real<T>;
  for (int ranks : {1, 2, 5}) {
    for (R bad : {std::numeric_limits<R>::quiet_NaN(), std::numeric_limits<R>::infinity()}) {
      for (int64_t place = 0; place < 11 * 11; ++place) {
        GeneralProblem<T> problem(11, 11, ranks);
        problem.a[place] = bad;
        problem.Scatter();
        const std::vector<T> b = RightHandSidesOf<T>(11, 1);
        const Answer<T> answer = Solve(problem, 2, std::vector<std::vector<T>>(ranks, b), OnHost);
        EXPECT(answer.status[0] == kNotFinite) << answer.status[0] << " for element " << place;
        ExpectNaN(answer);
      }
    }
  }
}

TEST(NaNAndInfinityAreAStatusAndNaN) {
  CheckNotFinite<double>();
  CheckNotFinite<std::complex<float>>();
}

TEST(RanksWithDifferentRightHandSidesAreAStatus) {
  for (int64_t gather : {0, 50}) {
    Tuning tuning = LikeGpu();
    tuning.gather_to_solve = gather;
    GeneralProblem<double> problem(13, 13, 3);
    std::vector<std::vector<double>> b(3, RightHandSidesOf<double>(13, 2));
    b[1][5] += 1;
    const Answer<double> answer = Solve(problem, 0, b, On(tuning), true);
    EXPECT(answer.status[0] == kDifferentOperands) << answer.status[0];
    ExpectNaN(answer);
  }
}

// Badly scaled rows and columns. The error is bounded for each row of A separately, because
// elimination scales with the columns of M.
TEST(BadlyScaledRows) {
  for (int ranks : {1, 3}) {
    for (bool descends : {false, true}) {
      GeneralProblem<double> problem(30, 30, ranks);
      const std::vector<double> x(30, 1);
      for (int64_t i = 0; i < 30; ++i) {
        const double size = std::pow(10.0, (descends ? -1 : 1) * 8.0 * static_cast<double>(i - 15));
        for (int64_t j = 0; j < 30; ++j) problem.a[i * 30 + j] *= size;
      }
      problem.Scatter();
      const std::vector<double> b = testing::Product(Op::kNone, 30, problem.a, x);
      const Answer<double> answer =
          Solve(problem, 4, std::vector<std::vector<double>>(ranks, b), OnHost);
      EXPECT(answer.status[0] == 0);
      for (double value : answer.x[0]) EXPECT(std::abs(value - 1) < 1e-10) << value;
    }
  }
}

// Pivots grow to 2^(n - 1), the largest possible growth, as in LAPACK.
TEST(WilkinsonsMatrixHasTheLargestGrowth) {
  const int64_t n = 30;
  GeneralProblem<double> problem(n, n, 3);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      // M = A^T has ones on the diagonal and in the last column, and -1 below the diagonal.
      problem.a[j * n + i] = i == j || j == n - 1 ? 1 : i > j ? -1 : 0;
    }
  }
  problem.Scatter();
  const std::vector<double> b = RightHandSidesOf<double>(n, 1);
  const Answer<double> answer = Solve(problem, 4, std::vector<std::vector<double>>(3, b), OnHost);
  EXPECT(answer.status[0] == 0 && answer.sign[0] == 1);
  EXPECT(std::abs(answer.log_abs[0] - static_cast<double>(n - 1) * std::log(2.0)) < 1e-12)
      << answer.log_abs[0];
}

TEST(ProductsOfLowerPrecisionAreUsed) {
  GeneralProblem<float> problem(60, 60, 2);
  const std::vector<float> b = RightHandSidesOf<float>(60, 1);
  auto solve = [&](Precision precision) {
    std::vector<float> x(60);
    GeneralProblem<float> own(60, 60, 2);
    const auto outcomes = RunRanks(
        2,
        [&](const RankContext& context) {
          Real<float> log_abs;
          float sign;
          std::vector<float> mine(60);
          Operand<float> operand = own.operand(context.comm.rank(), 8, nullptr);
          operand.precision = precision;
          const Status status =
              GesvRoutine<float>(context, operand, {1, mine.data(), &log_abs, &sign, b.data()});
          if (context.comm.rank() == 0) x = mine;
          return status;
        },
        kPatience,
        [](int) {
          static const std::unique_ptr<Device> host = NewHostDevice();
          return WithTf32(*host, NewHostDevice()->tuning());
        });
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
    return BackwardError(Op::kNone, 60, own.a, x, b);
  };
  const float highest = solve(Precision::kHighest), tf32 = solve(Precision::kTf32);
  EXPECT(highest < 100 && tf32 > 5 * highest && tf32 < 1e5) << highest << " and " << tf32;
}

TEST(StreamsWaitForEachOther) {
  for (const auto& [n, ranks, tile] :
       {std::tuple{1, 3, 1}, {17, 4, 2}, {30, 5, 4}, {40, 1, 7}, {61, 4, 2}, {63, 2, 9}}) {
    Recording recording(ranks);
    GeneralProblem<double> problem(n, n, ranks, 1);
    const std::vector<double> b = RightHandSidesOf<double>(n, 2);
    Solve(problem, tile, std::vector<std::vector<double>>(ranks, b), [&](int rank) {
      return NewRecordingDevice(NewHostDevice(), LikeGpu(), recording, rank);
    });
    const std::string race = recording.FirstRace();
    EXPECT(race.empty()) << problem.name() << race;
  }
}

}  // namespace
}  // namespace jaxmg
