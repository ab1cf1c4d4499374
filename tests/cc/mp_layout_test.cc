// The layout of cuSOLVERMp's tiles: every element has one place, and blocks are copied to tiles and
// back on every grid.
#include "xla_ffi/vendor/cusolvermp/mp_layout.h"

#include <complex>
#include <vector>

#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg::mp {
namespace {

using testing::RunRanks;
using Complex = std::complex<double>;

Complex Value(int64_t row, int64_t column) { return {1000.0 * column + row, 1.0 + row}; }
const Complex kUntouched = {-1, 0};

struct Case {
  int64_t n, width;
  Grid grid;
  int64_t block() const { return (n + grid.size() - 1) / grid.size(); }
};

// Orders that no grid divides, ranks without tiles, and tiles wider than a block or than the
// matrix.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 1}, Grid{2, 2}, Grid{1, 4}, Grid{4, 1},
                           Grid{2, 3}, Grid{3, 2}, Grid{2, 4}}) {
    for (const int64_t n : {1, 2, 7, 16, 29, 61}) {
      for (const int64_t width : {1, 3, 8, 100}) cases.push_back({n, width, grid});
    }
  }
  return cases;
}

#define JAXMG_EXPECT_ALL_OK(statuses, c)                                                 \
  for (const Status& status : statuses) {                                                \
    EXPECT(status.ok()) << status.message() << " n " << (c).n << " width " << (c).width; \
  }

TEST(GridsAreNearlySquare) {
  const std::vector<std::vector<int>> expected = {{1, 1, 1}, {2, 1, 2},  {3, 1, 3},   {4, 2, 2},
                                                  {6, 2, 3}, {8, 2, 4},  {16, 4, 4},  {12, 3, 4},
                                                  {7, 1, 7}, {64, 8, 8}, {128, 8, 16}};
  for (const std::vector<int>& row : expected) {
    const Grid grid = GridOf(row[0], 0);
    EXPECT(grid.rows == row[1] && grid.columns == row[2]) << row[0];
  }
  const Grid grid = GridOf(8, 4);
  EXPECT(grid.rows == 4 && grid.columns == 2);
}

TEST(EveryElementHasOnePlace) {
  for (const Case& c : Cases()) {
    const GridLayout layout = {c.n, c.n, c.width, c.grid};
    int64_t elements = 0;
    for (int rank = 0; rank < c.grid.size(); ++rank) {
      elements += layout.LocalRows(c.grid.row(rank)) * layout.LocalColumns(c.grid.column(rank));
    }
    EXPECT(elements == c.n * c.n) << c.n << " " << c.width;
    for (int place = 0; place < c.grid.rows; ++place) {
      for (int64_t row = 0; row < c.n; ++row) {
        const bool mine = row / c.width % c.grid.rows == place;
        EXPECT(layout.RowsBefore(row + 1, place) - layout.RowsBefore(row, place) == (mine ? 1 : 0));
      }
    }
  }
}

TEST(RanksHaveTheTransposedTilesOnTheTransposedGrid) {
  for (const Case& c : Cases()) {
    const GridLayout layout = {c.n, c.n, c.width, c.grid};
    const GridLayout transposed = {c.n, c.n, c.width, c.grid.Transposed()};
    for (int64_t i = 0; i < layout.tiles_down(); ++i) {
      for (int64_t j = 0; j < layout.tiles_across(); ++j) {
        EXPECT(transposed.owner(j, i) == layout.owner(i, j)) << i << " " << j;
      }
    }
    for (int rank = 0; rank < c.grid.size(); ++rank) {
      const Grid& grid = transposed.grid;
      EXPECT(grid.rank(grid.row(rank), grid.column(rank)) == rank);
      EXPECT(transposed.LocalRows(grid.row(rank)) == layout.LocalColumns(c.grid.column(rank)));
    }
  }
}

// Checks that every copied element is in its place.
void CheckBlocksInTiles(const Case& c, const Grid& grid, Part part) {
  const GridLayout layout = {c.n, c.n, c.width, grid};
  const auto statuses = RunRanks(c.grid.size(), [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    std::vector<Complex> blocks(c.n * c.block(), kUntouched);
    for (int64_t j = rank * c.block(); j < std::min((rank + 1) * c.block(), c.n); ++j) {
      for (int64_t i = 0; i < c.n; ++i) blocks[(j - rank * c.block()) * c.n + i] = Value(i, j);
    }
    std::vector<Complex> local(layout.Elements(rank), kUntouched), staging(2 * c.n * c.width);
    JAXMG_RETURN_IF_ERROR(
        ToGrid(context, layout, c.block(), blocks.data(), local.data(), staging.data(), part));
    for (int64_t j = 0; j < c.n; ++j) {
      for (int64_t i = part == Part::kAll ? 0 : j; i < c.n; ++i) {
        if (layout.owner(i / c.width, j / c.width) != rank) continue;
        const int64_t at =
            layout.offset(i / c.width, j / c.width) + j % c.width * layout.ld(rank) + i % c.width;
        EXPECT(local[at] == Value(i, j)) << "n " << c.n << " at " << i << ", " << j;
      }
    }
    return context.comm.Agree(Status::Ok());
  });
  JAXMG_EXPECT_ALL_OK(statuses, c);
}

// Returns a rank's tiles of the matrix with these values.
std::vector<Complex> TilesOf(const GridLayout& layout, int rank) {
  std::vector<Complex> local(layout.Elements(rank), kUntouched);
  const int64_t width = layout.width;
  for (int64_t j = 0; j < layout.columns; ++j) {
    for (int64_t i = 0; i < layout.rows; ++i) {
      if (layout.owner(i / width, j / width) != rank) continue;
      const int64_t tile = layout.offset(i / width, j / width);
      local[tile + j % width * layout.ld(rank) + i % width] = Value(i, j);
    }
  }
  return local;
}

// Checks that every column that was copied back equals the contents of its tiles.
void CheckTilesInBlocks(const Case& c, const Grid& grid) {
  const GridLayout layout = {c.n, c.n, c.width, grid};
  const auto statuses = RunRanks(c.grid.size(), [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    std::vector<Complex> local = TilesOf(layout, rank);
    std::vector<Complex> blocks(c.n * c.block(), kUntouched), staging(c.n * c.width);
    JAXMG_RETURN_IF_ERROR(
        FromGrid(context, layout, c.block(), local.data(), blocks.data(), staging.data()));
    for (int64_t j = 0; j < c.block(); ++j) {
      const int64_t column = rank * c.block() + j;
      for (int64_t i = 0; i < c.n; ++i) {
        EXPECT(blocks[j * c.n + i] == (column < c.n ? Value(i, column) : kUntouched))
            << "n " << c.n << " at " << i << ", " << column;
      }
    }
    return context.comm.Agree(Status::Ok());
  });
  JAXMG_EXPECT_ALL_OK(statuses, c);
}

TEST(TilesAreCopiedToBlocks) {
  for (const Case& c : Cases()) {
    CheckTilesInBlocks(c, c.grid);
    CheckTilesInBlocks(c, c.grid.Transposed());
  }
}

TEST(BlocksAreCopiedToTiles) {
  for (const Case& c : Cases()) {
    CheckBlocksInTiles(c, c.grid, Part::kLower);
    CheckBlocksInTiles(c, c.grid, Part::kAll);
    CheckBlocksInTiles(c, c.grid.Transposed(), Part::kAll);
  }
}

TEST(ColumnsAreCopiedToTilesAndBack) {
  for (const Case& c : Cases()) {
    for (const int64_t columns : {1, 5, 19}) {
      const GridLayout layout = {c.n, columns, c.width, c.grid};
      const auto statuses = RunRanks(c.grid.size(), [&](const RankContext& context) -> Status {
        const int rank = context.comm.rank();
        std::vector<Complex> whole(c.n * columns), back(c.n * columns, kUntouched);
        for (int64_t j = 0; j < columns; ++j) {
          for (int64_t i = 0; i < c.n; ++i) whole[j * c.n + i] = Value(i, j);
        }
        std::vector<Complex> local(layout.Elements(rank)), received(c.n * columns + columns);
        JAXMG_RETURN_IF_ERROR(CopyTiles(context, layout, rank, whole.data(), local.data(), true));
        for (Complex& x : local) x *= 2.0;
        JAXMG_RETURN_IF_ERROR(ToWhole(context, layout, local.data(), received.data(), back.data()));
        for (int64_t i = 0; i < c.n * columns; ++i) {
          EXPECT(back[i] == 2.0 * whole[i]) << "n " << c.n << " element " << i;
        }
        return context.comm.Agree(Status::Ok());
      });
      JAXMG_EXPECT_ALL_OK(statuses, c);
    }
  }
}

TEST(TilesAreCopiedToRows) {
  for (const Case& c : Cases()) {
    const GridLayout layout = {c.n, c.n, c.width, c.grid};
    const auto statuses = RunRanks(c.grid.size(), [&](const RankContext& context) -> Status {
      const int rank = context.comm.rank();
      std::vector<Complex> local = TilesOf(layout, rank);
      std::vector<Complex> rows(c.block() * c.n, kUntouched), staging(c.block() * c.width);
      JAXMG_RETURN_IF_ERROR(
          ToRows(context, layout, c.block(), local.data(), rows.data(), staging.data()));
      for (int64_t i = rank * c.block(); i < std::min((rank + 1) * c.block(), c.n); ++i) {
        for (int64_t j = 0; j < c.n; ++j) {
          const Complex actual = rows[(i - rank * c.block()) * c.n + j];
          EXPECT(actual == std::conj(Value(i, j))) << "n " << c.n << " at " << i << ", " << j;
        }
      }
      return context.comm.Agree(Status::Ok());
    });
    JAXMG_EXPECT_ALL_OK(statuses, c);
  }
}

}  // namespace
}  // namespace jaxmg::mp
