// The product of a Hermitian matrix with vectors, distributed by the caller's rows, on the host and
// on devices with streams.
#include "xla_ffi/engine/cholesky/hemm.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/core/gather.h"

namespace jaxmg {
namespace {

using namespace testing;

const Case kCases[] = {
    {1, 1, 0},  {1, 3, 1},     {2, 2, 1},     {5, 8, 2},  {7, 2, 3},  {16, 4, 4},
    {17, 4, 2}, {33, 3, 5, 2}, {61, 4, 2, 1}, {40, 1, 7}, {63, 5, 9}, {97, 3, 0},
};

// Returns each rank's A x. Computes each product twice, to compare the bits.
template <typename T>
std::vector<std::vector<T>> Products(const Case& c, const Problem<T>& problem,
                                     const std::vector<T>& x, int64_t nrhs, int64_t parts,
                                     const DeviceMaker& make) {
  std::vector<std::vector<T>> y(c.ranks), again(c.ranks);
  for (auto* products : {&y, &again}) {
    const auto outcomes = RunRanks(
        c.ranks,
        [&](const RankContext& context) {
          const int rank = context.comm.rank();
          std::vector<T>& mine = (*products)[rank];
          mine.assign(x.size(), NaN<T>());
          return HemmRoutine<T>(context, {c.n, problem.block, c.tile, problem.blocks[rank].data(),
                                          nrhs, x.data(), mine.data(), parts});
        },
        kPatience, make);
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  }
  EXPECT(y == again) << "n " << c.n << " ranks " << c.ranks << ": another run has other bits";
  return y;
}

template <typename T>
void CheckProduct(const Case& c, int64_t nrhs, int64_t parts, const DeviceMaker& make) {
  Problem<T> problem(c, /*definite=*/false);
  const auto before = problem.blocks;
  std::mt19937_64 random(c.n);
  std::vector<T> x(c.n * nrhs);
  for (T& value : x) value = Random<T>(random);
  const auto y = Products(c, problem, x, nrhs, parts, make);
  for (int rank = 0; rank < c.ranks; ++rank) {
    EXPECT(y[rank] == y[0]) << "n " << c.n << " ranks " << c.ranks << ": ranks differ";
    EXPECT(std::memcmp(before[rank].data(), problem.blocks[rank].data(),
                       before[rank].size() * sizeof(T)) == 0)
        << "n " << c.n << ": A has changed";
  }
  for (int64_t i = 0; i < c.n; ++i) {
    for (int64_t r = 0; r < nrhs; ++r) {
      T exact = 0;
      Real<T> size = 0;
      for (int64_t j = 0; j < c.n; ++j) {
        const T term = problem.a[i * c.n + j] * x[j * nrhs + r];
        exact += term;
        size += std::abs(term);
      }
      const Real<T> error = std::abs(y[0][i * nrhs + r] - exact);
      EXPECT(error <= 4 * c.n * kEps<T> * size)
          << "n " << c.n << " ranks " << c.ranks << " tile " << c.tile << " nrhs " << nrhs
          << " parts " << parts << " row " << i << ": " << error;
    }
  }
}

template <typename T>
void CheckEveryDevice() {
  Tuning pieces = LikeGpu();
  pieces.resident_bytes = 5 * sizeof(T);
  for (const Case& c : kCases) {
    for (const auto& [nrhs, parts] : {std::pair{0, 1}, {0, 2}, {1, 1}, {1, 7}, {3, 1}, {3, 5}}) {
      CheckProduct<T>(c, nrhs, parts, OnHost);
      for (const Tuning& tuning : {LikeGpu(), pieces}) {
        CheckProduct<T>(c, nrhs, parts,
                        [&](int) { return NewAsyncDevice(NewHostDevice(), tuning); });
      }
    }
  }
}

TEST(ProductsReadTheUpperTriangleAlone) {
  CheckEveryDevice<float>();
  CheckEveryDevice<double>();
  CheckEveryDevice<std::complex<float>>();
  CheckEveryDevice<std::complex<double>>();
}

TEST(OrdersOfManyTilesOfTheDefaultWidth) {
  CheckProduct<double>({1300, 2, 0}, 2, 1, OnHost);
  CheckProduct<double>({1300, 2, 0}, 2, 10, OnHost);
  CheckProduct<std::complex<float>>({700, 1, 0}, 1, 1, OnHost);
}

// Sums positive numbers; the sum is far larger than each of them.
TEST(SummationInPartsRoundsLess) {
  const Case c = {4000, 1, 0};
  const std::vector<float> a(c.n * c.n, 1.0f / 3), x(c.n, 1.0f / 7);
  auto error = [&](int64_t parts) {
    std::vector<float> y(c.n);
    const auto outcomes = RunRanks(
        1,
        [&](const RankContext& context) {
          return HemmRoutine<float>(context,
                                    {c.n, c.n, c.tile, a.data(), 1, x.data(), y.data(), parts});
        },
        kPatience, OnHost);
    EXPECT(outcomes[0].ok()) << outcomes[0].message();
    const double exact = 1.0 * c.n * a[0] * x[0];
    double largest = 0;
    for (float value : y) largest = std::max(largest, std::abs(value - exact) / exact);
    return largest / kEps<float>;
  };
  EXPECT(error(1) > 10) << error(1);
  EXPECT(error(200) < 3) << error(200);
}

void CheckStreams(int64_t parts) {
  for (const Case& c : kCases) {
    Problem<double> problem(c);
    std::vector<std::vector<double>> x(c.ranks, std::vector<double>(c.n * 2, 1)), y = x;
    Recording recording(c.ranks);
    const auto outcomes = RunRanks(
        c.ranks,
        [&](const RankContext& context) {
          const int rank = context.comm.rank();
          return HemmRoutine<double>(
              context, {c.n, problem.block, c.tile, problem.blocks[rank].data(), 2, x[rank].data(),
                        y[rank].data(), parts});
        },
        kPatience,
        [&](int rank) { return NewRecordingDevice(NewHostDevice(), LikeGpu(), recording, rank); });
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
    const std::string race = recording.FirstRace();
    EXPECT(race.empty()) << "n " << c.n << " ranks " << c.ranks << ": " << race;
  }
}

TEST(StreamsWaitForEachOther) {
  CheckStreams(1);
  CheckStreams(4);
}

TEST(BlocksAreGatheredInTheOrderOfTheRanks) {
  for (int ranks : {1, 2, 5}) {
    for (int64_t count : {0, 1, 7}) {
      std::vector<std::vector<double>> parts(ranks), all(ranks);
      std::vector<double> expected;
      for (int rank = 0; rank < ranks; ++rank) {
        parts[rank].assign(count, rank + 0.5);
        expected.insert(expected.end(), parts[rank].begin(), parts[rank].end());
        all[rank].assign(ranks * count, -1);
      }
      const auto outcomes = RunRanks(
          ranks,
          [&](const RankContext& context) {
            const int rank = context.comm.rank();
            return AllGatherRoutine<double>(context, count, parts[rank].data(), all[rank].data());
          },
          kPatience, [](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); });
      for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
      for (const auto& actual : all) EXPECT(actual == expected) << ranks << " " << count;
    }
  }
}

TEST(RunningOutOfMemoryIsAnErrorOnAllRanks) {
  const Case c = {20, 3, 4};
  Problem<double> problem(c);
  std::vector<double> x(c.n, 1);
  std::vector<std::vector<double>> y(c.ranks, x);
  const auto host = NewHostDevice();
  const auto outcomes = RunRanks(
      c.ranks,
      [&](const RankContext& context) {
        const int rank = context.comm.rank();
        return HemmRoutine<double>(
            context,
            {c.n, problem.block, c.tile, problem.blocks[rank].data(), 1, x.data(), y[rank].data()});
      },
      kPatience,
      [&](int rank) -> std::unique_ptr<Device> {
        if (rank == 1) return std::make_unique<NoMemory>(*host);
        return NewHostDevice();
      });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kResourceExhausted) << outcome.message();
  }
}

}  // namespace
}  // namespace jaxmg
