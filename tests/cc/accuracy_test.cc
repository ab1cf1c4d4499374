// The accuracy of routines in each precision, also for matrices on which products with inverses
// fail.
#include <cmath>
#include <complex>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/tf32_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;

// Returns the backward error of potrs and |A X - 1| of potri in this precision.
template <typename T>
std::pair<Real<T>, Real<T>> ErrorsIn(Precision precision) {
  constexpr int64_t n = 90;
  constexpr int kRanks = 3;
  Problem<T> problem({n, kRanks, 8}), inverse({n, kRanks, 8});
  const std::vector<T> b(n, 1);
  std::vector<std::vector<T>> x(kRanks, b);
  const auto outcomes = RunRanks(kRanks, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    const auto device = WithTf32(context.device, LikeGpu());
    const RankContext mine = {*device, context.comm};
    Real<T> log_det;
    int32_t status;
    Operand<T> operand = problem.operand(rank, 8, &status);
    operand.precision = precision;
    JAXMG_RETURN_IF_ERROR(PotrsRoutine<T>(mine, operand, {1, x[rank].data(), &log_det}));
    operand = inverse.operand(rank, 8, &status);
    operand.precision = precision;
    return PotriRoutine<T>(mine, operand);
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  Real<T> residual = 0, size = 0, distance = 0;
  for (int64_t i = 0; i < n; ++i) {
    T sum = -b[i];
    for (int64_t j = 0; j < n; ++j) {
      sum += problem.a[i * n + j] * x[0][j];
      T entry = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) entry += problem.a[i * n + k] * inverse.block_at(k, j);
      distance += std::norm(entry);
    }
    residual += std::norm(sum);
    size += std::norm(x[0][i]);
  }
  return {std::sqrt(residual) / (problem.norm() * std::sqrt(size)), std::sqrt(distance)};
}

template <typename T>
void CheckPrecision() {
  const auto exact = ErrorsIn<T>(Precision::kHighest), rounded = ErrorsIn<T>(Precision::kTf32);
  constexpr double kTf32Eps = 1.0 / 1024;
  EXPECT(exact.first < 10 * kEps<T>) << exact.first;
  EXPECT(exact.second < 1000 * kEps<T>) << exact.second;
  EXPECT(rounded.first > 10 * exact.first && rounded.first < kTf32Eps) << rounded.first;
  EXPECT(rounded.second > 10 * exact.second && rounded.second < 10 * kTf32Eps) << rounded.second;
}

TEST(OnlyProductsAreInTheRequestedPrecision) {
  CheckPrecision<float>();
  CheckPrecision<std::complex<float>>();
  EXPECT(ErrorsIn<double>(Precision::kTf32) == ErrorsIn<double>(Precision::kHighest));
}

// Returns |A X - I| / (|A| |X|) in units of rounding. A is a smooth kernel on a line:
// ill-conditioned as a whole and within every diagonal tile.
double InverseError(const Tuning& tuning) {
  constexpr int64_t n = 128, tile = 32;
  constexpr int ranks = 2;
  Problem<double> problem({n, ranks, tile});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      problem.a[i * n + j] = std::exp((i - j) * (i - j) / -50.0) + (i == j ? 1e-10 : 0);
    }
  }
  problem.Scatter();
  std::vector<int32_t> status(ranks, -1);
  const auto outcomes = RunRanks(ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    Tuned tuned(context.device, tuning);
    return PotriRoutine<double>({tuned, context.comm}, problem.operand(rank, tile, &status[rank]));
  });
  EXPECT(outcomes[0].ok() && status[0] == 0) << outcomes[0].message() << " " << status[0];
  double error = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) sum += problem.a[i * n + k] * problem.block_at(k, j);
      error += sum * sum;
      size += problem.block_at(i, j) * problem.block_at(i, j);
    }
  }
  return std::sqrt(error / size) / problem.norm() / kEps<double>;
}

// Returns |A x - b| / (|A| |x|) of potrs in units of rounding, for a smooth kernel and a smooth b.
// Returns infinity if the kernel is not numerically positive definite.
double SolveError(const Tuning& tuning, double width, double nugget) {
  constexpr int64_t n = 256, tile = 64;
  constexpr int ranks = 2;
  Problem<double> problem({n, ranks, tile});
  std::vector<double> b(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      problem.a[i * n + j] = std::exp(-((i - j) * (i - j)) / width) + (i == j ? nugget : 0);
      b[i] += problem.a[i * n + j];
    }
  }
  problem.Scatter();
  std::vector<int32_t> status(ranks, -1);
  std::vector<std::vector<double>> x(ranks, b);
  const auto outcomes = RunRanks(ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    Tuned tuned(context.device, tuning);
    double log_det;
    return PotrsRoutine<double>({tuned, context.comm}, problem.operand(rank, tile, &status[rank]),
                                {1, x[rank].data(), &log_det});
  });
  EXPECT(outcomes[0].ok()) << outcomes[0].message();
  if (status[0] != 0) return std::numeric_limits<double>::infinity();
  double error = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = -b[i];
    for (int64_t j = 0; j < n; ++j) sum += problem.a[i * n + j] * x[0][j];
    error += sum * sum;
    size += x[0][i] * x[0][i];
  }
  return std::sqrt(error / size) / problem.norm() / kEps<double>;
}

TEST(PotrsIsAsAccurateAsLapackOnSmoothKernels) {
  for (double width : {50.0, 500.0, 5000.0}) {
    for (double nugget : {1e-9, 1e-11, 1e-12, 1e-13}) {
      Tuning tuning;
      const double substitution = SolveError(tuning, width, nugget);
      tuning.cholesky.panel_block = 32;
      const double like_gpu = SolveError(tuning, width, nugget);
      EXPECT(substitution < 5) << width << " " << nugget << " " << substitution;
      EXPECT(like_gpu < 5) << width << " " << nugget << " " << like_gpu;
    }
  }
}

TEST(PotriIsAsAccurateAsLapackOnAnIllConditionedMatrix) {
  Tuning tuning;
  const double substitution = InverseError(tuning);
  EXPECT(substitution < 5) << substitution;
  tuning.cholesky.panel_block = 8;
  const double like_gpu = InverseError(tuning);
  EXPECT(like_gpu < 5) << like_gpu;
}

}  // namespace
}  // namespace jaxmg
