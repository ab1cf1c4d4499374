// The two-dimensional block-cyclic layout of cuSOLVERMp, and copies between it and the ranks'
// blocks of columns.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_LAYOUT_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_LAYOUT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg::mp {

// A grid of ranks: rank r is in row r mod `rows` and column r div `rows`; or, if `by_rows`, in row
// r div `columns` and column r mod `columns`.
struct Grid {
  int rows, columns;
  bool by_rows = false;

  int size() const { return rows * columns; }
  int row(int rank) const { return by_rows ? rank / columns : rank % rows; }
  int column(int rank) const { return by_rows ? rank % columns : rank / rows; }
  int rank(int row, int column) const {
    return by_rows ? row * columns + column : row + column * rows;
  }
  // Returns the grid in which each rank's tiles of A^T are the transposes of its tiles of A in this
  // grid.
  Grid Transposed() const { return {columns, rows, !by_rows}; }
};

// Returns the grid with `rows` rows; if `rows` is 0, the grid closest to a square that has no more
// rows than columns.
inline Grid GridOf(int ranks, int64_t rows) {
  if (rows == 0) {
    for (int divisor = 1; divisor * divisor <= ranks; ++divisor) {
      if (ranks % divisor == 0) rows = divisor;
    }
  }
  return {static_cast<int>(rows), static_cast<int>(ranks / rows)};
}

// Returns how many of the first `count` rows (or columns), in tiles of `width`, belong to row (or
// column) `place` of the grid's `places` (ScaLAPACK's NUMROC).
inline int64_t LocalCount(int64_t count, int64_t width, int place, int places) {
  const int64_t whole = count / width, rest = whole % places;
  const int64_t tiles = whole / places + (place < rest ? 1 : 0);
  return tiles * width + (place == rest ? count % width : 0);
}

// A matrix in square tiles. Tile (i, j) belongs to the rank in row i mod grid.rows and column j mod
// grid.columns of the grid. A rank stores its tiles as one column-major matrix.
struct GridLayout {
  int64_t rows, columns, width;
  Grid grid;

  int64_t LocalRows(int grid_row) const { return RowsBefore(rows, grid_row); }
  int64_t LocalColumns(int grid_column) const { return ColumnsBefore(columns, grid_column); }
  // Return the number of a rank's rows (columns) before a row (column) of the matrix.
  int64_t RowsBefore(int64_t row, int grid_row) const {
    return LocalCount(row, width, grid_row, grid.rows);
  }
  int64_t ColumnsBefore(int64_t column, int grid_column) const {
    return LocalCount(column, width, grid_column, grid.columns);
  }
  // Returns the leading dimension of a rank's tiles; positive even if it has no rows.
  int64_t ld(int rank) const { return std::max<int64_t>(LocalRows(grid.row(rank)), 1); }
  int64_t Elements(int rank) const { return ld(rank) * LocalColumns(grid.column(rank)); }
  int64_t tiles_down() const { return (rows + width - 1) / width; }
  int64_t tiles_across() const { return (columns + width - 1) / width; }
  int64_t height(int64_t tile) const { return std::min(width, rows - tile * width); }
  int64_t breadth(int64_t tile) const { return std::min(width, columns - tile * width); }
  int owner(int64_t i, int64_t j) const {
    return grid.rank(static_cast<int>(i % grid.rows), static_cast<int>(j % grid.columns));
  }
  // Returns the offset of tile (i, j) in its owner's memory.
  int64_t offset(int64_t i, int64_t j) const {
    return j / grid.columns * width * ld(owner(i, j)) + i / grid.rows * width;
  }
};

// The intersection of a rank's block with one tile column.
struct Cut {
  int64_t tile, first, columns;  // empty if columns is 0
};

inline Cut CutOf(const GridLayout& layout, int64_t block, int rank, int64_t number) {
  const int64_t begin = std::min(rank * block, layout.columns);
  const int64_t end = std::min(begin + block, layout.columns);
  const int64_t tile = begin / layout.width + number;
  const int64_t first = std::max(tile * layout.width, begin);
  return {tile, first, std::max<int64_t>(std::min((tile + 1) * layout.width, end) - first, 0)};
}

// Returns the number of rounds after which every rank has distributed all of its cuts.
inline int64_t Rounds(const GridLayout& layout, int64_t block) { return block / layout.width + 2; }

// Calls f(tile row) for the tile rows of a row of the grid, from `first` on.
template <typename F>
Status ForTileRows(const GridLayout& layout, int grid_row, int64_t first, const F& f) {
  const int64_t behind =
      (grid_row - first % layout.grid.rows + layout.grid.rows) % layout.grid.rows;
  for (int64_t i = first + behind; i < layout.tiles_down(); i += layout.grid.rows) {
    JAXMG_RETURN_IF_ERROR(f(i));
  }
  return Status::Ok();
}

enum class Part { kLower, kAll };

// Copies `blocks`, this rank's `block` columns of a square matrix, to the ranks' tiles in `local`:
// all tiles, or the tiles on and below the diagonal. `staging` holds two columns of tiles. Enqueued
// on kMain.
template <typename T>
Status ToGrid(const RankContext& context, const GridLayout& layout, int64_t block, const T* blocks,
              T* local, T* staging, Part part = Part::kLower) {
  Communicator& comm = context.comm;
  const int rank = comm.rank(), ranks = comm.size();
  const int64_t n = layout.rows, ld = layout.ld(rank);
  // Returns the first tile row of a cut that is copied.
  auto top = [&](const Cut& cut) { return part == Part::kAll ? 0 : cut.tile; };
  // Returns the number of a cut's copied rows that belong to a row of the grid.
  auto rows_of = [&](const Cut& cut, int row) {
    return layout.LocalRows(row) - layout.RowsBefore(top(cut) * layout.width, row);
  };
  auto source = [&](const Cut& cut, int64_t i) {
    const T* data = blocks + (cut.first - rank * block) * n + i * layout.width;
    return Block(data, n, layout.height(i), cut.columns);
  };
  // Returns the place of a cut in this rank's tiles, from tile row i on.
  auto target = [&](const Cut& cut, int64_t i, int64_t rows) {
    const int64_t column = layout.ColumnsBefore(cut.first, layout.grid.column(rank));
    return Block(local + column * ld + i / layout.grid.rows * layout.width, ld, rows, cut.columns);
  };
  auto first_row = [&](const Cut& cut, int row) {
    return layout.RowsBefore(top(cut) * layout.width, row) / layout.width * layout.grid.rows + row;
  };
  // For each half of the staging, by rank: the count of blocks sent when the half was last used.
  std::array<std::vector<int64_t>, 2> sent = {std::vector<int64_t>(ranks, 0),
                                              std::vector<int64_t>(ranks, 0)};
  for (int64_t round = 0; round < Rounds(layout, block); ++round) {
    const Cut mine = CutOf(layout, block, rank, round);
    T* room = staging + round % 2 * n * layout.width;
    std::vector<int64_t>& used = sent[round % 2];
    for (int peer = 0; peer < ranks; ++peer) {
      JAXMG_RETURN_IF_ERROR(comm.WaitSent(Stream::kMain, peer, used[peer]));
    }
    for (int row = 0; row < layout.grid.rows && mine.columns > 0; ++row) {
      const int peer = layout.grid.rank(row, static_cast<int>(mine.tile % layout.grid.columns));
      const int64_t rows = rows_of(mine, row);
      if (rows == 0) continue;
      int64_t before = 0;
      JAXMG_RETURN_IF_ERROR(ForTileRows(layout, row, top(mine), [&](int64_t i) {
        const int64_t height = layout.height(i);
        const Bytes2D to = peer == rank ? target(mine, i, height)
                                        : Block(room + before, rows, height, mine.columns);
        before += height;
        return context.device.Copy(Stream::kMain, to, source(mine, i));
      }));
      if (peer == rank) continue;
      const Bytes2D packed = Block(room, rows, rows, mine.columns);
      JAXMG_RETURN_IF_ERROR(comm.Send(Stream::kMain, peer, packed));
      used[peer] = comm.Sent(peer);
      room += rows * mine.columns;
    }
    for (int peer = 0; peer < ranks; ++peer) {
      const Cut theirs = CutOf(layout, block, peer, round);
      const int row = layout.grid.row(rank);
      if (peer == rank || theirs.columns == 0 || rows_of(theirs, row) == 0 ||
          theirs.tile % layout.grid.columns != layout.grid.column(rank)) {
        continue;
      }
      JAXMG_RETURN_IF_ERROR(comm.Recv(
          Stream::kMain, peer, target(theirs, first_row(theirs, row), rows_of(theirs, row))));
    }
  }
  return WaitAllSent(comm, Stream::kMain);
}

// Undoes ToGrid: copies the ranks' tiles of a square matrix back to `blocks`, their `block`
// columns. `staging` holds a column of tiles. Enqueued on kMain.
template <typename T>
Status FromGrid(const RankContext& context, const GridLayout& layout, int64_t block, T* local,
                T* blocks, T* staging) {
  Communicator& comm = context.comm;
  const int rank = comm.rank(), ranks = comm.size();
  const Grid& grid = layout.grid;
  const int64_t n = layout.rows;
  // Returns this rank's rows of another rank's cut.
  auto in_local = [&](const Cut& cut) {
    const int64_t column = layout.ColumnsBefore(cut.first, grid.column(rank));
    return Block(local + column * layout.ld(rank), layout.ld(rank),
                 layout.LocalRows(grid.row(rank)), cut.columns);
  };
  for (int64_t round = 0; round < Rounds(layout, block); ++round) {
    for (int step = 1; step < ranks; ++step) {
      const int peer = (rank + step) % ranks;
      const Cut theirs = CutOf(layout, block, peer, round);
      if (theirs.columns == 0 || layout.LocalRows(grid.row(rank)) == 0 ||
          theirs.tile % grid.columns != grid.column(rank)) {
        continue;
      }
      JAXMG_RETURN_IF_ERROR(comm.Send(Stream::kMain, peer, in_local(theirs)));
    }
    const Cut mine = CutOf(layout, block, rank, round);
    for (int row = 0; row < grid.rows && mine.columns > 0; ++row) {
      const int peer = grid.rank(row, static_cast<int>(mine.tile % grid.columns));
      const int64_t rows = layout.LocalRows(row);
      if (rows == 0) continue;
      const T* piece = staging;
      int64_t ld = rows;
      if (peer == rank) {
        piece = static_cast<const T*>(in_local(mine).data);
        ld = layout.ld(rank);
      } else {
        JAXMG_RETURN_IF_ERROR(
            comm.Recv(Stream::kMain, peer, Block(staging, rows, rows, mine.columns)));
      }
      JAXMG_RETURN_IF_ERROR(ForTileRows(layout, row, 0, [&](int64_t i) {
        const int64_t height = layout.height(i);
        T* place = blocks + (mine.first - rank * block) * n + i * layout.width;
        return context.device.Copy(
            Stream::kMain, Block(place, n, height, mine.columns),
            Block(piece + i / grid.rows * layout.width, ld, height, mine.columns));
      }));
    }
  }
  return WaitAllSent(comm, Stream::kMain);
}

// Copies this rank's tiles from `whole`, a whole matrix that is equal on every rank, or to it.
// Enqueued on kMain.
template <typename T>
Status CopyTiles(const RankContext& context, const GridLayout& layout, int rank, T* whole, T* local,
                 bool to_tiles) {
  const int64_t ld = layout.ld(rank);
  for (int64_t j = layout.grid.column(rank); j < layout.tiles_across(); j += layout.grid.columns) {
    JAXMG_RETURN_IF_ERROR(ForTileRows(layout, layout.grid.row(rank), 0, [&](int64_t i) {
      const Bytes2D tile =
          Block(local + layout.offset(i, j), ld, layout.height(i), layout.breadth(j));
      const Bytes2D place = Block(whole + j * layout.width * layout.rows + i * layout.width,
                                  layout.rows, layout.height(i), layout.breadth(j));
      return to_tiles ? context.device.Copy(Stream::kMain, tile, place)
                      : context.device.Copy(Stream::kMain, place, tile);
    }));
  }
  return Status::Ok();
}

// Gathers all ranks' tiles to the whole matrix on every rank. `received` has space for the tiles of
// any one rank.
template <typename T>
Status ToWhole(const RankContext& context, const GridLayout& layout, T* local, T* received,
               T* whole) {
  Communicator& comm = context.comm;
  auto all_of = [&](int rank, T* data) {
    const int64_t count = layout.Elements(rank);
    return Block(data, count, count, 1);
  };
  for (int rank = 0; rank < comm.size(); ++rank) {
    const bool mine = rank == comm.rank();
    if (layout.Elements(rank) > 0 && layout.LocalRows(layout.grid.row(rank)) > 0) {
      JAXMG_RETURN_IF_ERROR(
          Broadcast(comm, Stream::kMain, rank, all_of(rank, mine ? local : received)));
      JAXMG_RETURN_IF_ERROR(
          CopyTiles(context, layout, rank, whole, mine ? local : received, false));
    }
  }
  return WaitAllSent(comm, Stream::kMain);
}

// Converts the ranks' tiles of U to their blocks of U^H: `block` conjugated rows of U on each rank,
// stored row after row. `staging` holds `block` rows of a column of tiles. Enqueued on kMain.
template <typename T>
Status ToRows(const RankContext& context, const GridLayout& layout, int64_t block, T* local,
              T* rows, T* staging) {
  Communicator& comm = context.comm;
  const int rank = comm.rank(), ranks = comm.size();
  const Grid& grid = layout.grid;
  auto begin = [&](int r) { return std::min(r * block, layout.rows); };
  // Returns the number of rows in a row of the grid before a rank's block.
  auto before = [&](int r, int grid_row) { return layout.RowsBefore(begin(r), grid_row); };
  auto count = [&](int r, int grid_row) { return before(r + 1, grid_row) - before(r, grid_row); };
  for (int64_t round = 0; round * grid.columns < layout.tiles_across(); ++round) {
    const int row = grid.row(rank);
    const int64_t mine = grid.column(rank) + round * grid.columns;
    auto in_local = [&](int target) {
      T* data = local + round * layout.width * layout.ld(rank) + before(target, row);
      return Block(data, layout.ld(rank), count(target, row), layout.breadth(mine));
    };
    for (int step = 1; step < ranks && mine < layout.tiles_across(); ++step) {
      const int peer = (rank + step) % ranks;
      if (count(peer, row) == 0) continue;
      JAXMG_RETURN_IF_ERROR(comm.Send(Stream::kMain, peer, in_local(peer)));
    }
    for (int peer = 0; peer < ranks; ++peer) {
      const int of = grid.row(peer);
      const int64_t j = grid.column(peer) + round * grid.columns, taken = count(rank, of);
      if (j >= layout.tiles_across() || taken == 0) continue;
      const T* piece = staging;
      int64_t ld = taken;
      if (peer == rank) {
        piece = static_cast<const T*>(in_local(rank).data);
        ld = layout.ld(rank);
      } else {
        JAXMG_RETURN_IF_ERROR(
            comm.Recv(Stream::kMain, peer, Block(staging, taken, taken, layout.breadth(j))));
      }
      const int64_t first = begin(rank) / layout.width, end = begin(rank + 1);
      JAXMG_RETURN_IF_ERROR(ForTileRows(layout, of, first, [&](int64_t i) {
        const int64_t from = std::max(i * layout.width, begin(rank));
        const int64_t to = std::min((i + 1) * layout.width, end);
        if (to <= from) return Status::Ok();
        const int64_t place = layout.RowsBefore(from, of) - before(rank, of);
        return context.device.blas<T>().ConjTranspose(
            Stream::kMain, to - from, layout.breadth(j), piece + place, ld,
            rows + (from - begin(rank)) * layout.columns + j * layout.width, layout.columns);
      }));
    }
  }
  return WaitAllSent(comm, Stream::kMain);
}

}  // namespace jaxmg::mp

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_LAYOUT_H_
