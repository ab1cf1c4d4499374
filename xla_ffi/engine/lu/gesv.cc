#include "xla_ffi/engine/lu/gesv.h"

#include <algorithm>
#include <complex>
#include <type_traits>

#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/lu/getrs.h"

namespace jaxmg {

template <typename T>
Precision LuPrecision(Precision requested, int64_t n, const Tuning& tuning) {
  const Precision chosen = ChosenPrecision<T>(requested, n, tuning);
  if (chosen != Precision::kF16x3) return chosen;
  return tuning.products.scales ? Precision::kScaledF16x3 : Precision::kBf16x6;
}

// Returns the order up to which one rank factors a matrix as a single tile.
template <typename T>
int64_t WholeOrder(const Tuning& tuning) {
  if (std::is_same_v<T, float>) {
    return std::max(tuning.lu.whole_order, tuning.lu.whole_order_float32);
  }
  constexpr bool kSlower = kIsComplex<T> && sizeof(Real<T>) == sizeof(double);
  return kSlower ? OrderOf<T>(tuning.lu.whole_order) : tuning.lu.whole_order;
}

// Returns the tile width for a system that is solved only once, if the caller names none; 0 for the
// default.
template <typename T>
int64_t WidthToSolve(const Sizes& sizes, const Ranks& ranks) {
  const Tuning& tuning = ranks.tuning;
  constexpr bool kDouble = sizeof(Real<T>) == sizeof(double);
  if (ranks.size > 1) {
    if (!kDouble || GathersToSolve<T>(sizes, ranks)) return 0;
    const int64_t width = DefaultTileWidth(sizes.block, ranks.size, tuning);
    if (sizes.n < OrderOf<T>(tuning.lu.quarter_order)) {
      return std::min(width, tuning.usual_tile / 4);
    }
    if (sizes.n < OrderOf<T>(tuning.lu.half_order)) return std::min(width, tuning.usual_tile / 2);
    return 0;
  }
  const int64_t wide = OrderOf<T>(tuning.lu.wide_order);
  return kDouble && wide > 0 && sizes.n >= wide ? 2 * tuning.usual_tile : 0;
}

// Returns the tiles of a matrix whose factor is used only once.
template <typename T>
Tiles TilesOfGesv(const Sizes& sizes, const Ranks& ranks) {
  Sizes own = sizes;
  if (sizes.tile == 0) own.tile = WidthToSolve<T>(sizes, ranks);
  return TilesToSolve<T>(own, ranks, WholeOrder<T>(ranks.tuning));
}

template <typename T>
Tiles TilesToFactor(const Tiles& tiles, int64_t n, const Tuning& tuning) {
  const int64_t order = std::max(tiles.columns(), n);
  if (tiles.ranks() > 1 || order > WholeOrder<T>(tuning)) return tiles;
  return Tiles(tiles.columns(), tiles.block(), 1, tiles.columns());
}

template <typename T>
GesvSpace<T>::GesvSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOfGesv<T>(sizes, ranks), GathersToSolve<T>(sizes, ranks)),
      precision(LuPrecision<T>(sizes.precision, sizes.n, ranks.tuning)) {
  if (!this->works) return;
  this->ReservePanels(GetrfWorkspace<T>(this->tiles, sizes.n, ranks.tuning));
  this->ReserveOverflow();
  local = this->Reserve(LocalInPlace(this->tiles, nrhs));
  pivots = this->pieces.template Reserve<int32_t>(sizes.n);
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
Status GesvRoutine(const RankContext& context, const Operand<T>& operand,
                   const GeneralSolution<T>& solution) {
  const GesvSpace<T> space(operand.sizes(), solution.nrhs, RanksOf(context));
  Frame<T> frame(context, operand, space);
  const int64_t count = solution.nrhs * operand.n;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    if (frame.works()) JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, solution.b, solution.x, count);
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    if (solution.check_b && context.comm.size() > 1) {
      JAXMG_RETURN_IF_ERROR(context.device.status().Digest(
          Stream::kMain, solution.x, count * sizeof(T) / sizeof(int32_t), outcome.digest()));
    }
    AnnounceWork(context.device,
                 LuWork(operand.n, operand.n) + 2 * SolveWork(operand.n, solution.nrhs));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    if (frame.works()) {
      const WorksAlone alone(context.device, space.gathers);
      const RankContext& ranks = frame.context();
      const Matrix<T> matrix = frame.matrix();
      const RightHandSides<T> b = {solution.nrhs, solution.x, frame.AtOr(space.local, solution.x)};
      int32_t* pivots = frame.at(space.pivots);
      JAXMG_RETURN_IF_ERROR(Getrf(ranks, space.precision, matrix, b, frame.panels(), pivots,
                                  outcome.info(), {outcome.log_det(), outcome.sign()}));
      JAXMG_RETURN_IF_ERROR(FinishGesv(ranks, matrix, pivots, b));
    }
    JAXMG_RETURN_IF_ERROR(
        outcome.ConcludeDeterminant(solution.log_abs, solution.sign, solution.x, count));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status GesvForAll(const RankContext& alone,
                  const std::vector<SolveOfAll<T, GeneralSolution<T>>>& parts) {
  const auto log_dets = OfAll(parts, [](const auto& part) { return part.solution.log_abs; });
  const auto signs = OfAll(parts, [](const auto& part) { return part.solution.sign; });
  return SolveForAll<T, GeneralSolution<T>>(alone, parts, &GesvRoutine<T>, log_dets, signs);
}

#define JAXMG_INSTANTIATE(T)                                                                     \
  template Precision LuPrecision<T>(Precision, int64_t, const Tuning&);                          \
  template Tiles TilesToFactor<T>(const Tiles&, int64_t, const Tuning&);                         \
  template struct GesvSpace<T>;                                                                  \
  template Status GesvRoutine(const RankContext&, const Operand<T>&, const GeneralSolution<T>&); \
  template Status GesvForAll(const RankContext&,                                                 \
                             const std::vector<SolveOfAll<T, GeneralSolution<T>>>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
