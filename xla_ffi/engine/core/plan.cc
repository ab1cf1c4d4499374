#include "xla_ffi/engine/core/plan.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/cholesky/potri.h"
#include "xla_ffi/engine/cholesky/solve_rows.h"
#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/eigen/eigen.h"

namespace jaxmg {
namespace {

// An order of Tuning, for T.
template <typename T>
int64_t OrderOf(int64_t real) {
  return kIsComplex<T> ? real * 3 / 5 : real;
}

template <typename T>
bool Gathers(Routine routine, const Sizes& sizes, int ranks, const Tuning& tuning) {
  if (sizes.tile > 0 || ranks == 1) return false;
  if (routine == Routine::kPotrs) return sizes.n <= OrderOf<T>(tuning.gather_to_solve);
  return routine == Routine::kPotri && sizes.n <= tuning.gather_to_invert;
}

bool IsEigenproblem(Routine routine) {
  return routine == Routine::kSyevd || routine == Routine::kSygvd;
}

template <typename T>
bool Spreads(Routine routine, const Sizes& sizes, int ranks, const Tuning& tuning) {
  const int64_t from = ranks == 1      ? tuning.stages_alone
                       : kIsComplex<T> ? tuning.spread_complex
                       : sizes.vectors ? tuning.spread_eigen
                                       : tuning.spread_values;
  return IsEigenproblem(routine) && from > 0 && sizes.n >= from;
}

template <typename T>
Tiles TilesOf(Routine routine, const Sizes& sizes, int ranks, const Tuning& tuning) {
  if (Spreads<T>(routine, sizes, ranks, tuning)) {
    return Tiles(sizes.n, sizes.block, ranks, BandWidth<T>(sizes.block, sizes.tile, tuning));
  }
  int64_t width = sizes.tile;
  if (width == 0) {
    const bool whole =
        ranks == 1 && routine == Routine::kPotrs && sizes.n <= OrderOf<T>(tuning.whole_order);
    width = whole ? sizes.n : DefaultTileWidth(sizes.block, ranks, tuning);
  }
  return Tiles(sizes.n, sizes.block, ranks, Tiles::EvenWidth(sizes.block, width));
}

// What is solved with once, for a single right-hand side, isn't worth an inverse.
bool Inverts(Routine routine, int64_t nrhs) {
  switch (routine) {
    case Routine::kPotrs:
      return nrhs > 1;
    case Routine::kPotrf:
    case Routine::kApply:
    case Routine::kPack:
      return true;
    default:
      return false;
  }
}

}  // namespace

template <typename T>
Precision ChosenPrecision(Precision asked, int64_t n, const Tuning& tuning) {
  if (asked != Precision::kChosen) return asked;
  const bool parts = tuning.parts_order > 0 && n >= OrderOf<T>(tuning.parts_order);
  return parts ? Precision::kF16x3 : Precision::kHighest;
}

int64_t DefaultTileWidth(int64_t block, int ranks, const Tuning& tuning) {
  if (ranks == 1) return tuning.usual_tile;  // nobody to share with, or to wait for
  return std::clamp<int64_t>(block / tuning.least_tiles, 32, tuning.usual_tile);
}

template <typename T>
Plan<T>::Plan(Routine routine, const Sizes& sizes, int ranks, int rank, const Tuning& tuning)
    : gathers(Gathers<T>(routine, sizes, ranks, tuning)),
      spreads(Spreads<T>(routine, sizes, ranks, tuning)),
      tiles(gathers ? TilesOf<T>(routine, {sizes.n, sizes.n, 0}, 1, tuning)
                    : TilesOf<T>(routine, sizes, ranks, tuning)),
      factored(routine == Routine::kPotrf && ranks == 1 && sizes.n <= OrderOf<T>(tuning.whole_order)
                   ? Tiles(sizes.n, sizes.block, 1, sizes.n)
                   : tiles),
      precision(ChosenPrecision<T>(sizes.precision, sizes.n, tuning)),
      inverse_order(Inverts(routine, sizes.nrhs) ? std::min(tiles.width(), tuning.inverse_order)
                                                 : 0) {
  const int64_t n = sizes.n, tile_column = n * tiles.width();
  const bool root = rank == kRoot;
  const bool alone = gathers || (IsEigenproblem(routine) && !spreads);
  gathered = alone && root ? n * n : 0;
  if (spreads) {
    const EigenSpace<T> space(tiles, rank, sizes.vectors, sizes.subset(), tuning);
    eigen = space.elements;
    host_bytes = space.host_bytes;
  } else if (IsEigenproblem(routine) && root) {
    const double matrices = sizes.vectors ? tuning.syevd_matrices : tuning.syevd_value_matrices;
    solver = static_cast<int64_t>(matrices * static_cast<double>(n) * n);
  }
  if (routine == Routine::kSygvd) eigen = std::max(eigen, n * sizes.block);
  if (routine == Routine::kSygst) host_bytes = sizeof(int32_t);
  if (gathers && !root) return;
  if (routine != Routine::kApply && tiles.ranks() > 1) panels = tile_column;
  if (routine == Routine::kPotrs || routine == Routine::kPotri || routine == Routine::kSygst ||
      routine == Routine::kPotrf) {
    panels = std::max(panels, PotrfWorkspace<T>(factored, n, precision, tuning));
  }
  if (routine == Routine::kSygst || routine == Routine::kSolveRows) {
    panels = std::max(panels, SolveRowsWorkspace(tiles));
  }
  if (routine == Routine::kSolveRows) rows = n * sizes.block;
  if (routine == Routine::kPotri || routine == Routine::kInvert) {
    panels = std::max(panels, PotriWorkspace<T>(tiles, n, precision));
    const PartsShape parts = PartsOf<T>(precision);
    const int64_t columns = tiles.slots() * tiles.width();
    if (parts.depth > 0) {
      split_bytes = (parts.rows * n + columns) * parts.Depth(std::min(n, kPartsDepth)) *
                    static_cast<int64_t>(sizeof(Part));
    }
  }
  // Else it is the caller's.
  const bool own_overflow =
      routine <= Routine::kSygst || routine == Routine::kInvert || routine == Routine::kUnpack;
  if (own_overflow && tiles.has_overflow()) overflow = tile_column;
  const bool solves = routine == Routine::kPotrs || routine == Routine::kApply;
  if (solves) share = RightHandSidesShare(tiles, sizes.nrhs);
  if (routine == Routine::kApply) accumulated = sizes.nrhs * n;
  inverses = DiagonalSolverWorkspace(inverse_order);
}

template <typename T>
size_t Plan<T>::bytes(int ranks) const {
  size_t total = Aligned(kRecordBytes * (1 + ranks));
  for (int64_t elements : {panels, overflow, gathered, share, accumulated, inverses, eigen, rows}) {
    total += Aligned(elements * sizeof(T));
  }
  return total;
}

#define JAXMG_INSTANTIATE(T)                                                \
  template Precision ChosenPrecision<T>(Precision, int64_t, const Tuning&); \
  template struct Plan<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
