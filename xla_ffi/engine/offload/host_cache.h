// HostCache: the part of a factor that stays on a device, if there is memory for it, so that it
// isn't loaded again. The last tile columns come first, because a back substitution begins with
// them.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_CACHE_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_CACHE_H_

#include <cstdint>
#include <vector>

#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// The location of a rank's cached tile columns. The columns of a block column are contiguous, from
// its first row on and rows(j) elements apart.
template <typename T>
class HostCache {
 public:
  // `data` has `elements` elements.
  HostCache(const HostShape& shape, int rank, T* data, int64_t elements) : tile_(shape.tile) {
    blocks_.resize(shape.blocks());
    int64_t left = elements;
    for (int64_t j = shape.blocks(); j-- > 0;) {
      const Tiles tiles = shape.tiles(j);
      const int64_t end = tiles.slots_before(rank, tiles.nonempty());
      Cached& block = blocks_[j] = {end, nullptr, shape.rows(j)};
      while (block.first > 0) {
        const int64_t width = tiles.width(tiles.tile_in(rank, block.first - 1));
        if (width * shape.rows(j) > left) return;
        left -= width * shape.rows(j);
        --block.first;
        block.data = data + left;
      }
    }
  }

  // The number of elements with which all of a rank's factor is cached.
  static int64_t All(const HostShape& shape, int rank) {
    int64_t elements = 0;
    for (int64_t j = 0; j < shape.blocks(); ++j) {
      const Tiles tiles = shape.tiles(j);
      for (int64_t p = rank; p < tiles.nonempty(); p += shape.ranks) {
        elements += tiles.width(p) * shape.rows(j);
      }
    }
    return elements;
  }

  // The first row and column of block column j in a slot, and the slots after it; null if it isn't
  // cached.
  T* at(int64_t j, int64_t slot) const {
    const Cached& block = blocks_[j];
    if (block.data == nullptr || slot < block.first) return nullptr;
    return block.data + (slot - block.first) * tile_ * block.ld;
  }

 private:
  struct Cached {
    int64_t first = 0;  // the first slot that is cached
    T* data = nullptr;
    int64_t ld = 0;
  };

  const int64_t tile_;
  std::vector<Cached> blocks_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_CACHE_H_
