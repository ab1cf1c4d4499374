// The redistribution between blocks and tiles, on threads: every dtype, many sizes, layouts and
// rank counts. layout_test.cc tests its plan.
#include "xla_ffi/engine/core/redistribute.h"

#include <complex>
#include <cstdint>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
void CheckRedistribution(const Case& c) {
  if (c.tile == 0) return;
  const int64_t block = (c.n + c.ranks - 1) / c.ranks + c.extra_rows, rows = 11;
  const Tiles tiles(c.n, block, c.ranks, c.tile);
  // The value of element (i, j) is unique.
  auto element = [](int64_t i, int64_t j) { return T(Real<T>(i + 1000 * j)); };
  std::vector<std::vector<T>> data(c.ranks, std::vector<T>(rows * block, NaN<T>()));
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < rows; ++i) data[j / block][(j % block) * rows + i] = element(i, j);
  }
  const auto before = data;
  const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    // Exactly one staging tile and one overflow tile.
    std::vector<T> staging(rows * tiles.width()), overflow(rows * tiles.width());
    const Matrix<T> matrix = {tiles, rank, rows, data[rank].data(), overflow.data()};
    JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context, matrix, Region::kFull, staging.data()));
    JAXMG_RETURN_IF_ERROR(context.device.Synchronize());
    for (int64_t p = rank; p < tiles.nonempty(); p += c.ranks) {
      for (int64_t j = 0; j < tiles.width(p); ++j) {
        for (int64_t i = 0; i < rows; ++i) {
          EXPECT(matrix.tile(p, i)[j * rows] == element(i, tiles.offset(p) + j)) << TextOf(c);
        }
      }
    }
    JAXMG_RETURN_IF_ERROR(ToContiguous(context, matrix, Region::kFull, staging.data()));
    JAXMG_RETURN_IF_ERROR(context.device.Synchronize());
    return context.comm.Agree(Status::Ok());
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (j % block) * rows + i;
      EXPECT(data[j / block][at] == before[j / block][at]) << TextOf(c);
    }
  }
}

JAXMG_TEST_EACH_DTYPE(RedistributionAndItsInverseInTheirWorkspace, CheckRedistribution)

TEST(StreamsOfTheRedistributionWaitForEachOther) {
  for (const Case& c : kCases) {
    if (c.n > 70) continue;
    OnStreams(LikeGpu(), [&] { CheckRedistribution<double>(c); });
  }
}

}  // namespace
}  // namespace jaxmg
