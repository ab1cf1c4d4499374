// The two-dimensional block-cyclic layout that cuSOLVERMp works on, and the way between it and the
// ranks' blocks of columns.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_LAYOUT_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_LAYOUT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg::mp {

// A grid of ranks: rank r is in row r mod `rows` and column r div `rows` of it.
struct Grid {
  int rows, columns;

  int size() const { return rows * columns; }
  int row(int rank) const { return rank % rows; }
  int column(int rank) const { return rank / rows; }
  int rank(int row, int column) const { return row + column * rows; }
};

// With `rows` rows; 0: the grid of so many ranks that is nearest to a square, and no taller.
inline Grid GridOf(int ranks, int64_t rows) {
  if (rows == 0) {
    for (int divisor = 1; divisor * divisor <= ranks; ++divisor) {
      if (ranks % divisor == 0) rows = divisor;
    }
  }
  return {static_cast<int>(rows), static_cast<int>(ranks / rows)};
}

// How many of `count` rows or columns in tiles of `width` are of place `place` of `places`
// (ScaLAPACK's NUMROC). Of the first `count` of more, too.
inline int64_t LocalCount(int64_t count, int64_t width, int place, int places) {
  const int64_t whole = count / width, rest = whole % places;
  const int64_t tiles = whole / places + (place < rest ? 1 : 0);
  return tiles * width + (place == rest ? count % width : 0);
}

// A matrix in square tiles: tile (i, j) is of the rank in row i mod grid.rows and column
// j mod grid.columns, and its rows and columns follow those of the tile before on that rank.
struct Dealt {
  int64_t rows, columns, width;
  Grid grid;

  int64_t LocalRows(int grid_row) const { return RowsBefore(rows, grid_row); }
  int64_t LocalColumns(int grid_column) const { return ColumnsBefore(columns, grid_column); }
  // Of those, how many come before a row or column of the matrix.
  int64_t RowsBefore(int64_t row, int grid_row) const {
    return LocalCount(row, width, grid_row, grid.rows);
  }
  int64_t ColumnsBefore(int64_t column, int grid_column) const {
    return LocalCount(column, width, grid_column, grid.columns);
  }
  // The stride of a rank's columns, which is not 0 where it has no rows.
  int64_t ld(int rank) const { return std::max<int64_t>(LocalRows(grid.row(rank)), 1); }
  int64_t Elements(int rank) const { return ld(rank) * LocalColumns(grid.column(rank)); }
  int64_t tiles_down() const { return (rows + width - 1) / width; }
  int64_t tiles_across() const { return (columns + width - 1) / width; }
  int64_t height(int64_t tile) const { return std::min(width, rows - tile * width); }
  int64_t breadth(int64_t tile) const { return std::min(width, columns - tile * width); }
  int owner(int64_t i, int64_t j) const {
    return grid.rank(static_cast<int>(i % grid.rows), static_cast<int>(j % grid.columns));
  }
  // Where tile (i, j) begins among its owner's elements.
  int64_t offset(int64_t i, int64_t j) const {
    return j / grid.columns * width * ld(owner(i, j)) + i / grid.rows * width;
  }
};

// The columns that the ranks' blocks hold of one tile column: those of a rank are cut where tiles
// begin.
struct Cut {
  int64_t tile, first, columns;  // none where columns is 0
};

inline Cut CutOf(const Dealt& dealt, int64_t block, int rank, int64_t number) {
  const int64_t begin = std::min(rank * block, dealt.columns);
  const int64_t end = std::min(begin + block, dealt.columns);
  const int64_t tile = begin / dealt.width + number;
  const int64_t first = std::max(tile * dealt.width, begin);
  return {tile, first, std::max<int64_t>(std::min((tile + 1) * dealt.width, end) - first, 0)};
}

// Rounds in which every rank has dealt all of its cuts.
inline int64_t Rounds(const Dealt& dealt, int64_t block) { return block / dealt.width + 2; }

// Calls f(tile row) for the tile rows of a row of the grid, from `first` on.
template <typename F>
Status ForTileRows(const Dealt& dealt, int grid_row, int64_t first, const F& f) {
  const int64_t behind = (grid_row - first % dealt.grid.rows + dealt.grid.rows) % dealt.grid.rows;
  for (int64_t i = first + behind; i < dealt.tiles_down(); i += dealt.grid.rows) {
    JAXMG_RETURN_IF_ERROR(f(i));
  }
  return Status::Ok();
}

// `blocks`, this rank's `block` columns of a square matrix, to its tiles in `local`: tiles on the
// diagonal and below, whole ones. `staging` has room for two columns of tiles. Enqueued on kMain.
template <typename T>
Status ToGrid(const RankContext& context, const Dealt& dealt, int64_t block, const T* blocks,
              T* local, T* staging) {
  Communicator& comm = context.comm;
  const int rank = comm.rank(), ranks = comm.size();
  const int64_t n = dealt.rows, ld = dealt.ld(rank);
  // Rows of a cut that go to a row of the grid.
  auto rows_of = [&](const Cut& cut, int row) {
    return dealt.LocalRows(row) - dealt.RowsBefore(cut.tile * dealt.width, row);
  };
  auto source = [&](const Cut& cut, int64_t i) {
    const T* data = blocks + (cut.first - rank * block) * n + i * dealt.width;
    return Block(data, n, dealt.height(i), cut.columns);
  };
  // Of a cut that goes to this rank, from tile row i on.
  auto target = [&](const Cut& cut, int64_t i, int64_t rows) {
    const int64_t column = dealt.ColumnsBefore(cut.first, dealt.grid.column(rank));
    return Block(local + column * ld + i / dealt.grid.rows * dealt.width, ld, rows, cut.columns);
  };
  auto first_row = [&](const Cut& cut, int row) {
    return dealt.RowsBefore(cut.tile * dealt.width, row) / dealt.width * dealt.grid.rows + row;
  };
  // What had been sent to each rank after either half of the staging was last used.
  std::array<std::vector<int64_t>, 2> sent = {std::vector<int64_t>(ranks, 0),
                                              std::vector<int64_t>(ranks, 0)};
  for (int64_t round = 0; round < Rounds(dealt, block); ++round) {
    const Cut mine = CutOf(dealt, block, rank, round);
    T* room = staging + round % 2 * n * dealt.width;
    std::vector<int64_t>& used = sent[round % 2];
    for (int peer = 0; peer < ranks; ++peer) {
      JAXMG_RETURN_IF_ERROR(comm.WaitSent(Stream::kMain, peer, used[peer]));
    }
    for (int row = 0; row < dealt.grid.rows && mine.columns > 0; ++row) {
      const int peer = dealt.grid.rank(row, static_cast<int>(mine.tile % dealt.grid.columns));
      const int64_t rows = rows_of(mine, row);
      if (rows == 0) continue;
      int64_t before = 0;
      JAXMG_RETURN_IF_ERROR(ForTileRows(dealt, row, mine.tile, [&](int64_t i) {
        const int64_t height = dealt.height(i);
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
      const Cut theirs = CutOf(dealt, block, peer, round);
      const int row = dealt.grid.row(rank);
      if (peer == rank || theirs.columns == 0 || rows_of(theirs, row) == 0 ||
          theirs.tile % dealt.grid.columns != dealt.grid.column(rank)) {
        continue;
      }
      JAXMG_RETURN_IF_ERROR(comm.Recv(
          Stream::kMain, peer, target(theirs, first_row(theirs, row), rows_of(theirs, row))));
    }
  }
  return WaitAllSent(comm, Stream::kMain);
}

// A whole matrix, the same on every rank, to its tiles, or this rank's tiles to it. On kMain.
template <typename T>
Status CopyTiles(const RankContext& context, const Dealt& dealt, int rank, T* whole, T* local,
                 bool to_tiles) {
  const int64_t ld = dealt.ld(rank);
  for (int64_t j = dealt.grid.column(rank); j < dealt.tiles_across(); j += dealt.grid.columns) {
    JAXMG_RETURN_IF_ERROR(ForTileRows(dealt, dealt.grid.row(rank), 0, [&](int64_t i) {
      const Bytes2D tile = Block(local + dealt.offset(i, j), ld, dealt.height(i), dealt.breadth(j));
      const Bytes2D place = Block(whole + j * dealt.width * dealt.rows + i * dealt.width,
                                  dealt.rows, dealt.height(i), dealt.breadth(j));
      return to_tiles ? context.device.Copy(Stream::kMain, tile, place)
                      : context.device.Copy(Stream::kMain, place, tile);
    }));
  }
  return Status::Ok();
}

// All ranks' tiles to the whole matrix on every rank. `received` has room for those of any rank.
template <typename T>
Status ToWhole(const RankContext& context, const Dealt& dealt, T* local, T* received, T* whole) {
  Communicator& comm = context.comm;
  auto all_of = [&](int rank, T* data) {
    const int64_t count = dealt.Elements(rank);
    return Block(data, count, count, 1);
  };
  for (int rank = 0; rank < comm.size(); ++rank) {
    const bool mine = rank == comm.rank();
    if (dealt.Elements(rank) > 0 && dealt.LocalRows(dealt.grid.row(rank)) > 0) {
      JAXMG_RETURN_IF_ERROR(
          Broadcast(comm, Stream::kMain, rank, all_of(rank, mine ? local : received)));
      JAXMG_RETURN_IF_ERROR(CopyTiles(context, dealt, rank, whole, mine ? local : received, false));
    }
  }
  return WaitAllSent(comm, Stream::kMain);
}

// The ranks' tiles of U to their blocks of U^H: `block` rows of U on each, conjugated, each row of
// U one behind the other. `staging` has room for `block` rows of a column of tiles. On kMain.
template <typename T>
Status ToRows(const RankContext& context, const Dealt& dealt, int64_t block, T* local, T* rows,
              T* staging) {
  Communicator& comm = context.comm;
  const int rank = comm.rank(), ranks = comm.size();
  const Grid& grid = dealt.grid;
  auto begin = [&](int r) { return std::min(r * block, dealt.rows); };
  // Of the rows in a row of the grid, those before a rank's block.
  auto before = [&](int r, int grid_row) { return dealt.RowsBefore(begin(r), grid_row); };
  auto count = [&](int r, int grid_row) { return before(r + 1, grid_row) - before(r, grid_row); };
  for (int64_t round = 0; round * grid.columns < dealt.tiles_across(); ++round) {
    const int row = grid.row(rank);
    const int64_t mine = grid.column(rank) + round * grid.columns;
    auto in_local = [&](int target) {
      T* data = local + round * dealt.width * dealt.ld(rank) + before(target, row);
      return Block(data, dealt.ld(rank), count(target, row), dealt.breadth(mine));
    };
    for (int step = 1; step < ranks && mine < dealt.tiles_across(); ++step) {
      const int peer = (rank + step) % ranks;
      if (count(peer, row) == 0) continue;
      JAXMG_RETURN_IF_ERROR(comm.Send(Stream::kMain, peer, in_local(peer)));
    }
    for (int peer = 0; peer < ranks; ++peer) {
      const int of = grid.row(peer);
      const int64_t j = grid.column(peer) + round * grid.columns, taken = count(rank, of);
      if (j >= dealt.tiles_across() || taken == 0) continue;
      const T* piece = staging;
      int64_t ld = taken;
      if (peer == rank) {
        piece = static_cast<const T*>(in_local(rank).data);
        ld = dealt.ld(rank);
      } else {
        JAXMG_RETURN_IF_ERROR(
            comm.Recv(Stream::kMain, peer, Block(staging, taken, taken, dealt.breadth(j))));
      }
      const int64_t first = begin(rank) / dealt.width, end = begin(rank + 1);
      JAXMG_RETURN_IF_ERROR(ForTileRows(dealt, of, first, [&](int64_t i) {
        const int64_t from = std::max(i * dealt.width, begin(rank));
        const int64_t to = std::min((i + 1) * dealt.width, end);
        if (to <= from) return Status::Ok();
        const int64_t place = dealt.RowsBefore(from, of) - before(rank, of);
        return context.device.blas<T>().ConjTranspose(
            Stream::kMain, to - from, dealt.breadth(j), piece + place, ld,
            rows + (from - begin(rank)) * dealt.columns + j * dealt.width, dealt.columns);
      }));
    }
  }
  return WaitAllSent(comm, Stream::kMain);
}

}  // namespace jaxmg::mp

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_LAYOUT_H_
