#include "xla_ffi/engine/core/plan.h"

#include <algorithm>
#include <complex>

namespace jaxmg {

template <typename T>
Precision ChosenPrecision(Precision requested, int64_t n, const Tuning& tuning) {
  if (requested != Precision::kChosen) return requested;
  const bool parts =
      tuning.products.parts_order > 0 && n >= OrderOf<T>(tuning.products.parts_order);
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
int64_t SplitBytes(const Tiles& tiles, int64_t rows, Precision precision) {
  const PartsShape parts = PartsOf<T>(precision);
  if (parts.depth == 0) return 0;
  const int64_t columns = tiles.slots() * tiles.width();
  const int64_t scales = parts.scaled ? (rows + columns) * sizeof(Real<T>) : 0;
  return (parts.rows * rows + columns) * parts.Depth(std::min(rows, kPartsDepth)) *
             static_cast<int64_t>(sizeof(Part)) +
         scales;
}

template <typename T>
bool GathersToSolve(const Sizes& sizes, const Ranks& ranks) {
  return sizes.tile == 0 && ranks.size > 1 && sizes.n <= OrderOf<T>(ranks.tuning.gather_to_solve);
}

template <typename T>
Tiles TilesToSolve(const Sizes& sizes, const Ranks& ranks, int64_t whole) {
  const bool gathers = GathersToSolve<T>(sizes, ranks);
  Sizes own = sizes;
  const int size = gathers ? 1 : ranks.size;
  if (gathers) own.block = sizes.m;
  if (sizes.tile == 0 && size == 1 && sizes.n <= whole) own.tile = sizes.n;
  return TilesOf(own, size, ranks.tuning);
}

bool GathersToInvert(const Sizes& sizes, const Ranks& ranks) {
  return sizes.tile == 0 && ranks.size > 1 && sizes.n <= ranks.tuning.gather_to_invert;
}

Tiles TilesToInvert(const Sizes& sizes, const Ranks& ranks) {
  if (!GathersToInvert(sizes, ranks)) return TilesOf(sizes, ranks.size, ranks.tuning);
  Sizes own = sizes;
  own.block = sizes.m;
  return TilesOf(own, 1, ranks.tuning);
}

template <typename T>
RoutineSpace<T>::RoutineSpace(const Sizes& sizes, const Ranks& ranks, const Tiles& tiles,
                              bool gathers)
    : gathers(gathers),
      works(!gathers || ranks.rank == kRoot),
      tiles(tiles),
      records(pieces.Reserve<char>(RecordsBytes(ranks.size))),
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
  template int64_t SplitBytes<T>(const Tiles&, int64_t, Precision);         \
  template bool GathersToSolve<T>(const Sizes&, const Ranks&);              \
  template Tiles TilesToSolve<T>(const Sizes&, const Ranks&, int64_t);      \
  template struct RoutineSpace<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
