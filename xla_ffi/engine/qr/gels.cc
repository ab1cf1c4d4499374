#include "xla_ffi/engine/qr/gels.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {

template <typename T>
GelsSpace<T>::GelsSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, QrTiles(sizes, ranks)),
      precision(QrPrecision<T>(sizes, ranks.tuning)),
      factors(this->Reserve(kPanelColumns * std::min(sizes.m, sizes.n))),
      local(this->Reserve(LocalRightHandSides(this->tiles, nrhs))),
      sums(this->Reserve(nrhs * sizes.m)) {
  this->ReservePanels(std::max(GeqrfWorkspace(this->tiles, sizes.n, nrhs),
                               MultiplyRightWorkspace(this->tiles, sizes.n, nrhs)));
  this->ReserveOverflow();
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
Status GelsRoutine(const RankContext& context, const Operand<T>& operand,
                   const LeastSquares<T>& problem) {
  const GelsSpace<T> space(operand.sizes(), problem.nrhs, RanksOf(context));
  Frame<T> frame(context, operand, space);
  const int64_t count = problem.nrhs * operand.n;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, problem.b, problem.x, count);
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    const Matrix<T> matrix = frame.matrix();
    if (problem.check_b) {
      JAXMG_RETURN_IF_ERROR(context.device.status().Digest(
          Stream::kMain, problem.x, count * sizeof(T) / sizeof(int32_t), outcome.digest()));
    }
    // The right-hand sides are multiplied by Q or its adjoint, and solved for.
    AnnounceWork(context.device, QrWork(matrix.rows, matrix.tiles.columns()) +
                                     3 * SolveWork(matrix.rows, problem.nrhs));
    JAXMG_RETURN_IF_ERROR(CheckRows(context, operand, outcome.info()));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    const bool along = problem.system == Op::kNone;
    const FurtherColumns<T> further = {along ? problem.nrhs : 0, problem.x};
    const RightHandSides<T> x = {problem.nrhs, problem.x, frame.at(space.local)};
    T* factors = frame.at(space.factors);
    JAXMG_RETURN_IF_ERROR(Geqrf(context, space.precision, matrix, further, factors,
                                static_cast<T*>(nullptr), frame.panels()));
    JAXMG_RETURN_IF_ERROR(TakeDiagonal(context, matrix, problem.diagonal));
    JAXMG_RETURN_IF_ERROR(SolveWithFactor(context, matrix, factors, problem.system,
                                          /*multiplied=*/along, x, frame.at(space.sums),
                                          frame.panels()));
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(problem.nrhs, operand.n, problem.x));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(operand.m, 1, problem.diagonal));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)    \
  template struct GelsSpace<T>; \
  template Status GelsRoutine(const RankContext&, const Operand<T>&, const LeastSquares<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
