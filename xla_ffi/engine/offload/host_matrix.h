// HostMatrix: a matrix in host memory, or its factor there, and how it is cut into block columns.
// README.md explains both.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_MATRIX_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_MATRIX_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/tuning.h"
#include "xla_ffi/engine/offload/host_ring.h"
#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// How n columns of n rows, and nrhs right-hand sides, are cut into block columns of `width` columns
// and these into tiles over the ranks.
struct HostShape {
  int64_t n, nrhs, width, tile;
  int ranks;
  // Whether block columns have all n rows, for LU, and not only those from the diagonal on.
  bool whole = false;
  // Whether the ranks are in several processes.
  bool spread = false;

  int64_t blocks() const { return (n + width - 1) / width; }
  // The first column of block column j, which is also the row of its diagonal; the number of its
  // columns, and of its rows from there on.
  int64_t first(int64_t j) const { return j * width; }
  int64_t columns(int64_t j) const { return std::min(width, n - first(j)); }
  int64_t rows(int64_t j) const { return n - first(j); }
  // The tiles of a block column on each rank, and its columns there.
  int64_t slots() const { return (width + tile * ranks - 1) / (tile * ranks); }
  int64_t rank_columns() const { return slots() * tile; }
  Tiles tiles(int64_t j) const { return Tiles(columns(j), rank_columns(), ranks, tile); }
  // The distance of two columns in a rank's buffers.
  int64_t ld() const { return (n + nrhs + 63) / 64 * 64; }
  // The columns of a panel that is streamed from host memory.
  int64_t chunk(const Tuning& tuning) const {
    return tile *
           std::clamp<int64_t>(slots() / 2, 1, std::max<int64_t>(tuning.offload.chunk / tile, 1));
  }
};

// A block column in host memory: `data` is the diagonal element of its first column, or the first
// element if block columns are whole, and columns are `ld` elements apart. Pageable memory is
// copied through the ring (host_ring.h).
struct HostBlock {
  void* data;
  int64_t ld;
  bool pageable = false;
};

struct HostMatrix {
  std::string dtype;  // NumPy's name
  HostShape shape;
  std::vector<HostBlock> source;  // the matrix; empty: the caller fills the ranks' buffers
  std::vector<HostBlock> factor;  // may be the same memory
  HostRingMemory ring;
  // If the ranks are in several processes: the index of each rank among those of this process; -1:
  // it is in another one. The factor then has only the tile columns of this process's ranks, one
  // after the other; the source has all columns.
  std::vector<int> local = {};

  // The number of ranks in this process, and the index of one of them.
  int local_ranks() const {
    if (!shape.spread) return shape.ranks;
    return static_cast<int>(
        std::count_if(local.begin(), local.end(), [](int i) { return i >= 0; }));
  }
  int LocalIndex(int rank) const { return shape.spread ? local[rank] : rank; }
  // The first column of tile p of a block column in `factor`.
  int64_t StoredColumn(int64_t p) const {
    const int64_t index = LocalIndex(static_cast<int>(p % shape.ranks));
    return (p / shape.ranks * local_ranks() + index) * shape.tile;
  }
};

// Which matrix, and which of its block columns, a call works on: the elements of its operand
// `call`.
struct HostCall {
  int32_t id, block, direction, reserved;
};

// Returns the matrix with this id, or an error.
using FindHostMatrix = std::function<Status(int32_t id, std::shared_ptr<const HostMatrix>* matrix)>;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_MATRIX_H_
