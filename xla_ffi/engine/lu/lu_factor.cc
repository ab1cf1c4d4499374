#include "xla_ffi/engine/lu/lu_factor.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/kept_factor.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/lu/gesv.h"
#include "xla_ffi/engine/lu/getri.h"
#include "xla_ffi/engine/lu/getrs.h"

namespace jaxmg {
namespace {

// Sets the outcome. Routines that use a factor have no numerical failure, so the status is 0 or
// negative.
template <typename T, typename U>
Status Finish(const Frame<T>& frame, int64_t m, int64_t n, U* data) {
  JAXMG_RETURN_IF_ERROR(frame.outcome().SetAndKeepNegative());
  JAXMG_RETURN_IF_ERROR(frame.outcome().PoisonIfNegative(m, n, data));
  return WaitAllSent(frame.context().comm, Stream::kMain);
}

template <typename T>
Status PoisonOverflow(const Frame<T>& frame) {
  const Matrix<T> matrix = frame.matrix();
  if (!matrix.tiles.has_overflow()) return Status::Ok();
  return frame.outcome().PoisonIfNegative(matrix.rows, matrix.tiles.width(), matrix.overflow);
}

}  // namespace

template <typename T>
LuFactorSpace<T>::LuFactorSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      precision(LuPrecision<T>(sizes.precision, std::max(sizes.m, sizes.n), ranks.tuning)),
      factored(TilesToFactor<T>(this->tiles, sizes.n, ranks.tuning)) {
  this->ReservePanels(GetrfWorkspace<T>(factored, sizes.n, ranks.tuning));
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
LuApplySpace<T>::LuApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      local(this->Reserve(LocalInPlace(this->tiles, nrhs))),
      sums(this->Reserve(nrhs * sizes.n)) {}

template <typename T>
LuSolveRowsSpace<T>::LuSolveRowsSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)) {
  this->ReservePanels(GetrsColumnsWorkspace(this->tiles));
}

template <typename T>
LuInvertSpace<T>::LuInvertSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      precision(LuPrecision<T>(sizes.precision, sizes.n, ranks.tuning)) {
  this->ReservePanels(GetriWorkspace(this->tiles, sizes.n, ranks.tuning));
  this->ReserveOverflow();
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
MoveLuSpace<T>::MoveLuSpace(const Sizes& sizes, bool to_rows, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)) {
  this->ReservePanels();
  if (to_rows) this->ReserveOverflow();
}

template <typename T>
Status LuFactorRoutine(const RankContext& context, const Operand<T>& operand, int32_t* pivots,
                       Real<T>* log_abs, T* sign) {
  const LuFactorSpace<T> space(operand.sizes(), RanksOf(context));
  Frame<T> frame(context, operand, space);
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    JAXMG_RETURN_IF_ERROR(Getrf(context, space.precision, frame.matrix(space.factored),
                                RightHandSides<T>{}, frame.panels(), pivots, outcome.info(),
                                {outcome.log_det(), outcome.sign()}));
    JAXMG_RETURN_IF_ERROR(outcome.ConcludeDeterminant(log_abs, sign, nullptr, 0));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfNegative(operand.n, operand.block, operand.a));
    JAXMG_RETURN_IF_ERROR(PoisonOverflow(frame));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return ClearOverflow(context, frame.matrix());
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status LuApplyRoutine(const RankContext& context, const Operand<T>& factor, const int32_t* pivots,
                      Op op, int64_t nrhs, T* x, const T* source) {
  const LuApplySpace<T> space(factor.sizes(), nrhs, RanksOf(context));
  Frame<T> frame(context, factor, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, nrhs * factor.n);
  };
  auto work = [&]() -> Status {
    const RightHandSides<T> b = {nrhs, x, frame.AtOr(space.local, x)};
    JAXMG_RETURN_IF_ERROR(Getrs(context, frame.matrix(), pivots, op, b, frame.at(space.sums)));
    return Finish(frame, nrhs, factor.n, x);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status LuSolveRowsRoutine(const RankContext& context, const Operand<T>& factor,
                          const int32_t* pivots, Op op, int64_t rows, T* x, const T* source) {
  const LuSolveRowsSpace<T> space(factor.sizes(), RanksOf(context));
  Frame<T> frame(context, factor, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, rows * factor.n);
  };
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(
        GetrsColumns(context, frame.matrix(), pivots, op, rows, x, frame.panels()));
    return Finish(frame, factor.n, rows, x);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status LuInvertRoutine(const RankContext& context, const Operand<T>& factor,
                       const int32_t* pivots) {
  const Operand<T> own = WithoutOverflow(factor);
  const LuInvertSpace<T> space(own.sizes(), RanksOf(context));
  Frame<T> frame(context, own, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyOverflow(context, factor, frame.matrix());
  };
  auto work = [&]() -> Status {
    AnnounceWork(context.device, 2 * LuWork(factor.n, factor.n));
    JAXMG_RETURN_IF_ERROR(InvertFactors(frame, space.precision, pivots));
    return Finish(frame, factor.n, factor.block, factor.a);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status LuDiagonalRoutine(const RankContext& context, const Operand<T>& factor, T* diagonal) {
  const RoutineSpace<T> space(
      factor.sizes(), RanksOf(context),
      TilesOf(factor.sizes(), context.comm.size(), context.device.tuning()));
  Frame<T> frame(context, factor, space);
  const int64_t count = std::min(factor.m, factor.n);
  auto work = [&]() -> Status {
    const Matrix<T> matrix = frame.matrix();
    const Tiles& tiles = matrix.tiles;
    for (int64_t k = 0; k < tiles.nonempty() && tiles.offset(k) < count; ++k) {
      const int64_t begin = tiles.offset(k), width = std::min(tiles.width(k), count - begin);
      const Bytes2D target = Block(diagonal + begin, 1, 1, width);
      if (tiles.owner(k) == matrix.rank) {
        const Bytes2D source = Block(matrix.tile(k, begin), matrix.ld() + 1, 1, width);
        JAXMG_RETURN_IF_ERROR(context.device.Copy(Stream::kMain, target, source));
      }
      JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, tiles.owner(k), target));
    }
    return Finish(frame, count, 1, diagonal);
  };
  return RunOnAllRanks(context.comm, [&] { return frame.Prepare(); }, work);
}

template <typename T>
Status MoveLuRoutine(const RankContext& context, const Operand<T>& factor, bool to_rows) {
  const Operand<T> own = to_rows ? WithoutOverflow(factor) : factor;
  const MoveLuSpace<T> space(own.sizes(), to_rows, RanksOf(context));
  Frame<T> frame(context, own, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    return to_rows ? CopyOverflow(context, factor, frame.matrix())
                   : ClearOverflow(context, frame.matrix());
  };
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(to_rows ? frame.Untile(Region::kFull) : frame.Take(Region::kFull));
    JAXMG_RETURN_IF_ERROR(Finish(frame, factor.n, factor.block, factor.a));
    return to_rows ? Status::Ok() : PoisonOverflow(frame);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                                      \
  template struct LuFactorSpace<T>;                                                               \
  template struct LuApplySpace<T>;                                                                \
  template struct LuSolveRowsSpace<T>;                                                            \
  template struct LuInvertSpace<T>;                                                               \
  template struct MoveLuSpace<T>;                                                                 \
  template Status LuFactorRoutine(const RankContext&, const Operand<T>&, int32_t*, Real<T>*, T*); \
  template Status LuApplyRoutine(const RankContext&, const Operand<T>&, const int32_t*, Op,       \
                                 int64_t, T*, const T*);                                          \
  template Status LuSolveRowsRoutine(const RankContext&, const Operand<T>&, const int32_t*, Op,   \
                                     int64_t, T*, const T*);                                      \
  template Status LuInvertRoutine(const RankContext&, const Operand<T>&, const int32_t*);         \
  template Status LuDiagonalRoutine(const RankContext&, const Operand<T>&, T*);                   \
  template Status MoveLuRoutine(const RankContext&, const Operand<T>&, bool);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
