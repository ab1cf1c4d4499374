// The order of routines' operations on the streams of all ranks: events order every two accesses to
// the same memory of which at least one writes, so that no device can execute them concurrently.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/cholesky/factor.h"
#include "xla_ffi/engine/eigen/sygvd.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;
using T = double;  // the dtype changes no order

const Case kCases[] = {
    {1, 1, 0},     {5, 8, 2},  {17, 4, 2}, {30, 5, 4}, {33, 3, 5, 2}, {40, 1, 4},
    {40, 4, 2, 1}, {42, 7, 3}, {64, 4, 4}, {24, 2, 1}, {40, 2, 0},
};

// Runs a routine on all ranks with recording devices, and checks that it has no race.
template <typename Routine>
void ExpectNoRace(const Case& c, const Tuning& tuning, const std::string& name,
                  const Routine& routine) {
  Recording recording(c.ranks);
  const auto outcomes = RunRanks(c.ranks, routine, kPatience, [&](int rank) {
    return NewRecordingDevice(NewHostDevice(), tuning, recording, rank);
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  const std::string race = recording.FirstRace();
  EXPECT(race.empty()) << name << " n " << c.n << " ranks " << c.ranks << " tile " << c.tile
                       << " panel block " << tuning.cholesky.panel_block << ": " << race;
}

void CheckRoutines(const Case& c, const Tuning& tuning) {
  for (int64_t nrhs : {0, 1, 3}) {
    Problem<T> problem(c);
    std::vector<std::vector<T>> x(c.ranks, std::vector<T>(c.n * nrhs, 1));
    std::vector<T> log_det(c.ranks);
    std::vector<int32_t> status(c.ranks);
    ExpectNoRace(c, tuning, "potrs", [&](const RankContext& context) {
      const int rank = context.comm.rank();
      return PotrsRoutine<T>(context, problem.operand(rank, c.tile, &status[rank]),
                             {nrhs, x[rank].data(), &log_det[rank]});
    });
  }
  Problem<T> inverse(c), eigen(c), cyclic(c);
  std::vector<int32_t> status(c.ranks);
  std::vector<std::vector<T>> w(c.ranks, std::vector<T>(c.n));
  ExpectNoRace(c, tuning, "potri", [&](const RankContext& context) {
    const int rank = context.comm.rank();
    return PotriRoutine<T>(context, inverse.operand(rank, c.tile, &status[rank]));
  });
  ExpectNoRace(c, tuning, "syevd", [&](const RankContext& context) {
    const int rank = context.comm.rank();
    return SyevdRoutine<T>(context, eigen.operand(rank, c.tile, &status[rank]), true,
                           w[rank].data());
  });
  for (int64_t tile : {int64_t{1}, int64_t{4}, cyclic.block}) {
    for (bool inverse : {false, true}) {
      if (cyclic.block % tile != 0) continue;
      ExpectNoRace(c, tuning, "cyclic_1d", [&](const RankContext& context) {
        return CyclicRoutine<T>(context, cyclic.block, c.n, tile, inverse,
                                cyclic.blocks[context.comm.rank()].data());
      });
    }
  }
}

// Tests generalized eigenproblems, solved by one rank or by all, with a subset of the eigenvectors.
void CheckGeneralized(const Case& c, Tuning tuning) {
  for (const int64_t from : {0, 1}) {
    tuning.eigen.ShareFrom(from);
    tuning.eigen.band_width = 4;
    Problem<T> a(c, false), b(c);
    std::vector<int32_t> status(c.ranks);
    std::vector<std::vector<T>> w(c.ranks, std::vector<T>(c.n));
    const Subset subset = {c.n / 3, c.n};
    std::vector<std::vector<T>> v(c.ranks, std::vector<T>(subset.count() * a.block));
    ExpectNoRace(c, tuning, "sygvd", [&](const RankContext& context) {
      const int rank = context.comm.rank();
      return SygvdRoutine<T>(context, a.operand(rank, c.tile, &status[rank]),
                             b.operand(rank, c.tile, nullptr), subset, w[rank].data(),
                             v[rank].data());
    });
  }
}

TEST(EveryAccessOfGeneralizedEigenproblemsIsOrdered) {
  for (const Case& c : kCases) {
    for (const Tuning& tuning : {LikeGpu(), NewHostDevice()->tuning()}) {
      CheckGeneralized(c, tuning);
    }
  }
}

// Tests a kept factor, the operations with it, and its redistribution to rows and back.
void CheckFactor(const Case& c, const Tuning& tuning) {
  for (int64_t nrhs : {1, 3}) {
    Problem<T> problem(c);
    std::vector<std::vector<T>> x(c.ranks, std::vector<T>(c.n * nrhs, 1));
    std::vector<T> overflow(c.ranks * c.n * c.n);
    std::vector<int32_t> status(c.ranks);
    ExpectNoRace(c, tuning, "factor", [&](const RankContext& context) -> Status {
      const int rank = context.comm.rank();
      Operand<T> factor = problem.operand(rank, c.tile, &status[rank]);
      factor.overflow = &overflow[rank * c.n * c.n];
      JAXMG_RETURN_IF_ERROR(PotrfRoutine<T>(context, factor, static_cast<T*>(nullptr)));
      for (Apply apply : {Apply::kSolve, Apply::kSolveL, Apply::kSolveLH, Apply::kMultiplyL,
                          Apply::kMultiplyLH}) {
        JAXMG_RETURN_IF_ERROR(ApplyRoutine<T>(context, factor, apply, nrhs, x[rank].data()));
      }
      JAXMG_RETURN_IF_ERROR(MoveFactorRoutine<T>(context, factor, true));
      JAXMG_RETURN_IF_ERROR(MoveFactorRoutine<T>(context, factor, false));
      return InvertRoutine<T>(context, factor);
    });
  }
}

TEST(EveryAccessToAFactorIsOrdered) {
  for (const Case& c : kCases) {
    for (const Tuning& tuning : {LikeGpu(), LikeGpu(0), NewHostDevice()->tuning()}) {
      CheckFactor(c, tuning);
    }
  }
}

TEST(EveryAccessIsOrderedWithTheTuningOfGpus) {
  for (const Case& c : kCases) {
    for (int64_t depth : {0, 9, 20}) CheckRoutines(c, LikeGpu(depth));
  }
}

TEST(EveryAccessIsOrderedOnHostsAndWithCopiedPanels) {
  Tuning pieces;
  pieces.cholesky.panel_block = 5;
  for (const Case& c : kCases) {
    for (const Tuning& tuning : {NewHostDevice()->tuning(), Tuning(), pieces}) {
      CheckRoutines(c, tuning);
    }
  }
}

// Chunks are small, so that several share the staging tile and its parts are reused.
TEST(EveryAccessIsOrderedWithNarrowChunks) {
  for (int64_t bytes : {1, 200, 2000}) {
    Tuning tuning = LikeGpu();
    tuning.exchange_bytes = bytes;
    for (const Case& c : {Case{64, 4, 16}, Case{61, 3, 8}, Case{96, 4, 24, 1}}) {
      CheckRoutines(c, tuning);
    }
  }
}

}  // namespace
}  // namespace jaxmg
