#include "xla_ffi/engine/cholesky/factor.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/cholesky/potri.h"
#include "xla_ffi/engine/cholesky/solve_rows.h"
#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/kept_factor.h"
#include "xla_ffi/engine/core/redistribute.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

// Sets the outcome; fills the result `data` with NaN after a failure.
template <typename T, typename U>
Status Finish(const Frame<T>& frame, int64_t m, int64_t n, U* data) {
  const Outcome<T>& outcome = frame.outcome();
  JAXMG_RETURN_IF_ERROR(outcome.Set());
  JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(m, n, data));
  return WaitAllSent(frame.context().comm, Stream::kMain);
}

template <typename T>
Status PoisonOverflow(const Frame<T>& frame) {
  const Matrix<T> matrix = frame.matrix();
  if (!matrix.tiles.has_overflow()) return Status::Ok();
  return frame.outcome().PoisonIfFailed(matrix.rows, matrix.tiles.width(), matrix.overflow);
}

// Returns the order of the diagonal blocks that are inverted.
int64_t InverseOrder(const Tiles& tiles, const Ranks& ranks) {
  return std::min(tiles.width(), ranks.tuning.cholesky.inverse_order);
}

template <typename T>
Inverses<T> InversesOf(const Frame<T>& frame, const InversesSpace<T>& space) {
  return {space.order, frame.at(space.piece)};
}

}  // namespace

template <typename T>
PotrfSpace<T>::PotrfSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      precision(ChosenPrecision<T>(sizes.precision, sizes.n, ranks.tuning)),
      factored(ranks.size == 1 && sizes.n <= OrderOf<T>(ranks.tuning.cholesky.whole_order)
                   ? Tiles(sizes.m, sizes.block, 1, sizes.n)
                   : this->tiles) {
  this->ReservePanels(PotrfWorkspace<T>(factored, sizes.n, precision, ranks.tuning));
  inverses.order = InverseOrder(this->tiles, ranks);
  inverses.piece = this->Reserve(DiagonalSolverWorkspace(inverses.order));
}

template <typename T>
ApplySpace<T>::ApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      local(this->Reserve(LocalRightHandSides(this->tiles, nrhs))),
      sums(this->Reserve(nrhs * sizes.n)) {
  inverses.order = InverseOrder(this->tiles, ranks);
  inverses.piece = this->Reserve(DiagonalSolverWorkspace(inverses.order));
}

template <typename T>
SolveRowsSpace<T>::SolveRowsSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      rows(this->Reserve(sizes.n * sizes.block)) {
  this->ReservePanels(SolveRowsWorkspace(this->tiles));
}

template <typename T>
InvertSpace<T>::InvertSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      precision(ChosenPrecision<T>(sizes.precision, sizes.n, ranks.tuning)) {
  this->ReservePanels(PotriWorkspace<T>(this->tiles, sizes.n, precision));
  this->ReserveOverflow();
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
MoveFactorSpace<T>::MoveFactorSpace(const Sizes& sizes, bool inverse, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)) {
  this->ReservePanels();
  if (inverse) {
    this->ReserveOverflow();
  } else {
    inverses.order = InverseOrder(this->tiles, ranks);
    inverses.piece = this->Reserve(DiagonalSolverWorkspace(inverses.order));
  }
}

template <typename T>
Status PotrfRoutine(const RankContext& context, const Operand<T>& operand, Real<T>* log_det) {
  const PotrfSpace<T> space(operand.sizes(), RanksOf(context));
  Frame<T> frame(context, operand, space);
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kLower));
    JAXMG_RETURN_IF_ERROR(Potrf(context, space.precision, frame.matrix(space.factored),
                                RightHandSides<T>{}, frame.panels(), outcome.info(),
                                outcome.log_det(), /*spoils=*/true));
    JAXMG_RETURN_IF_ERROR(
        InvertDiagonals(context, frame.matrix(), InversesOf(frame, space.inverses)));
    JAXMG_RETURN_IF_ERROR(outcome.ConcludeOrFail(log_det, nullptr, 0));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(operand.n, operand.block, operand.a));
    JAXMG_RETURN_IF_ERROR(PoisonOverflow(frame));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(ReservePotrf(context.device, frame.matrix(space.factored)));
    return ClearOverflow(context, frame.matrix());
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status ApplyRoutine(const RankContext& context, const Operand<T>& factor, Apply apply, int64_t nrhs,
                    T* x, const T* source) {
  const ApplySpace<T> space(factor.sizes(), nrhs, RanksOf(context));
  Frame<T> frame(context, factor, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, nrhs * factor.n);
  };
  auto work = [&]() -> Status {
    const Matrix<T> matrix = frame.matrix();
    const RightHandSides<T> b = {nrhs, x, frame.at(space.local)};
    const Inverses<T> inverses = InversesOf(frame, space.inverses);
    T* sums = frame.at(space.sums);
    const bool forward = apply == Apply::kSolve || apply == Apply::kSolveL;
    AnnounceWork(context.device, (apply == Apply::kSolve ? 2 : 1) * SolveWork(factor.n, nrhs));
    if (apply == Apply::kMultiplyL || apply == Apply::kMultiplyLH) {
      const Op op = apply == Apply::kMultiplyL ? Op::kConjTrans : Op::kNone;
      JAXMG_RETURN_IF_ERROR(Multiply(context, matrix, op, b, sums));
    } else {
      JAXMG_RETURN_IF_ERROR(forward ? ForwardSubstitution(context, matrix, b, sums, inverses)
                                    : TakeLocal(context, matrix, b));
      JAXMG_RETURN_IF_ERROR(apply == Apply::kSolveL
                                ? GatherLocal(context, matrix, b)
                                : BackSubstitution(context, matrix, b, inverses));
    }
    return Finish(frame, nrhs, factor.n, x);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status SolveRowsRoutine(const RankContext& context, const Operand<T>& factor, bool inverse, T* x,
                        const T* source) {
  const SolveRowsSpace<T> space(factor.sizes(), RanksOf(context));
  Frame<T> frame(context, factor, space);
  const int64_t n = factor.n, rows = factor.block, ld = std::max<int64_t>(rows, 1);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, rows * n);
  };
  auto work = [&]() -> Status {
    T* turned = frame.at(space.rows);
    // x is row-major, and this routine solves with L'. SolveRows takes column-major rows and solves
    // with L = conj(L'). The conjugate transpositions convert both.
    Blas<T>& blas = context.device.template blas<T>();
    JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, n, rows, x, n, turned, ld));
    JAXMG_RETURN_IF_ERROR(SolveRows(context, frame.matrix(), inverse ? Op::kNone : Op::kConjTrans,
                                    rows, turned, frame.panels()));
    JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, rows, n, turned, ld, x, n));
    return Finish(frame, n, rows, x);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status InvertRoutine(const RankContext& context, const Operand<T>& factor) {
  const Operand<T> own = WithoutOverflow(factor);
  const InvertSpace<T> space(own.sizes(), RanksOf(context));
  Frame<T> frame(context, own, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyOverflow(context, factor, frame.matrix());
  };
  auto work = [&]() -> Status {
    AnnounceWork(context.device, 2 * FactorWork(factor.n));
    JAXMG_RETURN_IF_ERROR(Potri(context, space.precision, frame.matrix(), frame.panels()));
    JAXMG_RETURN_IF_ERROR(UntileHermitian(frame));
    return Finish(frame, factor.n, factor.block, factor.a);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status DiagonalRoutine(const RankContext& context, const Operand<T>& factor, Real<T>* diagonal) {
  const RoutineSpace<T> space(
      factor.sizes(), RanksOf(context),
      TilesOf(factor.sizes(), context.comm.size(), context.device.tuning()));
  Frame<T> frame(context, factor, space);
  auto work = [&]() -> Status {
    const Matrix<T> matrix = frame.matrix();
    const Tiles& tiles = matrix.tiles;
    for (int64_t k = 0; k < tiles.nonempty(); ++k) {
      const int64_t begin = tiles.offset(k), width = tiles.width(k);
      const Bytes2D target = Block(diagonal + begin, 1, 1, width);
      if (tiles.owner(k) == matrix.rank) {
        // The real part is the first word of an element.
        const Bytes2D source = {matrix.tile(k, begin), (matrix.ld() + 1) * sizeof(T),
                                sizeof(Real<T>), static_cast<size_t>(width)};
        JAXMG_RETURN_IF_ERROR(context.device.Copy(Stream::kMain, target, source));
      }
      JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, tiles.owner(k), target));
    }
    return Finish(frame, factor.n, 1, diagonal);
  };
  return RunOnAllRanks(context.comm, [&] { return frame.Prepare(); }, work);
}

template <typename T>
Status MoveFactorRoutine(const RankContext& context, const Operand<T>& factor, bool inverse) {
  const Operand<T> own = inverse ? WithoutOverflow(factor) : factor;
  const MoveFactorSpace<T> space(own.sizes(), inverse, RanksOf(context));
  Frame<T> frame(context, own, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    if (inverse) return CopyOverflow(context, factor, frame.matrix());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return ClearOverflow(context, frame.matrix());
  };
  auto work = [&]() -> Status {
    const Matrix<T> matrix = frame.matrix();
    if (inverse) {
      JAXMG_RETURN_IF_ERROR(ToContiguous(context, matrix, Region::kLower, frame.panels()));
    } else {
      JAXMG_RETURN_IF_ERROR(frame.Take(Region::kLower));
      JAXMG_RETURN_IF_ERROR(InvertDiagonals(context, matrix, InversesOf(frame, space.inverses)));
    }
    JAXMG_RETURN_IF_ERROR(Finish(frame, factor.n, factor.block, factor.a));
    return inverse ? Status::Ok() : PoisonOverflow(frame);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                                   \
  template struct PotrfSpace<T>;                                                               \
  template struct ApplySpace<T>;                                                               \
  template struct SolveRowsSpace<T>;                                                           \
  template struct InvertSpace<T>;                                                              \
  template struct MoveFactorSpace<T>;                                                          \
  template Status PotrfRoutine(const RankContext&, const Operand<T>&, Real<T>*);               \
  template Status ApplyRoutine(const RankContext&, const Operand<T>&, Apply, int64_t, T*,      \
                               const T*);                                                      \
  template Status SolveRowsRoutine(const RankContext&, const Operand<T>&, bool, T*, const T*); \
  template Status InvertRoutine(const RankContext&, const Operand<T>&);                        \
  template Status DiagonalRoutine(const RankContext&, const Operand<T>&, Real<T>*);            \
  template Status MoveFactorRoutine(const RankContext&, const Operand<T>&, bool);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
