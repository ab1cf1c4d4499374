// The frame around a routine, for square, tall and wide matrices: redistribution of rows to tiles,
// or to the whole matrix on one rank, and back; also ranks that fail.
#include "xla_ffi/engine/core/frame.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

struct Shape {
  int64_t m, n;
  int ranks;
  int64_t tile;
  bool gathers;
};

// The workspace of a routine that only moves its matrix.
struct MoveSpace : RoutineSpace<double> {
  MoveSpace(const Sizes& sizes, const Ranks& ranks, const Tiles& tiles, bool gathers)
      : RoutineSpace<double>(sizes, ranks, tiles, gathers) {
    if (!works) return;
    ReservePanels();
    ReserveOverflow();
  }
};

double Value(int64_t row, int64_t column) {
  return 1000.0 * static_cast<double>(row) + static_cast<double>(column) + 1;
}

Status TakeAndReturn(const RankContext& context, const Shape& s, int64_t block,
                     std::vector<double>& rows, std::string* wrong) {
  const Operand<double> operand = {s.m, s.n, block, s.tile, rows.data(), nullptr};
  const Ranks ranks = RanksOf(context);
  const Tiles tiles = s.gathers ? TilesOf({s.m, s.n, s.m, s.tile}, 1, ranks.tuning)
                                : TilesOf(operand.sizes(), s.ranks, ranks.tuning);
  const MoveSpace space(operand.sizes(), ranks, tiles, s.gathers);
  Frame<double> frame(context, operand, space);
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    if (frame.works()) {
      const Matrix<double> matrix = frame.matrix();
      for (int64_t p = 0; p < tiles.count(); ++p) {
        if (tiles.owner(p) != matrix.rank) continue;
        for (int64_t j = 0; j < tiles.width(p); ++j) {
          for (int64_t i = 0; i < s.n; ++i) {
            const int64_t row = tiles.offset(p) + j;
            double& element = matrix.tile(p, i)[j * matrix.ld()];
            if (element != Value(row, i)) *wrong = "tile " + std::to_string(p);
            element = -element;
          }
        }
      }
    }
    JAXMG_RETURN_IF_ERROR(frame.Untile(Region::kFull));
    JAXMG_RETURN_IF_ERROR(frame.Return());
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, [&] { return frame.Prepare(); }, work);
}

TEST(MatricesOfAnyShapeAreRedistributedAndBack) {
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{7, 7}, {23, 5}, {6, 19}}) {
    for (int ranks : {1, 2, 3}) {
      for (int64_t tile : {int64_t{0}, int64_t{2}, int64_t{3}}) {
        for (bool gathers : {false, true}) {
          const Shape s = {m, n, ranks, tile, gathers};
          const int64_t block = (m + ranks - 1) / ranks;
          std::vector<std::vector<double>> rows(ranks, std::vector<double>(block * n, -7));
          std::vector<std::string> wrong(ranks);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) rows[i / block][(i % block) * n + j] = Value(i, j);
          }
          const auto outcomes = testing::RunRanks(ranks, [&](const RankContext& context) {
            const int rank = context.comm.rank();
            return TakeAndReturn(context, s, block, rows[rank], &wrong[rank]);
          });
          for (int rank = 0; rank < ranks; ++rank) {
            EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
            EXPECT(wrong[rank].empty())
                << m << " x " << n << ", " << ranks << " ranks: " << wrong[rank];
          }
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              const double got = rows[i / block][(i % block) * n + j];
              EXPECT(got == -Value(i, j))
                  << m << " x " << n << ", " << ranks << " ranks, tile " << tile << ", gathers "
                  << gathers << ": " << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

// The other ranks don't wait for messages of a failed rank.
TEST(AFailureOfOneRankIsAnErrorOfAll) {
  const auto outcomes = testing::RunRanks(3, [&](const RankContext& context) {
    auto work = [&]() -> Status {
      if (context.comm.rank() == 1) return Error(Code::kInternal, "midway on purpose");
      double value;
      return context.comm.Recv(Stream::kMain, 1, Block(&value, 1, 1, 1));
    };
    return RunOnAllRanks(context.comm, [] { return Status::Ok(); }, work);
  });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.message() == "midway on purpose") << outcome.message();
  }
}

TEST(TheRootOfAGatheredMatrixFailsWithTheOtherRanks) {
  testing::RunRanks(2, [](const RankContext& context) -> Status {
    std::vector<double> rows(2 * 4);
    const Operand<double> operand = {4, 4, 2, 2, rows.data(), nullptr};
    const Ranks ranks = RanksOf(context);
    const Tiles tiles = TilesOf({4, 4, 4, 2}, 1, ranks.tuning);
    const MoveSpace space(operand.sizes(), ranks, tiles, /*gathers=*/true);
    const Frame<double> frame(context, operand, space);
    const Communicator& alone = frame.context().comm;
    EXPECT(alone.size() == 1 && !alone.failed() && alone.Failure().ok());
    JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
    context.comm.Abort(Status::Fixed(Code::kCancelled, "interrupted"));
    EXPECT(alone.failed() && alone.Failure().message() == "interrupted");
    return Status::Ok();
  });
}

}  // namespace
}  // namespace jaxmg
