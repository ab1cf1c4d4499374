#include "xla_ffi/engine/qr/qr_factor.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/kept_factor.h"
#include "xla_ffi/engine/core/sweep.h"
#include "xla_ffi/engine/lu/gesv.h"

namespace jaxmg {
namespace {

// Sets the outcome. Routines that use a factor have no numerical failure.
template <typename T, typename U>
Status Finish(const Frame<T>& frame, int64_t m, int64_t n, U* data) {
  JAXMG_RETURN_IF_ERROR(frame.outcome().Set());
  JAXMG_RETURN_IF_ERROR(frame.outcome().PoisonIfFailed(m, n, data));
  return WaitAllSent(frame.context().comm, Stream::kMain);
}

int64_t CountOf(const Sizes& sizes) { return std::min(sizes.m, sizes.n); }

}  // namespace

Tiles QrTiles(const Sizes& sizes, const Ranks& ranks) {
  Sizes own = sizes;
  const Tuning& tuning = ranks.tuning;
  const bool narrow = ranks.size > 1 && std::max(sizes.m, sizes.n) < tuning.qr.wide_order;
  const int64_t widest = narrow ? tuning.qr.tile / 2 : tuning.qr.tile;
  if (sizes.tile == 0 && widest > 0) {
    own.tile = std::min(widest, DefaultTileWidth(sizes.block, ranks.size, tuning));
  }
  return TilesOf(own, ranks.size, ranks.tuning);
}

template <typename T>
Precision QrPrecision(const Sizes& sizes, const Tuning& tuning) {
  return LuPrecision<T>(sizes.precision, std::max(sizes.m, sizes.n), tuning);
}

template <typename T>
QrFactorSpace<T>::QrFactorSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, QrTiles(sizes, ranks)),
      precision(QrPrecision<T>(sizes, ranks.tuning)) {
  this->ReservePanels(GeqrfWorkspace(this->tiles, sizes.n, 0));
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
QrApplySpace<T>::QrApplySpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, QrTiles(sizes, ranks)) {
  this->ReservePanels(MultiplyRightWorkspace(this->tiles, sizes.n, nrhs));
}

template <typename T>
QrApplyRowsSpace<T>::QrApplyRowsSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, QrTiles(sizes, ranks)) {
  this->ReservePanels(OrmqrWorkspace(this->tiles, sizes.n));
}

template <typename T>
QrSolveSpace<T>::QrSolveSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, QrTiles(sizes, ranks)),
      local(this->Reserve(LocalRightHandSides(this->tiles, nrhs))),
      sums(this->Reserve(nrhs * sizes.m)) {
  this->ReservePanels(MultiplyRightWorkspace(this->tiles, sizes.n, nrhs));
}

template <typename T>
QrFormSpace<T>::QrFormSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, QrTiles(sizes, ranks)),
      precision(QrPrecision<T>(sizes, ranks.tuning)) {
  this->ReservePanels(OrmqrWorkspace(this->tiles, sizes.n));
  this->ReserveOverflow();
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
Status CheckRows(const RankContext& context, const Operand<T>& operand, int32_t* info) {
  // The rows are contiguous: checks them as a single column.
  const Blocks<T> blocks = {operand.n, operand.m, operand.block, operand.a};
  const int64_t count = blocks.width(context.comm.rank()) * operand.n;
  if (count == 0) return Status::Ok();
  return context.device.eigen<T>().panel->CheckFinite(Stream::kMain, count, 1, operand.a, count,
                                                      kNotFinite - 1, info);
}

template <typename T>
Status SolveWithR(const RankContext& context, const Matrix<T>& matrix, const RightHandSides<T>& x,
                  bool transposed, T* sums) {
  const int64_t m = matrix.tiles.columns();
  Flow flow(context);
  if (!transposed) {
    // (R^-1 B)^T = B^T R^-T.
    ClearSums(flow, matrix.tiles, x, sums);
    flow.Fork();
    TrsmSolver<T> diagonal(matrix, kTriangleR, Op::kTrans);
    JAXMG_RETURN_IF_ERROR(
        SweepByColumns(flow, matrix, Op::kTrans, /*ascends=*/false, x, sums, diagonal));
    return GatherLocal(context, matrix, x);
  }
  JAXMG_RETURN_IF_ERROR(TakeLocal(context, matrix, x));
  flow.Fork();
  TrsmSolver<T> diagonal(matrix, kTriangleR, Op::kNone);
  JAXMG_RETURN_IF_ERROR(SweepByRows(flow, matrix, /*ascends=*/true, x, diagonal));
  if (matrix.rows == m) return Status::Ok();
  return context.device.blas<T>().SetZero(Stream::kMain, x.count, matrix.rows - m, x.column(m),
                                          x.count);
}

template <typename T>
Status SolveWithFactor(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                       System system, bool multiplied, const RightHandSides<T>& x, T* sums,
                       T* workspace) {
  if (x.count == 0) return Status::Ok();
  if (system == Op::kNone) {
    if (!multiplied) {
      JAXMG_RETURN_IF_ERROR(MultiplyRight(context, matrix, factors, RightFactor::kQ,
                                          /*conjugates=*/true, x.count, x.data, workspace));
    }
    return SolveWithR(context, matrix, x, /*transposed=*/false, sums);
  }
  // M^T x = b has the solution conj(Q) R^-T b. The solution of M^H x = b is the conjugate of the
  // solution of M^T x = conj(b).
  auto conjugate = [&]() -> Status {
    if (!kIsComplex<T> || system != Op::kConjTrans) return Status::Ok();
    return context.device.blas<T>().Conjugate(Stream::kMain, x.count, matrix.rows, x.data, x.count);
  };
  JAXMG_RETURN_IF_ERROR(conjugate());
  JAXMG_RETURN_IF_ERROR(SolveWithR(context, matrix, x, /*transposed=*/true, sums));
  JAXMG_RETURN_IF_ERROR(MultiplyRight(context, matrix, factors, RightFactor::kAdjoint,
                                      /*conjugates=*/false, x.count, x.data, workspace));
  return conjugate();
}

template <typename T>
Status TakeDiagonal(const RankContext& context, const Matrix<T>& matrix, T* diagonal) {
  const Tiles& tiles = matrix.tiles;
  for (int64_t k = 0; k < TilesWithReflectors(tiles, matrix.rows); ++k) {
    const TileReflectors tile(tiles, matrix.rows, k);
    const Bytes2D target = Block(diagonal + tile.begin, 1, 1, tile.count);
    if (tile.owner == matrix.rank) {
      const Bytes2D source = Block(matrix.tile(k, tile.begin), matrix.ld() + 1, 1, tile.count);
      JAXMG_RETURN_IF_ERROR(context.device.Copy(Stream::kMain, target, source));
    }
    JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, tile.owner, target));
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

template <typename T>
Status QrFactorRoutine(const RankContext& context, const Operand<T>& operand, T* factors, T* tau) {
  const QrFactorSpace<T> space(operand.sizes(), RanksOf(context));
  Frame<T> frame(context, operand, space);
  const int64_t count = CountOf(operand.sizes());
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return ClearOverflow(context, frame.matrix());
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    const Matrix<T> matrix = frame.matrix();
    JAXMG_RETURN_IF_ERROR(CheckRows(context, operand, outcome.info()));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    JAXMG_RETURN_IF_ERROR(
        Geqrf(context, space.precision, matrix, FurtherColumns<T>{}, factors, tau, frame.panels()));
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(operand.n, operand.block, operand.a));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(int64_t{kPanelColumns}, count, factors));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(count, 1, tau));
    if (matrix.tiles.has_overflow()) {
      JAXMG_RETURN_IF_ERROR(
          outcome.PoisonIfFailed(operand.n, matrix.tiles.width(), matrix.overflow));
    }
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status QrApplyRoutine(const RankContext& context, const Operand<T>& factor, const T* factors, Op op,
                      int64_t nrhs, T* x, const T* source) {
  const QrApplySpace<T> space(factor.sizes(), nrhs, RanksOf(context));
  Frame<T> frame(context, factor, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, nrhs * factor.n);
  };
  auto work = [&]() -> Status {
    // In row form (Q^T B)^T = X Q, and (Q B)^T = conj(conj(X) Q^H).
    const RightFactor right = op == Op::kNone ? RightFactor::kAdjoint : RightFactor::kQ;
    JAXMG_RETURN_IF_ERROR(MultiplyRight(context, frame.matrix(), factors, right,
                                        /*conjugates=*/op != Op::kTrans, nrhs, x, frame.panels()));
    return Finish(frame, nrhs, factor.n, x);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status QrApplyRowsRoutine(const RankContext& context, const Operand<T>& factor, const T* factors,
                          Op op, int64_t rows, T* x, const T* source) {
  const QrApplyRowsSpace<T> space(factor.sizes(), RanksOf(context));
  Frame<T> frame(context, factor, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, rows * factor.n);
  };
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(Ormqr(context, frame.matrix(), factors, op, rows, x, frame.panels()));
    return Finish(frame, factor.n, rows, x);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status QrSolveRoutine(const RankContext& context, const Operand<T>& factor, const T* factors,
                      System system, int64_t nrhs, T* x, const T* source) {
  const QrSolveSpace<T> space(factor.sizes(), nrhs, RanksOf(context));
  Frame<T> frame(context, factor, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, nrhs * factor.n);
  };
  auto work = [&]() -> Status {
    const RightHandSides<T> b = {nrhs, x, frame.at(space.local)};
    JAXMG_RETURN_IF_ERROR(SolveWithFactor(context, frame.matrix(), factors, system,
                                          /*multiplied=*/false, b, frame.at(space.sums),
                                          frame.panels()));
    return Finish(frame, nrhs, factor.n, x);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status QrFormRoutine(const RankContext& context, const Operand<T>& factor, const T* factors) {
  const Operand<T> own = WithoutOverflow(factor);
  const QrFormSpace<T> space(own.sizes(), RanksOf(context));
  Frame<T> frame(context, own, space);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyOverflow(context, factor, frame.matrix());
  };
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(Orgqr(context, space.precision, frame.matrix(), factors, frame.panels()));
    JAXMG_RETURN_IF_ERROR(frame.Untile(Region::kFull));
    return Finish(frame, factor.n, factor.block, factor.a);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template Precision QrPrecision<T>(const Sizes&, const Tuning&);                                  \
  template struct QrFactorSpace<T>;                                                                \
  template struct QrApplySpace<T>;                                                                 \
  template struct QrApplyRowsSpace<T>;                                                             \
  template struct QrSolveSpace<T>;                                                                 \
  template struct QrFormSpace<T>;                                                                  \
  template Status CheckRows(const RankContext&, const Operand<T>&, int32_t*);                      \
  template Status SolveWithR(const RankContext&, const Matrix<T>&, const RightHandSides<T>&, bool, \
                             T*);                                                                  \
  template Status SolveWithFactor(const RankContext&, const Matrix<T>&, const T*, System, bool,    \
                                  const RightHandSides<T>&, T*, T*);                               \
  template Status TakeDiagonal(const RankContext&, const Matrix<T>&, T*);                          \
  template Status QrFactorRoutine(const RankContext&, const Operand<T>&, T*, T*);                  \
  template Status QrApplyRoutine(const RankContext&, const Operand<T>&, const T*, Op, int64_t, T*, \
                                 const T*);                                                        \
  template Status QrApplyRowsRoutine(const RankContext&, const Operand<T>&, const T*, Op, int64_t, \
                                     T*, const T*);                                                \
  template Status QrSolveRoutine(const RankContext&, const Operand<T>&, const T*, System, int64_t, \
                                 T*, const T*);                                                    \
  template Status QrFormRoutine(const RankContext&, const Operand<T>&, const T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
