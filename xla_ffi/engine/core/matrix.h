// Matrix: one rank's tiles of a distributed matrix. RankContext: the device and the communicator of
// a rank program.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_MATRIX_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_MATRIX_H_

#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/communicator.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// The device and the communicator of one rank.
struct RankContext {
  Device& device;
  Communicator& comm;
};

// Columns of `rows` elements, column-major, distributed as `tiles` describes. Slots are contiguous
// from `data` on. If the last slot extends past this rank's block, it is in `overflow` (one tile of
// workspace) while the matrix is block-cyclic.
template <typename T>
struct Matrix {
  Tiles tiles;
  int rank;
  int64_t rows;
  T* data;
  T* overflow;

  int64_t ld() const { return rows; }
  bool IsOneTile() const { return tiles.ranks() == 1 && tiles.nonempty() == 1 && rows > 0; }
  T* slot(int64_t s) const {
    const bool overflows = tiles.has_overflow() && s == tiles.slots() - 1;
    return overflows ? overflow : data + s * tiles.width() * ld();
  }
  // This rank's tile p (block-cyclic), from `row` on.
  T* tile(int64_t p, int64_t row = 0) const { return slot(tiles.slot(p)) + row; }

  // Calls f(first_slot, pointer, columns) for each contiguous run of columns in this rank's slots
  // [begin, end).
  template <typename F>
  void ForRuns(int64_t begin, int64_t end, const F& f) const {
    int64_t first = begin, columns = 0;
    for (int64_t s = begin; s < end; ++s) {
      columns += tiles.width(tiles.tile_in(rank, s));
      const bool adjacent = s + 1 < end && slot(s + 1) == slot(first) + columns * ld();
      if (adjacent) continue;
      if (columns > 0) f(first, slot(first), columns);
      first = s + 1;
      columns = 0;
    }
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_MATRIX_H_
