// The tile columns of cuSOLVERMg, and copies between them and the ranks' blocks.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_LAYOUT_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <functional>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/redistribute.h"

namespace jaxmg::mg {

// Tile j holds columns [j * width, (j + 1) * width) of the matrix. It belongs to rank j mod P, in
// slot j div P.
struct TileColumns {
  int64_t n;
  int ranks;
  int64_t width;

  int64_t count() const { return (n + width - 1) / width; }
  int64_t slots() const { return (count() + ranks - 1) / ranks; }
  int64_t begin(int64_t tile) const { return std::min(tile * width, n); }
  int64_t columns(int64_t tile) const { return begin(tile + 1) - begin(tile); }
  int owner(int64_t tile) const { return static_cast<int>(tile % ranks); }
  int64_t slot(int64_t tile) const { return tile / ranks; }
};

// Returns the largest divisor of `block` of at most `width`, if it is at least half of `width`;
// else 0.
inline int64_t DividingWidth(int64_t block, int64_t width) {
  width = std::min(width, block);
  for (int64_t candidate = width; 2 * candidate >= width && candidate > 0; --candidate) {
    if (block % candidate == 0) return candidate;
  }
  return 0;
}

// Calls f(tile, first column, columns, home) for every intersection of a tile with a rank's block,
// in the order of the columns.
inline Status ForPieces(const TileColumns& tiles, int64_t block,
                        const std::function<Status(int64_t, int64_t, int64_t, int)>& f) {
  for (int64_t column = 0; column < tiles.n;) {
    const int64_t tile = column / tiles.width, home = column / block;
    const int64_t end = std::min(tiles.begin(tile + 1), (home + 1) * block);
    JAXMG_RETURN_IF_ERROR(f(tile, column, end - column, static_cast<int>(home)));
    column = end;
  }
  return Status::Ok();
}

// Copies the lower triangle from `blocks`, the ranks' contiguous columns, to tiles in `tiled`, or
// back. Enqueued on kMain; later work on kMain may overwrite the source.
template <typename T>
Status CopyPieces(const RankContext& context, const TileColumns& tiles, int64_t block, T* blocks,
                  T* tiled, bool to_tiles) {
  const int rank = context.comm.rank();
  const int64_t n = tiles.n;
  auto in_block = [&](int64_t column, int64_t columns) {
    return Block(blocks + (column - rank * block) * n + column, n, n - column, columns);
  };
  auto in_tile = [&](int64_t tile, int64_t column, int64_t columns) {
    const int64_t place = tiles.slot(tile) * tiles.width + column - tiles.begin(tile);
    return Block(tiled + place * n + column, n, n - column, columns);
  };
  // Sends first, which never blocks, and then receives.
  JAXMG_RETURN_IF_ERROR(ForPieces(
      tiles, block, [&](int64_t tile, int64_t column, int64_t columns, int home) -> Status {
        const int source = to_tiles ? home : tiles.owner(tile);
        const int target = to_tiles ? tiles.owner(tile) : home;
        if (source != rank) return Status::Ok();
        const Bytes2D from = to_tiles ? in_block(column, columns) : in_tile(tile, column, columns);
        if (target != rank) return context.comm.Send(Stream::kMain, target, from);
        const Bytes2D to = to_tiles ? in_tile(tile, column, columns) : in_block(column, columns);
        return context.device.Copy(Stream::kMain, to, from);
      }));
  JAXMG_RETURN_IF_ERROR(ForPieces(
      tiles, block, [&](int64_t tile, int64_t column, int64_t columns, int home) -> Status {
        const int source = to_tiles ? home : tiles.owner(tile);
        const int target = to_tiles ? tiles.owner(tile) : home;
        if (source == rank || target != rank) return Status::Ok();
        const Bytes2D to = to_tiles ? in_tile(tile, column, columns) : in_block(column, columns);
        return context.comm.Recv(Stream::kMain, source, to);
      }));
  return WaitAllSent(context.comm, Stream::kMain);
}

}  // namespace jaxmg::mg

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_LAYOUT_H_
