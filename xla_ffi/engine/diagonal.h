// Substitution with one diagonal tile of the factor, for right-hand sides in row form (potrf.h).
//
// On GPUs a triangular solve with one row is a chain of small dependent steps, many times slower
// than products with the inverses of the tile's diagonal blocks, which potrf makes anyway.
#ifndef JAXMG_XLA_FFI_ENGINE_DIAGONAL_H_
#define JAXMG_XLA_FFI_ENGINE_DIAGONAL_H_

#include <algorithm>

#include "xla_ffi/engine/matrix.h"

namespace jaxmg {

// The inverses of the diagonal blocks of this rank's diagonal tiles, as InvertDiagonalBlocks makes
// them; `block` is 0 where the device solves with the tiles themselves.
template <typename T>
struct InvertedDiagonals {
  static int64_t Size(const Tiles& tiles, int64_t block) {
    return block == 0 ? 0 : tiles.slots() * SizeOfTile(tiles, block);
  }
  T* of_slot(const Tiles& tiles, int64_t slot) const {
    return data + slot * SizeOfTile(tiles, block);
  }

  T* data;
  int64_t block;

 private:
  static int64_t SizeOfTile(const Tiles& tiles, int64_t block) {
    return (tiles.width() + block - 1) / block * block * block;
  }
};

// One diagonal tile L of order n; `inverses` may be null.
template <typename T>
struct DiagonalTile {
  const T* l;
  int64_t ld;
  int64_t n;
  const T* inverses;
  int64_t block;
};

// solved := x L^-H. x is count x n, used up; both have leading dimension `count`.
template <typename T>
Status SolveForward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count, T* x,
                    T* solved);
// solved := x L^-1.
template <typename T>
Status SolveBackward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count,
                     T* x, T* solved);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_DIAGONAL_H_
