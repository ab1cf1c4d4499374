// Right-hand sides in row form, on every rank and by tiles, for routines that solve with a factor.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_RIGHT_HAND_SIDES_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_RIGHT_HAND_SIDES_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Right-hand sides in row form: X is nrhs x n, column-major with leading dimension nrhs (an n x
// nrhs row-major array).
template <typename T>
struct RightHandSides {
  int64_t count;  // nrhs; may be 0
  T* data;        // all columns, on every rank
  T* local;       // workspace: the columns of this rank's tiles, contiguous in the order of slots
  // If a single rank with a single tile reads the right-hand sides in place, their location;
  // otherwise null, and they are in `data`.
  const T* source = nullptr;
  // On one rank `local` has the layout of `data`, so a routine that solves in place shares the
  // memory.
  bool in_place() const { return local == data; }
  T* column(int64_t j) const { return data + j * count; }
  T* of_slot(const Tiles& tiles, int64_t slot) const {
    return local + slot * tiles.width() * count;
  }
  // The columns of X in tiles [first, end).
  Bytes2D OfTiles(const Tiles& tiles, int64_t first, int64_t end) const {
    const int64_t begin = tiles.offset(first);
    return Block(column(begin), count, count, tiles.offset(end) - begin);
  }
  // Tile k in its owner's `local`.
  Bytes2D ShareOf(const Tiles& tiles, int64_t k) const {
    return Block(of_slot(tiles, tiles.slot(k)), count, count, tiles.width(k));
  }
};

// Returns the number of elements of `local`.
inline int64_t LocalRightHandSides(const Tiles& tiles, int64_t nrhs) {
  return nrhs * tiles.slots() * tiles.width();
}

// As LocalRightHandSides; 0 on one rank, where `local` is `data`.
inline int64_t LocalInPlace(const Tiles& tiles, int64_t nrhs) {
  return tiles.ranks() == 1 ? 0 : LocalRightHandSides(tiles, nrhs);
}

// Copies this rank's columns of x.data to x.local.
template <typename T>
Status TakeLocal(const RankContext& context, const Matrix<T>& matrix, const RightHandSides<T>& x) {
  const Tiles& tiles = matrix.tiles;
  if (x.in_place()) return Status::Ok();
  for (int64_t k = matrix.rank; k < tiles.nonempty() && x.count > 0; k += tiles.ranks()) {
    JAXMG_RETURN_IF_ERROR(
        context.device.Copy(Stream::kMain, x.ShareOf(tiles, k), x.OfTiles(tiles, k, k + 1)));
  }
  return Status::Ok();
}

// Gathers the ranks' x.local into x.data on every rank.
template <typename T>
Status GatherLocal(const RankContext& context, const Matrix<T>& matrix,
                   const RightHandSides<T>& x) {
  const Tiles& tiles = matrix.tiles;
  if (x.in_place()) return WaitAllSent(context.comm, Stream::kMain);
  for (int64_t k = 0; k < tiles.nonempty() && x.count > 0; ++k) {
    const Bytes2D columns = x.OfTiles(tiles, k, k + 1);
    if (tiles.owner(k) == matrix.rank) {
      JAXMG_RETURN_IF_ERROR(context.device.Copy(Stream::kMain, columns, x.ShareOf(tiles, k)));
    }
    JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, tiles.owner(k), columns));
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_RIGHT_HAND_SIDES_H_
