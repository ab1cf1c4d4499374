// LU factorization and solves with it, on the host, on an AsyncDevice and on a RecordingDevice.
#include "xla_ffi/engine/lu/getrf.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/distributed.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/engine/lu/getrs.h"

namespace jaxmg {
namespace {

using namespace testing;

const Shape kShapes[] = {
    {1, 1, 1, 1},   {1, 1, 3, 1},   {2, 2, 2, 1},   {5, 5, 8, 2},    {7, 7, 2, 3},   {16, 16, 4, 4},
    {17, 17, 4, 2}, {33, 33, 3, 5}, {40, 40, 1, 7}, {61, 61, 4, 2},  {63, 63, 5, 9}, {97, 97, 3, 8},
    {40, 13, 3, 4}, {50, 31, 1, 6}, {13, 40, 3, 4}, {29, 50, 4, 11}, {3, 61, 2, 5},  {61, 3, 2, 5},
};

// The factorization of a distributed matrix and its right-hand sides, and the results on all ranks.
template <typename T>
struct Result {
  std::vector<T> lu;
  std::vector<std::vector<int32_t>> pivots;
  std::vector<std::vector<T>> x;  // X U^-1 L^-1 P
  std::vector<int32_t> info;
  Real<T> log_abs = 0;
  T sign = 1;
};

template <typename T>
Result<T> Factor(const Shape& shape, const std::vector<T>& a, const std::vector<T>& b,
                 const DeviceMaker& make) {
  Distributed<T> distributed(shape, a);
  const int64_t nrhs = static_cast<int64_t>(b.size()) / shape.columns;
  const int64_t count = std::min(shape.rows, shape.columns);
  Result<T> result;
  result.pivots.assign(shape.ranks, std::vector<int32_t>(count, -1));
  result.x.assign(shape.ranks, b);
  result.info.assign(shape.ranks, kNoInfo);
  std::vector<Real<T>> log_abs(shape.ranks, 0);
  std::vector<T> signs(shape.ranks, T(1));
  const auto outcomes = RunRanks(
      shape.ranks,
      [&](const RankContext& context) -> Status {
        const int rank = context.comm.rank();
        const Matrix<T> matrix = distributed.matrix(rank);
        const int64_t workspace =
            GetrfWorkspace<T>(matrix.tiles, matrix.rows, context.device.tuning());
        std::unique_ptr<Buffer> space, local;
        JAXMG_RETURN_IF_ERROR(context.device.Allocate(workspace * sizeof(T), &space));
        JAXMG_RETURN_IF_ERROR(
            context.device.Allocate(LocalRightHandSides(matrix.tiles, nrhs) * sizeof(T), &local));
        const RightHandSides<T> x = {nrhs, result.x[rank].data(), local->as<T>()};
        const Determinant<T> determinant = {&log_abs[rank], &signs[rank]};
        JAXMG_RETURN_IF_ERROR(Getrf(context, Precision::kHighest, matrix, x, space->as<T>(),
                                    result.pivots[rank].data(), &result.info[rank], determinant));
        JAXMG_RETURN_IF_ERROR(FinishGesv(context, matrix, result.pivots[rank].data(), x));
        // Waits, because the memory must live until all ranks have finished.
        const Status done = context.device.Synchronize();
        return context.comm.Agree(done);
      },
      kPatience, make);
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  result.lu = distributed.Gather();
  for (int rank = 0; rank < shape.ranks; ++rank) {
    result.log_abs += log_abs[rank];
    result.sign *= signs[rank];
  }
  return result;
}

// Checks |P A - L U| relative to |A|, and |L| <= 1 up to rounding, as with partial pivoting.
template <typename T>
void CheckFactors(const Shape& shape, std::vector<T> a, const Result<T>& result) {
  const int64_t m = shape.rows, n = shape.columns, count = std::min(m, n);
  const std::vector<int32_t>& pivots = result.pivots[0];
  Real<T> norm = 0;
  for (const T& x : a) norm = std::max<Real<T>>(norm, std::abs(x));
  for (int64_t i = 0; i < count; ++i) {
    EXPECT(pivots[i] >= i && pivots[i] < m) << Name<T>(shape) << "pivot " << i;
    for (int64_t j = 0; j < n; ++j) std::swap(a[j * m + i], a[j * m + pivots[i]]);
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      T product = 0;
      for (int64_t k = 0; k <= std::min({i, j, count - 1}); ++k) {
        product += (k == i ? T(1) : result.lu[k * m + i]) * result.lu[j * m + k];
      }
      const Real<T> error = std::abs(product - a[j * m + i]);
      EXPECT(error <= 20 * (count + 1) * kEps<T> * norm)
          << Name<T>(shape) << "(" << i << ", " << j << ") is off by " << error;
      if (i > j) {
        // Complex pivots are compared by |Re| + |Im|.
        EXPECT(std::abs(result.lu[j * m + i]) <= (kIsComplex<T> ? 1.5 : 1.0001))
            << Name<T>(shape) << "(" << i << ", " << j << ") of L";
      }
    }
  }
}

template <typename T>
void CheckShape(const Shape& shape, int64_t nrhs, const DeviceMaker& make) {
  const int64_t n = shape.columns;
  const std::vector<T> a = RandomMatrix<T>(shape.rows * n, shape.rows * 7 + n);
  const bool square = shape.rows == n;
  const std::vector<T> b = RandomMatrix<T>(square ? n * nrhs : 0, 5);
  const Result<T> result = Factor(shape, a, b, make);
  CheckFactors(shape, a, result);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    EXPECT(result.info[rank] == kNoInfo) << Name<T>(shape) << result.info[rank];
    EXPECT(result.pivots[rank] == result.pivots[0]) << Name<T>(shape) << "ranks' pivots differ";
    EXPECT(result.x[rank] == result.x[0]) << Name<T>(shape) << "ranks' solutions differ";
  }
  if (!square) return;
  // Checks the residual of X M = B.
  Real<T> norm = 0;
  for (const T& x : a) norm = std::max<Real<T>>(norm, std::abs(x));
  for (int64_t r = 0; r < nrhs; ++r) {
    Real<T> size = 0;
    for (int64_t i = 0; i < n; ++i) size += std::abs(result.x[0][i * nrhs + r]);
    for (int64_t j = 0; j < n; ++j) {
      T product = 0;
      for (int64_t i = 0; i < n; ++i) product += result.x[0][i * nrhs + r] * a[j * n + i];
      const Real<T> error = std::abs(product - b[j * nrhs + r]);
      EXPECT(error <= 50 * (n + 1) * kEps<T> * norm * size)
          << Name<T>(shape) << "equation " << j << " of right-hand side " << r << ": " << error;
    }
  }
  // Checks det M against the factors' diagonal and the interchanges.
  T sign = 1;
  Real<T> log_abs = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T pivot = result.lu[i * n + i];
    sign *= pivot / std::abs(pivot);
    if (result.pivots[0][i] != i) sign = -sign;
    log_abs += std::log(std::abs(pivot));
  }
  EXPECT(std::abs(sign - result.sign) < 100 * n * kEps<T>) << Name<T>(shape) << "sign";
  EXPECT(std::abs(log_abs - result.log_abs) <= 10 * n * kEps<T> * (1 + std::abs(log_abs)))
      << Name<T>(shape) << "log |det|: " << result.log_abs << " for " << log_abs;
}

template <typename T>
void CheckEveryDevice() {
  for (const Shape& shape : kShapes) {
    for (int64_t nrhs : {0, 1, 3}) {
      CheckShape<T>(shape, nrhs, OnHost);
      CheckShape<T>(shape, nrhs, [](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); });
    }
  }
}

TEST(FactorsSolutionsAndDeterminants) {
  CheckEveryDevice<float>();
  CheckEveryDevice<double>();
  CheckEveryDevice<std::complex<float>>();
  CheckEveryDevice<std::complex<double>>();
}

// The pivot search covers all rows of a column, so tiles and ranks don't change the pivot.
TEST(PivotsDoNotDependOnRanks) {
  const std::vector<double> a = RandomMatrix<double>(61 * 61, 3);
  const Result<double> alone = Factor<double>({61, 61, 1, 61}, a, {}, OnHost);
  for (const auto& [ranks, tile] : {std::pair{1, 5}, {2, 7}, {4, 2}, {5, 9}}) {
    const Result<double> result = Factor<double>({61, 61, ranks, tile}, a, {}, OnHost);
    EXPECT(result.pivots[0] == alone.pivots[0]) << ranks << " ranks, tiles of " << tile;
  }
}

template <typename T>
std::vector<T> WithColumnOfZeros(int64_t n, int64_t column) {
  std::vector<T> a = RandomMatrix<T>(n * n, 11);
  std::fill_n(a.begin() + column * n, n, T(0));
  return a;
}

TEST(TheFirstZeroPivotIsTheInfo) {
  for (int64_t column : {0, 6, 16}) {
    const std::vector<double> a = WithColumnOfZeros<double>(17, column);
    const Result<double> result = Factor<double>({17, 17, 3, 2}, a, {}, OnHost);
    const int32_t info = *std::min_element(result.info.begin(), result.info.end());
    EXPECT(info == column + 1) << info << " for column " << column;
    EXPECT(result.sign == 0 && result.log_abs == -std::numeric_limits<double>::infinity());
    CheckFactors<double>({17, 17, 3, 2}, a, result);
  }
}

TEST(NonFiniteInputIsReported) {
  const double kBad[] = {NaN<double>(), std::numeric_limits<double>::infinity()};
  for (double bad : kBad) {
    for (int64_t place : {0, 16, 100, 17 * 17 - 1}) {
      std::vector<double> a = RandomMatrix<double>(17 * 17, 2);
      a[place] = bad;
      const Result<double> result = Factor<double>({17, 17, 3, 2}, a, {}, OnHost);
      const int32_t info = *std::min_element(result.info.begin(), result.info.end());
      EXPECT(info == kNotFinite) << info << " for " << bad << " in place " << place;
    }
  }
}

// Replaces LAPACK's getrf by one that returns pivots out of range, as it may if elimination
// produces NaN. It must not get NaN as input. FactorPanel's pivots are valid rows in any case, and
// its info is kNotFinite.
TEST(PivotsAreRows) {
  static auto* const getrf = HostLapack<double>().getrf;
  static bool got_nan = false;
  HostLapack<double>().getrf = [](int* m, int* n, double* a, int* lda, int* pivots, int* info) {
    for (int64_t i = 0; i < *m; ++i) got_nan = got_nan || std::isnan(a[i]);
    getrf(m, n, a, lda, pivots, info);
    for (int i = 0; i < std::min(*m, *n); ++i) pivots[i] = i % 2 == 0 ? 0 : *m + 1;
  };
  const auto device = NewHostDevice();
  for (double first : {1.0, NaN<double>()}) {
    std::vector<double> a = RandomMatrix<double>(5 * 3, 2);
    a[0] = first;
    std::vector<int32_t> pivots(3);
    int32_t info = kNoInfo;
    EXPECT(device->lu<double>()
               .FactorPanel(Stream::kMain, 5, 3, a.data(), 5, 7, pivots.data(), &info)
               .ok());
    EXPECT(info == kNotFinite) << info;
    for (int32_t i = 0; i < 3; ++i) EXPECT(pivots[i] == 7 + i) << pivots[i];
  }
  HostLapack<double>().getrf = getrf;
  EXPECT(!got_nan);
}

TEST(StreamsWaitForEachOther) {
  for (const Shape& shape : kShapes) {
    const int64_t n = shape.columns, nrhs = shape.rows == n ? 2 : 0;
    Recording recording(shape.ranks);
    Factor<double>(
        shape, RandomMatrix<double>(shape.rows * n, 1), RandomMatrix<double>(n * nrhs, 2),
        [&](int rank) { return NewRecordingDevice(NewHostDevice(), LikeGpu(), recording, rank); });
    const std::string race = recording.FirstRace();
    EXPECT(race.empty()) << Name<double>(shape) << race;
  }
}

}  // namespace
}  // namespace jaxmg
