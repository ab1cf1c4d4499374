#include "xla_ffi/engine/cholesky/potrs.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/potrf.h"

namespace jaxmg {
template <typename T>
PotrsSpace<T>::PotrsSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks,
                      TilesToSolve<T>(sizes, ranks, OrderOf<T>(ranks.tuning.whole_order)),
                      GathersToSolve<T>(sizes, ranks)),
      precision(ChosenPrecision<T>(sizes.precision, sizes.n, ranks.tuning)),
      inverse_order(nrhs > 1 ? std::min(this->tiles.width(), ranks.tuning.inverse_order) : 0) {
  if (!this->works) return;
  this->ReservePanels(PotrfWorkspace<T>(this->tiles, sizes.n, precision, ranks.tuning));
  this->ReserveOverflow();
  local = this->Reserve(LocalRightHandSides(this->tiles, nrhs));
  inverses = this->Reserve(DiagonalSolverWorkspace(inverse_order));
}

template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand,
                    const Solution<T>& solution) {
  const PotrsSpace<T> space(operand.sizes(), solution.nrhs, RanksOf(context));
  Frame<T> frame(context, operand, space);
  const int64_t count = solution.nrhs * operand.n;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    if (frame.works()) JAXMG_RETURN_IF_ERROR(ReservePotrf(context.device, frame.matrix()));
    return CopyIfApart(context.device, solution.b, solution.x, count);
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    if (solution.check_b) {
      JAXMG_RETURN_IF_ERROR(context.device.status().Digest(
          Stream::kMain, solution.x, count * sizeof(T) / sizeof(int32_t), outcome.digest()));
    }
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kLower));
    if (frame.works()) {
      const RankContext& ranks = frame.context();
      const Matrix<T> matrix = frame.matrix();
      const RightHandSides<T> b = {solution.nrhs, solution.x, frame.at(space.local)};
      const Inverses<T> inverses = {space.inverse_order, frame.at(space.inverses)};
      JAXMG_RETURN_IF_ERROR(Potrf(ranks, space.precision, matrix, b, frame.panels(), outcome.info(),
                                  outcome.log_det()));
      JAXMG_RETURN_IF_ERROR(InvertDiagonals(ranks, matrix, inverses));
      JAXMG_RETURN_IF_ERROR(BackSubstitution(ranks, matrix, b, inverses));
    }
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(outcome.SetLogDet(solution.log_det));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(solution.nrhs, operand.n, solution.x));
    JAXMG_RETURN_IF_ERROR(outcome.Spread(solution.x, count));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)     \
  template struct PotrsSpace<T>; \
  template Status PotrsRoutine(const RankContext&, const Operand<T>&, const Solution<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
