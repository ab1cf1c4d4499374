#include "xla_ffi/engine/core/plan.h"

#include <algorithm>
#include <complex>

namespace jaxmg {

template <typename T>
Precision ChosenPrecision(Precision asked, int64_t n, const Tuning& tuning) {
  if (asked != Precision::kChosen) return asked;
  const bool parts = tuning.parts_order > 0 && n >= OrderOf<T>(tuning.parts_order);
  return parts ? Precision::kF16x3 : Precision::kHighest;
}

int64_t DefaultTileWidth(int64_t block, int ranks, const Tuning& tuning) {
  if (ranks == 1) return tuning.usual_tile;  // no other rank shares the work or waits
  return std::clamp<int64_t>(block / tuning.least_tiles, 32, tuning.usual_tile);
}

Tiles TilesOf(const Sizes& sizes, int ranks, const Tuning& tuning) {
  const int64_t width = sizes.tile > 0 ? sizes.tile : DefaultTileWidth(sizes.block, ranks, tuning);
  return Tiles(sizes.m, sizes.block, ranks, Tiles::EvenWidth(sizes.block, width));
}

template <typename T>
RoutineSpace<T>::RoutineSpace(const Sizes& sizes, const Ranks& ranks, const Tiles& tiles,
                              bool gathers)
    : gathers(gathers),
      works(!gathers || ranks.rank == kRoot),
      tiles(tiles),
      records(pieces.Reserve<char>(kRecordBytes * (1 + ranks.size))),
      tile_column_(sizes.n * tiles.width()) {
  if (gathers && works) gathered = Reserve(sizes.m * sizes.n);
}

template <typename T>
void RoutineSpace<T>::ReservePanels(int64_t elements) {
  panels = Reserve(std::max(elements, tiles.ranks() > 1 ? tile_column_ : 0));
}

template <typename T>
void RoutineSpace<T>::ReserveOverflow() {
  if (tiles.has_overflow()) overflow = Reserve(tile_column_);
}

#define JAXMG_INSTANTIATE(T)                                                \
  template Precision ChosenPrecision<T>(Precision, int64_t, const Tuning&); \
  template struct RoutineSpace<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
