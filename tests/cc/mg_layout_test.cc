// The layout of cuSOLVERMg's tiles: pieces of rows are copied to tiles and back.
#include "xla_ffi/vendor/cusolvermg/mg_layout.h"

#include <vector>

#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg::mg {
namespace {

using testing::RunRanks;

// The value of element (row, column) of the matrix, and the value of memory that must not change.
double Value(int64_t row, int64_t column) { return 1000.0 * column + row; }
constexpr double kUntouched = -1;

TEST(WidthsDivideTheOrder) {
  EXPECT(DividingWidth(4096, 1024) == 1024);
  EXPECT(DividingWidth(87500, 1024) == 875);
  EXPECT(DividingWidth(97, 32) == 0);  // a prime
  EXPECT(DividingWidth(5, 100) == 5);
  EXPECT(DividingWidth(1, 1) == 1);
}

TEST(PiecesAreCopiedToTilesAndBack) {
  struct Case {
    int64_t n, block, width;
    int ranks;
  };
  const std::vector<Case> cases = {{1, 1, 1, 1},   {7, 4, 2, 2},   {10, 5, 2, 2}, {97, 33, 16, 3},
                                   {97, 25, 7, 4}, {5, 2, 100, 4}, {16, 4, 4, 4}, {9, 5, 3, 2}};
  for (const Case& c : cases) {
    const TileColumns tiles = {c.n, c.ranks, c.width};
    const auto statuses = RunRanks(c.ranks, [&](const RankContext& context) -> Status {
      const int rank = context.comm.rank();
      std::vector<double> block(c.n * c.block, kUntouched), back = block;
      std::vector<double> tiled(c.n * tiles.slots() * c.width, kUntouched);
      const int64_t first = rank * c.block;
      for (int64_t column = first; column < std::min(first + c.block, c.n); ++column) {
        for (int64_t row = 0; row < c.n; ++row) {
          block[(column - first) * c.n + row] = Value(row, column);
        }
      }
      JAXMG_RETURN_IF_ERROR(CopyPieces(context, tiles, c.block, block.data(), tiled.data(), true));
      for (int64_t tile = rank; tile < tiles.count(); tile += c.ranks) {
        for (int64_t j = 0; j < tiles.columns(tile); ++j) {
          const int64_t column = tiles.begin(tile) + j;
          for (int64_t row = column; row < c.n; ++row) {
            const double actual = tiled[(tiles.slot(tile) * c.width + j) * c.n + row];
            EXPECT(actual == Value(row, column)) << "n " << c.n << " column " << column;
          }
        }
      }
      JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
      JAXMG_RETURN_IF_ERROR(CopyPieces(context, tiles, c.block, back.data(), tiled.data(), false));
      for (int64_t column = first; column < std::min(first + c.block, c.n); ++column) {
        for (int64_t row = column; row < c.n; ++row) {
          EXPECT(back[(column - first) * c.n + row] == Value(row, column)) << "n " << c.n;
        }
      }
      return context.comm.Agree(Status::Ok());
    });
    for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
  }
}

TEST(RanksShareANumber) {
  const auto statuses = RunRanks(5, [](const RankContext& context) -> Status {
    for (int64_t round = 0; round < 100; ++round) {
      std::vector<int64_t> all;
      JAXMG_RETURN_IF_ERROR(context.comm.Share(round * 10 + context.comm.rank(), &all));
      for (int rank = 0; rank < 5; ++rank) EXPECT(all[rank] == round * 10 + rank) << round;
    }
    return Status::Ok();
  });
  for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
}

}  // namespace
}  // namespace jaxmg::mg
