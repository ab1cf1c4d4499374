// RowBlocks: one rank's rows of a matrix that is distributed in equal blocks of rows, as routines
// get it from their callers.
#ifndef JAXMG_XLA_FFI_ENGINE_PRODUCTS_ROW_BLOCKS_H_
#define JAXMG_XLA_FFI_ENGINE_PRODUCTS_ROW_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// An m x n matrix. Read as column-major, a rank's block is n x block: the transpose of its rows.
template <typename T>
struct RowBlocks {
  int64_t m;      // without padding
  int64_t n;      // also the distance between rows in memory
  int64_t block;  // rows on each rank, padding included
  T* data;        // this rank's block, row-major

  int64_t begin(int rank) const { return std::min(rank * block, m); }
  int64_t rows(int rank) const { return begin(rank + 1) - begin(rank); }
  int owner(int64_t row) const { return static_cast<int>(row / block); }
  int64_t ld() const { return std::max<int64_t>(n, 1); }
  bool empty() const { return m == 0 || n == 0; }
  // Row `row` of `rank`, from `column` on, in that rank's memory.
  T* at(int rank, int64_t row, int64_t column = 0) const {
    return data + (row - begin(rank)) * n + column;
  }
};

// A rectangle of a matrix whose rows belong to one rank.
struct Rectangle {
  int64_t row, rows, column, columns;
};

// Returns the number of rows to send at once: enough for messages of `exchange_bytes` and for
// products of a tile's depth.
template <typename T>
int64_t RowsAtOnce(const Tuning& tuning, int64_t columns) {
  const int64_t bytes = std::max<int64_t>(columns * static_cast<int64_t>(sizeof(T)), 1);
  return std::max(tuning.exchange_bytes / bytes, tuning.usual_tile);
}

// Calls f(begin, count) for runs of at most `most` of the `count` rows from `begin` on.
template <typename F>
void ForRows(int64_t begin, int64_t count, int64_t most, const F& f) {
  for (int64_t done = 0; done < count; done += most) {
    f(begin + done, std::min(most, count - done));
  }
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_PRODUCTS_ROW_BLOCKS_H_
