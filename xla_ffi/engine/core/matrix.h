// Matrix: one rank's tiles of a distributed matrix, and what a rank program runs on.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_MATRIX_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_MATRIX_H_

#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/communicator.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// The two things that a rank program talks to.
struct RankContext {
  Device& device;
  Communicator& comm;
};

// Columns of `rows` elements, column-major, dealt to ranks as `tiles` says. Slots lie side by side
// from `data` on; where the last one reaches past this rank's block, it lies in `overflow` (one
// tile of workspace) while the matrix is block-cyclic.
template <typename T>
struct Matrix {
  Tiles tiles;
  int rank;
  int64_t rows;
  T* data;
  T* overflow;

  int64_t ld() const { return rows; }
  T* slot(int64_t s) const {
    const bool overflows = tiles.has_overflow() && s == tiles.slots() - 1;
    return overflows ? overflow : data + s * tiles.width() * ld();
  }
  // Tile p of this rank (block-cyclic), from `row` on.
  T* tile(int64_t p, int64_t row = 0) const { return slot(tiles.slot(p)) + row; }

  // Calls f(first_slot, pointer, columns) for each run of columns that lie side by side among this
  // rank's slots [begin, end).
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
