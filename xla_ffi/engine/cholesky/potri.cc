#include "xla_ffi/engine/cholesky/potri.h"

#include <algorithm>
#include <complex>
#include <numeric>
#include <vector>

#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/core/symmetrize.h"
#include "xla_ffi/engine/core/transpose.h"

namespace jaxmg {
namespace {

// Computes V = L^-H above the diagonal from L below it.
template <typename T>
Status Trtri(const RankContext& context, Precision precision, const Matrix<T>& matrix, T* buffers,
             T* one_tile) {
  const Tiles& tiles = matrix.tiles;
  const int rank = matrix.rank;
  const int64_t ld = matrix.ld(), count = tiles.nonempty();
  // Gathers row k of tiles, from the first to the diagonal one, into `row`: width(k) x offset(k +
  // 1), column-major and contiguous.
  auto gather = [&](Step<T>& on, int64_t k, T* row) {
    const int64_t height = tiles.width(k);
    auto piece = [&](int64_t j) {
      return Block(row + tiles.offset(j) * height, height, height, tiles.width(j));
    };
    for (int64_t j = rank; j <= k; j += tiles.ranks()) {
      on.Copy(piece(j), Block(matrix.tile(j, tiles.offset(k)), ld, height, tiles.width(j)));
      on.Broadcast(rank, piece(j));
    }
    for (int64_t j = 0; j <= k; ++j) {
      if (tiles.owner(j) != rank) on.Broadcast(tiles.owner(j), piece(j));
    }
  };
  auto step = [&](Step<T>& on, int64_t k, const T* row) {
    const int64_t width = tiles.width(k), begin = tiles.offset(k);
    const T* l = row + begin * width;
    const int64_t end = tiles.slots_before(rank, count);
    matrix.ForRuns(tiles.slots_before(rank, k + 1), end, [&](int64_t, T* run, int64_t columns) {
      on.Trsm(Side::kLeft, Op::kConjTrans, width, columns, l, width, run + begin, ld);
    });
    if (tiles.owner(k) == rank) {
      // Column k takes part in the product below like the others. Its rows above the diagonal tile
      // start from zero.
      on.Trtri(width, l, width, one_tile, width);
      on.ConjTranspose(width, width, one_tile, width, matrix.tile(k, begin), ld);
      on.SetZero(begin, width, matrix.tile(k), ld);
    }
    matrix.ForRuns(tiles.slots_before(rank, k), end, [&](int64_t, T* run, int64_t columns) {
      on.Gemm(Op::kConjTrans, Op::kNone, begin, columns, width, -1, row, width, run + begin, ld, 1,
              run, ld);
    });
  };
  std::vector<int64_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  Flow flow(context, precision);
  Stage stage(context.device, "invert the factor", count, FactorWork(matrix.rows));
  DoubleBuffer<T>(flow, buffers, matrix.rows * tiles.width())
      .ForEach(order, gather, "trtri", step, &stage);
  return flow.status();
}

// Overwrites W with the lower triangle of W^H W.
template <typename T>
Status Lauum(const RankContext& context, Precision precision, const Matrix<T>& matrix, T* buffers) {
  const Tiles& tiles = matrix.tiles;
  const int64_t ld = matrix.ld();
  auto height = [&](int64_t k) { return tiles.columns() - tiles.offset(k); };
  auto gather = [&](Step<T>& on, int64_t k, T* column) { GatherColumn(on, matrix, k, column); };
  auto step = [&](Step<T>& on, int64_t k, const T* column) {
    const int64_t width = tiles.width(k), begin = tiles.offset(k), end = tiles.offset(k + 1);
    const int64_t below = tiles.columns() - end;
    auto multiply = [&](int64_t, T* run, int64_t columns) {
      on.Trmm(Side::kLeft, Op::kConjTrans, width, columns, column, height(k), run + begin, ld);
      if (below == 0) return;
      on.Gemm(Op::kConjTrans, Op::kNone, width, columns, below, 1, column + width, height(k),
              run + end, ld, 1, run + begin, ld);
    };
    matrix.ForRuns(0, tiles.slots_before(matrix.rank, k + 1), multiply);
  };
  std::vector<int64_t> order(tiles.nonempty());
  std::iota(order.begin(), order.end(), 0);
  Flow flow(context, precision);
  Stage stage(context.device, "multiply the inverses", tiles.nonempty(), FactorWork(matrix.rows));
  DoubleBuffer<T>(flow, buffers, matrix.rows * tiles.width())
      .ForEach(order, gather, "lauum", step, &stage);
  return flow.status();
}

}  // namespace

template <typename T>
Status Potri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace) {
  const int64_t width = matrix.tiles.width();
  T* one_tile = workspace + 2 * matrix.rows * width;
  Equilibration<T> equilibration(context, matrix, one_tile + width * width);
  const bool scaled = Equilibration<T>::Needed(precision);
  if (scaled) {
    JAXMG_RETURN_IF_ERROR(equilibration.FindForFactor());
    JAXMG_RETURN_IF_ERROR(equilibration.ScaleFactor(false));
  }
  JAXMG_RETURN_IF_ERROR(Trtri(context, precision, matrix, workspace, one_tile));
  JAXMG_RETURN_IF_ERROR(TransposeUpper(context, matrix, one_tile));
  JAXMG_RETURN_IF_ERROR(Lauum(context, precision, matrix, workspace));
  // M^-1 = S (S M S)^-1 S.
  return scaled ? equilibration.ScaleMatrix(false) : Status::Ok();
}

template <typename T>
PotriSpace<T>::PotriSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesToInvert(sizes, ranks), GathersToInvert(sizes, ranks)),
      precision(ChosenPrecision<T>(sizes.precision, sizes.n, ranks.tuning)) {
  if (!this->works) return;
  this->ReservePanels(std::max(PotrfWorkspace<T>(this->tiles, sizes.n, precision, ranks.tuning),
                               PotriWorkspace<T>(this->tiles, sizes.n, precision)));
  this->ReserveOverflow();
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
Status UntileHermitian(Frame<T>& frame) {
  JAXMG_RETURN_IF_ERROR(frame.Untile(Region::kLower));
  if (!frame.works()) return Status::Ok();
  return Symmetrize(frame.context(), frame.matrix(), frame.panels());
}

template <typename T>
Status PotriRoutine(const RankContext& context, const Operand<T>& operand) {
  const PotriSpace<T> space(operand.sizes(), RanksOf(context));
  Frame<T> frame(context, operand, space);
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    AnnounceWork(context.device, 3 * FactorWork(operand.n));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kLower));
    if (frame.works()) {
      const RankContext& ranks = frame.context();
      JAXMG_RETURN_IF_ERROR(Potrf(ranks, space.precision, frame.matrix(), RightHandSides<T>{},
                                  frame.panels(), outcome.info(), static_cast<Real<T>*>(nullptr)));
      JAXMG_RETURN_IF_ERROR(Potri(ranks, space.precision, frame.matrix(), frame.panels()));
    }
    JAXMG_RETURN_IF_ERROR(UntileHermitian(frame));
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(
        outcome.PoisonIfFailed(operand.n, frame.tiles().block(), frame.matrix().data));
    JAXMG_RETURN_IF_ERROR(frame.Return());
    return WaitAllSent(context.comm, Stream::kMain);
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    return frame.works() ? ReservePotrf(context.device, frame.matrix()) : Status::Ok();
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                  \
  template Status Potri(const RankContext&, Precision, const Matrix<T>&, T*); \
  template struct PotriSpace<T>;                                              \
  template Status UntileHermitian(Frame<T>&);                                 \
  template Status PotriRoutine(const RankContext&, const Operand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
