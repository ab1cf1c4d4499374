#include "xla_ffi/engine/cholesky/potrs.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/equilibrate.h"
#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

// Returns whether right-hand sides that are solved in place can be read from
// RightHandSides::source. This requires that they aren't scaled first, and that one SolveRight
// takes all of them.
template <typename T>
bool ReadsSource(Precision precision, int64_t count, const Tuning& tuning) {
  return !Equilibration<T>::Needed(precision) && (count == 1 || tuning.cholesky.panel_block == 0);
}

}  // namespace

template <typename T>
PotrsSpace<T>::PotrsSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks,
                      TilesToSolve<T>(sizes, ranks, OrderOf<T>(ranks.tuning.cholesky.whole_order)),
                      GathersToSolve<T>(sizes, ranks)),
      precision(ChosenPrecision<T>(sizes.precision, sizes.n, ranks.tuning)),
      in_place(SolvesInPlace(this->tiles, nrhs, ranks.tuning)),
      inverse_order(nrhs > 1 && !in_place
                        ? std::min(this->tiles.width(), ranks.tuning.cholesky.inverse_order)
                        : 0) {
  if (!this->works) return;
  this->ReservePanels(PotrfWorkspace<T>(this->tiles, sizes.n, precision, ranks.tuning));
  this->ReserveOverflow();
  if (!in_place) local = this->Reserve(LocalRightHandSides(this->tiles, nrhs));
  inverses = this->Reserve(DiagonalSolverWorkspace(inverse_order));
}

template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand,
                    const Solution<T>& solution) {
  const PotrsSpace<T> space(operand.sizes(), solution.nrhs, RanksOf(context));
  Frame<T> frame(context, operand, space);
  const int64_t count = solution.nrhs * operand.n;
  // Whether the first substitution reads b itself, so that b isn't copied to x. Ranks that don't
  // work receive x.
  const bool reads_b = space.in_place && solution.b != nullptr && solution.b != solution.x &&
                       ReadsSource<T>(space.precision, solution.nrhs, context.device.tuning());
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    if (frame.works()) JAXMG_RETURN_IF_ERROR(ReservePotrf(context.device, frame.matrix()));
    return reads_b ? Status::Ok() : CopyIfApart(context.device, solution.b, solution.x, count);
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    if (solution.check_b && context.comm.size() > 1) {
      JAXMG_RETURN_IF_ERROR(
          context.device.status().Digest(Stream::kMain, reads_b ? solution.b : solution.x,
                                         count * sizeof(T) / sizeof(int32_t), outcome.digest()));
    }
    AnnounceWork(context.device, FactorWork(operand.n) + 2 * SolveWork(operand.n, solution.nrhs));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kLower));
    if (frame.works()) {
      const WorksAlone alone(context.device, space.gathers);
      const RankContext& ranks = frame.context();
      const Matrix<T> matrix = frame.matrix();
      const RightHandSides<T> b = {solution.nrhs, solution.x, frame.AtOr(space.local, solution.x),
                                   reads_b ? solution.b : nullptr};
      const Inverses<T> inverses = {space.inverse_order, frame.at(space.inverses)};
      JAXMG_RETURN_IF_ERROR(Potrf(ranks, space.precision, matrix, b, frame.panels(), outcome.info(),
                                  outcome.log_det(), /*spoils=*/true));
      JAXMG_RETURN_IF_ERROR(InvertDiagonals(ranks, matrix, inverses));
      JAXMG_RETURN_IF_ERROR(BackSubstitution(ranks, matrix, b, inverses));
    }
    JAXMG_RETURN_IF_ERROR(outcome.ConcludeOrFail(solution.log_det, solution.x, count));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status PotrsForAll(const RankContext& alone, const std::vector<SolveOfAll<T, Solution<T>>>& parts) {
  const auto log_dets = OfAll(parts, [](const auto& part) { return part.solution.log_det; });
  return SolveForAll<T, Solution<T>>(alone, parts, &PotrsRoutine<T>, log_dets, {});
}

#define JAXMG_INSTANTIATE(T)                                                               \
  template struct PotrsSpace<T>;                                                           \
  template Status PotrsRoutine(const RankContext&, const Operand<T>&, const Solution<T>&); \
  template Status PotrsForAll(const RankContext&, const std::vector<SolveOfAll<T, Solution<T>>>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
