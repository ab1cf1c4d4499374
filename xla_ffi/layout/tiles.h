// Tiles: how the columns of a matrix are cut into tiles and distributed over ranks.
//
// The columns are in contiguous blocks, `block` columns per rank (the last blocks may hold fewer,
// or none). Each block is cut into `slots` tiles of `width` columns; the last tile of a block is
// narrower if `width` does not divide `block`. A tile's position p counts tiles rank by rank: p =
// rank * slots + i. In the block-cyclic layout tile p belongs to rank p mod P and lies in that
// rank's slot p div P. A tile holds the same columns of the matrix in both layouts.
//
//   contiguous, P = 2, slots = 3:   rank 0: [0 1 2]   rank 1: [3 4 5]
//   block-cyclic:                   rank 0: [0 2 4]   rank 1: [1 3 5]
//
// Independent of devices and element types.
#ifndef JAXMG_XLA_FFI_LAYOUT_TILES_H_
#define JAXMG_XLA_FFI_LAYOUT_TILES_H_

#include <algorithm>
#include <cstdint>

namespace jaxmg {

class Tiles {
 public:
  // Cuts `columns` columns, `block` of them on each of `ranks` ranks, into tiles of at most `width`
  // columns. Requires columns <= block * ranks, width >= 1, ranks >= 1.
  Tiles(int64_t columns, int64_t block, int ranks, int64_t width)
      : columns_(columns),
        block_(block),
        ranks_(ranks),
        width_(std::min(width, std::max<int64_t>(block, 1))),
        slots_((block + width_ - 1) / width_) {}

  // Returns a width of at most `width` that cuts a block into the same number of tiles, of about
  // equal width. It is a multiple of 64 or, if no such multiple fits, of the largest power of two
  // that does: products are fastest with tiles that begin at such columns.
  static int64_t EvenWidth(int64_t block, int64_t width) {
    if (block < 1) return 1;
    width = std::clamp<int64_t>(width, 1, block);
    const int64_t tiles = (block + width - 1) / width, even = (block + tiles - 1) / tiles;
    int64_t multiple = 64;
    while ((even + multiple - 1) / multiple * multiple > width) multiple /= 2;
    return (even + multiple - 1) / multiple * multiple;
  }

  int64_t columns() const { return columns_; }
  int64_t block() const { return block_; }
  int ranks() const { return ranks_; }
  int64_t width() const { return width_; }  // capacity of a slot
  int64_t slots() const { return slots_; }  // tiles of each rank; some may be empty
  int64_t count() const { return slots_ * ranks_; }

  // Returns the number of nonempty tiles, which come before the empty ones.
  int64_t nonempty() const {
    int64_t p = count();
    while (p > 0 && width(p - 1) == 0) --p;
    return p;
  }

  // Returns whether a rank's last slot extends beyond its block. A tile of full width from another
  // rank does not fit there; a single rank receives no such tile.
  bool has_overflow() const { return ranks_ > 1 && slots_ * width_ > block_; }

  // Returns the first column of tile p, which is also the first row of its diagonal tile.
  int64_t offset(int64_t p) const {
    if (p >= count()) return columns_;
    return std::min((p / slots_) * block_ + (p % slots_) * width_, columns_);
  }
  int64_t width(int64_t p) const { return offset(p + 1) - offset(p); }

  // Return the block-cyclic location of tile p: its rank and slot.
  int owner(int64_t p) const { return static_cast<int>(p % ranks_); }
  int64_t slot(int64_t p) const { return p / ranks_; }
  int64_t tile_in(int rank, int64_t slot) const { return slot * ranks_ + rank; }

  // Return the contiguous location of tile p: its rank and slot.
  int home(int64_t p) const { return static_cast<int>(p / slots_); }
  int64_t home_slot(int64_t p) const { return p % slots_; }

  // Returns the number of `rank`'s slots that hold tiles before position p.
  int64_t slots_before(int rank, int64_t p) const {
    return p > rank ? (p - rank + ranks_ - 1) / ranks_ : 0;
  }

 private:
  int64_t columns_;
  int64_t block_;
  int ranks_;
  int64_t width_;
  int64_t slots_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_LAYOUT_TILES_H_
