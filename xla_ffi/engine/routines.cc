#include "xla_ffi/engine/routines.h"

#include <complex>

#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/cholesky/potri.h"
#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/redistribute.h"
#include "xla_ffi/engine/eigen/eigenproblem.h"

namespace jaxmg {
template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand,
                    const Solution<T>& solution) {
  Frame<T> frame(context, operand, Routine::kPotrs, solution.nrhs);
  const int64_t count = solution.nrhs * operand.n;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.PrepareFactor());
    return CopyIfApart(context.device, solution.b, solution.x, count);
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    if (solution.check_b) {
      JAXMG_RETURN_IF_ERROR(context.device.status().Digest(
          Stream::kMain, solution.x, count * sizeof(T) / sizeof(int32_t), outcome.digest()));
    }
    JAXMG_RETURN_IF_ERROR(frame.Take());
    if (frame.works()) {
      const RankContext& ranks = frame.context();
      const Matrix<T> matrix = frame.matrix();
      const RightHandSides<T> b = frame.right_hand_sides(solution.nrhs, solution.x);
      JAXMG_RETURN_IF_ERROR(Potrf(ranks, frame.precision(), matrix, b, frame.panels(),
                                  outcome.info(), outcome.log_det()));
      JAXMG_RETURN_IF_ERROR(InvertDiagonals(ranks, matrix, frame.inverses()));
      JAXMG_RETURN_IF_ERROR(BackSubstitution(ranks, matrix, b, frame.inverses()));
    }
    JAXMG_RETURN_IF_ERROR(outcome.Set(solution.log_det));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(solution.nrhs, operand.n, solution.x));
    JAXMG_RETURN_IF_ERROR(outcome.Spread(solution.x, count));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status PotriRoutine(const RankContext& context, const Operand<T>& operand) {
  Frame<T> frame(context, operand, Routine::kPotri);
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    JAXMG_RETURN_IF_ERROR(frame.Take());
    if (frame.works()) {
      const RankContext& ranks = frame.context();
      JAXMG_RETURN_IF_ERROR(Potrf(ranks, frame.precision(), frame.matrix(), RightHandSides<T>{},
                                  frame.panels(), outcome.info(), static_cast<Real<T>*>(nullptr)));
      JAXMG_RETURN_IF_ERROR(Potri(ranks, frame.precision(), frame.matrix(), frame.panels()));
    }
    JAXMG_RETURN_IF_ERROR(frame.Untile());
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(
        outcome.PoisonIfFailed(operand.n, frame.tiles().block(), frame.matrix().data));
    JAXMG_RETURN_IF_ERROR(frame.Return());
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, [&] { return frame.PrepareFactor(); }, work);
}

namespace {

template <typename T>
Status Eigen(const RankContext& context, const Operand<T>& operand, const Subset& subset,
             Real<T>* w, T* v) {
  Eigenproblem<T> problem(context, operand, Routine::kSyevd, subset, w, v);
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(problem.Solve());
    return problem.PoisonIfFailed();
  };
  return RunOnAllRanks(context.comm, [&] { return problem.Prepare(); }, work);
}

}  // namespace

template <typename T>
Status SyevdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                    Real<T>* w) {
  return Eigen(context, operand, {0, operand.n}, w, vectors ? operand.a : nullptr);
}

template <typename T>
Status SyevxRoutine(const RankContext& context, const Operand<T>& operand, const Subset& subset,
                    Real<T>* w, T* v) {
  return Eigen(context, operand, subset, w, v);
}

template <typename T>
Status CyclicRoutine(const RankContext& context, int64_t block, int64_t columns, int64_t tile,
                     bool inverse, T* a, const T* source) {
  const int ranks = context.comm.size();
  if (tile < 1 || block % tile != 0) {
    return Error(Code::kInvalidArgument, "cyclic_1d: tiles of ", tile, " rows do not divide the ",
                 block, " rows of each rank");
  }
  const Matrix<T> matrix = {Tiles(block * ranks, block, ranks, tile), context.comm.rank(), columns,
                            a, nullptr};
  Workspace space;
  const size_t staging = space.Reserve<T>(columns * tile);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(space.Allocate(context.device));
    return CopyIfApart(context.device, source, a, block * columns);
  };
  auto work = [&]() -> Status {
    T* workspace = space.Get<T>(staging);
    return inverse ? ToContiguous(context, matrix, Region::kFull, workspace)
                   : ToBlockCyclic(context, matrix, Region::kFull, workspace);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                                   \
  template Status PotrsRoutine(const RankContext&, const Operand<T>&, const Solution<T>&);     \
  template Status PotriRoutine(const RankContext&, const Operand<T>&);                         \
  template Status SyevdRoutine(const RankContext&, const Operand<T>&, bool, Real<T>*);         \
  template Status SyevxRoutine(const RankContext&, const Operand<T>&, const Subset&, Real<T>*, \
                               T*);                                                            \
  template Status CyclicRoutine(const RankContext&, int64_t, int64_t, int64_t, bool, T*, const T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
