// Batches: the order of a factorization's updates. A batch is a run of panels that update the
// trailing matrix in one product. The class also tells which of a rank's tile columns each batch
// updates.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_BATCHES_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_BATCHES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// Panels first to last, inclusive, which update the trailing matrix in one product.
struct Batch {
  int64_t index, first, last;
};

class Batches {
 public:
  // Makes batches of at most `most` panels. Batches are small at the beginning, where an update has
  // nothing to overlap with, and towards the end, where the panels take longest.
  Batches(const Tiles& tiles, int rank, int64_t most)
      : tiles_(tiles), rank_(rank), end_(tiles.slots_before(rank, tiles.nonempty())) {
    const int64_t panels = tiles.nonempty() - 1;
    for (int64_t first = 0; first < panels;) {
      const int64_t left = first == 0 ? 0 : panels - first;
      const int64_t size = std::clamp<int64_t>(left / (2 * tiles.ranks()), 1, most);
      const Batch batch = {static_cast<int64_t>(all_.size()), first, first + size - 1};
      all_.push_back(batch);
      of_panel_.resize(batch.last + 1, batch);
      first += size;
    }
    columns_.reserve(tiles.slots() + 1);
    for (int64_t slot = 0; slot < tiles.slots(); ++slot) {
      columns_.push_back(columns_.back() + tiles.width(tiles.tile_in(rank, slot)));
    }
  }

  const std::vector<Batch>& all() const { return all_; }
  const Batch& of(int64_t panel) const { return of_panel_[panel]; }

  // This rank's first slot after the tile that follows a batch. The batch updates the slots from
  // there on as a whole.
  int64_t FirstTrailing(const Batch& batch) const {
    return tiles_.slots_before(rank_, batch.last + 2);
  }
  int64_t EndTrailing() const { return end_; }
  // The end of the slots from FirstTrailing on that are factored with the next batch.
  int64_t EndOfWindow(const Batch& batch) const {
    const size_t next = batch.index + 1;
    return next < all_.size() ? FirstTrailing(all_[next]) : EndTrailing();
  }
  // The number of columns in slots [slot, end).
  int64_t Columns(int64_t slot, int64_t end) const { return columns_[end] - columns_[slot]; }

 private:
  const Tiles& tiles_;
  const int rank_;
  const int64_t end_;
  std::vector<Batch> all_, of_panel_;
  std::vector<int64_t> columns_ = {0};  // columns before each slot
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_BATCHES_H_
