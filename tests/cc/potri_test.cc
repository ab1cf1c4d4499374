// PotriRoutine on threads, with textbook LAPACK: every dtype, many sizes, layouts and rank counts,
// and ranks that fail.
#include "xla_ffi/engine/cholesky/potri.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <new>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/lapack.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
void CheckPotri(const Case& c, const Tuning* tuning = nullptr) {
  Problem<T> problem(c);
  const int64_t n = c.n;
  std::vector<int32_t> status(c.ranks, -1);
  const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    Tuned tuned(context.device, tuning != nullptr ? *tuning : context.device.tuning());
    return PotriRoutine<T>({tuned, context.comm}, problem.operand(rank, c.tile, &status[rank]));
  });
  for (int rank = 0; rank < c.ranks; ++rank) {
    EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
    EXPECT(status[rank] == 0) << TextOf(c);
  }
  Real<T> error = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T sum = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) sum += problem.a[i * n + k] * problem.block_at(k, j);
      error += std::norm(sum);
      EXPECT(problem.block_at(i, j) == Conj(problem.block_at(j, i))) << TextOf(c);
    }
  }
  EXPECT(std::sqrt(error) <= 100 * n * kEps<T>) << TextOf(c) << " " << std::sqrt(error);
}

template <typename T>
void CheckOnHost(const Case& c) {
  CheckPotri<T>(c);
}

template <typename T>
void CheckLikeGpu(const Case& c) {
  const Tuning tuning = LikeGpu();
  CheckPotri<T>(c, &tuning);
}

template <typename T>
void CheckGathered(const Case& c) {
  Case chosen = c;
  chosen.tile = 0;
  for (const Tuning& tuning : GatheringTunings()) CheckPotri<T>(chosen, &tuning);
}

JAXMG_TEST_EACH_DTYPE(PotriInverts, CheckOnHost)
JAXMG_TEST_EACH_DTYPE(PotriInvertsWithTheTuningOfGpus, CheckLikeGpu)
JAXMG_TEST_EACH_DTYPE(PotriInvertsOnOneRank, CheckGathered)

TEST(StreamsOfPotriWaitForEachOther) {
  for (const Case& c : kCases) {
    if (c.n > 70) continue;
    for (const Tuning& tuning : TuningsOnStreams()) {  // the dtype changes no order
      OnStreams(tuning, [&] { CheckPotri<double>(c); });
    }
  }
}

TEST(OneRankOutOfMemoryIsTheSameErrorOnAll) {
  Problem<double> problem({30, 4, 4});
  std::vector<int32_t> status(4, -1);
  const auto outcomes = RunRanks(4, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    NoMemory poor(context.device);
    const RankContext mine = {rank == 2 ? poor : context.device, context.comm};
    return PotriRoutine<double>(mine, problem.operand(rank, 4, &status[rank]));
  });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kResourceExhausted) << outcome.message();
    EXPECT(outcome.message() == "out of memory on purpose") << outcome.message();
  }
}

TEST(AFailureOfOneRankReleasesTheOthers) {
  Problem<double> problem({60, 3, 4});
  // LAPACK fails on rank 1 at its third tile.
  static thread_local int calls_left = -1;
  static void (*potrf)(char*, int*, double*, int*, int*) = HostLapack<double>().potrf;
  HostLapack<double>().potrf = [](char* uplo, int* n, double* a, int* lda, int* info) {
    if (calls_left >= 0 && calls_left-- == 0) throw std::bad_alloc();
    potrf(uplo, n, a, lda, info);
  };
  std::vector<int32_t> status(3, -1);
  const auto outcomes = RunRanks(3, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    calls_left = rank == 1 ? 2 : -1;
    return PotriRoutine<double>(context, problem.operand(rank, 4, &status[rank]));
  });
  HostLapack<double>().potrf = potrf;
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kResourceExhausted) << outcome.message();
  }
}

}  // namespace
}  // namespace jaxmg
