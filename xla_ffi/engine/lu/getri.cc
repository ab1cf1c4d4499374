#include "xla_ffi/engine/lu/getri.h"

#include <algorithm>
#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/chain.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/core/sweep.h"
#include "xla_ffi/engine/lu/gesv.h"

namespace jaxmg {
namespace {

// One of the two sweeps of getri.h: with L it computes W, with U it computes V and multiplies V W.
template <typename T>
class InversionSweep {
 public:
  InversionSweep(const RankContext& context, Precision precision, const Matrix<T>& matrix,
                 const Triangle& triangle, T* workspace)
      : flow_(context, precision),
        matrix_(matrix),
        tiles_(matrix.tiles),
        n_(matrix.rows),
        triangle_(triangle),
        upper_(triangle.uplo == Uplo::kUpper),
        order_(tiles_, /*ascends=*/upper_),
        chain_(matrix.rank, tiles_.ranks(), flow_.tuning()),
        workspace_(workspace),
        columns_(tiles_.nonempty()),
        mine_(tiles_.slots()) {}

  Status Run() {
    flow_.Fork();
    if (order_.count() > 0 && Mine(order_.tile(0))) FinishAndSend(0);
    Stage stage(flow_.device(), upper_ ? "invert U" : "invert L", order_.count(), LuWork(n_, n_));
    for (int64_t step = 0; step < order_.count(); ++step) {
      const int64_t k = order_.tile(step);
      const bool next = step + 1 < order_.count() && Mine(order_.tile(step + 1));
      if (!Mine(k)) Receive(step);
      flow_.NoteSent(rooms_[step % 2]);
      if (next) {
        UpdateNext(step);
        FinishAndSend(step + 1);
      }
      UpdateOthers(step, next);
      if (upper_ && Mine(k)) MultiplyOwn(step);
      Release(step);
      stage.Done(Stream::kMain, step + 1);
    }
    return flow_.Finish();
  }

 private:
  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  // Return the first row and the number of rows of V or W in tile column k: V ends with the
  // diagonal tile, W begins with it.
  int64_t Begin(int64_t k) const { return upper_ ? 0 : tiles_.offset(k); }
  int64_t Height(int64_t k) const { return upper_ ? tiles_.offset(k + 1) : n_ - tiles_.offset(k); }
  // Returns column k of V or W in the form that is sent to all ranks.
  T* Column(int64_t step) const { return workspace_ + step % 2 * n_ * tiles_.width(); }
  Bytes2D ColumnBlock(int64_t step) const {
    const int64_t k = order_.tile(step);
    return Block(Column(step), Height(k), Height(k), tiles_.width(k));
  }
  // RowCopy returns the copy of row k in the tiles from `slot` on, DiagonalCopy the copy of the
  // diagonal tile. The originals are overwritten.
  T* RowCopy(int64_t slot) const {
    return workspace_ + (2 * n_ + slot * tiles_.width()) * tiles_.width();
  }
  T* DiagonalCopy() const { return RowCopy(tiles_.slots()); }

  // Finishes tile column k: divides the elements outside the diagonal tile, `grown`, by that tile,
  // inverts the tile, and sends the column.
  void FinishAndSend(int64_t step) {
    const int64_t k = order_.tile(step), width = tiles_.width(k), height = Height(k);
    const int64_t above = tiles_.offset(k) - Begin(k), rest = height - width;
    T* diagonal = matrix_.tile(k, tiles_.offset(k));
    T* grown = matrix_.tile(k, upper_ ? 0 : tiles_.offset(k + 1));
    T* column = Column(step);
    Step<T> on(flow_, Stream::kPanel, "finish column", k);
    on.Writes(mine_[tiles_.slot(k)]).Takes(rooms_[step % 2]).Gives(columns_[k]);
    if (rest > 0) {
      on.Trsm(Side::kRight, Op::kNone, rest, width, diagonal, matrix_.ld(), grown, matrix_.ld(),
              triangle_);
      on.Copy(Block(column + (upper_ ? 0 : width), height, rest, width),
              Block(grown, matrix_.ld(), rest, width));
    }
    on.Trtri(width, diagonal, matrix_.ld(), column + above, height, triangle_);
    chain_.Send(on, ColumnBlock(step));
  }

  void Receive(int64_t step) {
    const int64_t k = order_.tile(step);
    Step<T> on(flow_, Stream::kCopy, "receive column", k);
    on.Takes(rooms_[step % 2]).Gives(columns_[k]);
    chain_.Receive(on, tiles_.owner(k), ColumnBlock(step));
  }

  void Release(int64_t step) {
    Step<T> on(flow_, Stream::kMain);
    on.Writes(columns_[order_.tile(step)]);
    on.AwaitsSent(rooms_[step % 2]).Frees(rooms_[step % 2]);
  }

  // Updates `columns` columns from `slot` on: clears their row k, then adds alpha times the product
  // of column k with the former row k. `first` points to their first entry, in row 0.
  void Update(Step<T>& on, int64_t step, Real<T> alpha, int64_t slot, const T* first,
              int64_t columns) {
    const int64_t k = order_.tile(step), width = tiles_.width(k), ld = matrix_.ld();
    T* target = const_cast<T*>(first);
    T *row = target + tiles_.offset(k), *copy = RowCopy(slot);
    on.Copy(Block(copy, width, width, columns), Block(row, ld, width, columns));
    on.SetZero(width, columns, row, ld);
    on.Gemm(Op::kNone, Op::kNone, Height(k), columns, width, alpha, Column(step), Height(k), copy,
            width, 1, target + Begin(k), ld);
  }

  // Updates the column that is finished next, on the critical path.
  void UpdateNext(int64_t step) {
    const int64_t next = order_.tile(step + 1), slot = tiles_.slot(next);
    Step<T> on(flow_, Stream::kNext, "update next", order_.tile(step));
    on.Reads(columns_[order_.tile(step)]).Gives(mine_[slot]);
    Update(on, step, -1, slot, matrix_.slot(slot), tiles_.width(next));
  }

  // Updates this rank's other columns: the later ones and, with U, the finished ones.
  void UpdateOthers(int64_t step, bool next) {
    const int64_t k = order_.tile(step);
    const int64_t before = tiles_.slots_before(matrix_.rank, k);
    if (!upper_) return UpdateRange(step, -1, 0, before - (next ? 1 : 0));
    UpdateRange(step, -1, tiles_.slots_before(matrix_.rank, k + 1) + (next ? 1 : 0),
                tiles_.slots_before(matrix_.rank, tiles_.nonempty()));
    UpdateRange(step, 1, 0, before);
  }

  void UpdateRange(int64_t step, Real<T> alpha, int64_t begin, int64_t end) {
    if (begin >= end) return;
    Step<T> on(flow_, Stream::kMain, "update", order_.tile(step));
    on.Reads(columns_[order_.tile(step)]).Gives(mine_, begin, end);
    matrix_.ForRuns(begin, end, [&](int64_t slot, const T* first, int64_t columns) {
      Update(on, step, alpha, slot, first, columns);
    });
  }

  // Sets column k of X to V_k W_kk, by substitution with W_kk^-1, the diagonal tile of L.
  void MultiplyOwn(int64_t step) {
    const int64_t k = order_.tile(step), width = tiles_.width(k), height = Height(k);
    T *column = matrix_.tile(k), *diagonal = matrix_.tile(k, tiles_.offset(k));
    Step<T> on(flow_, Stream::kMain, "multiply", k);
    on.Reads(columns_[k]).Writes(mine_[tiles_.slot(k)]);
    on.Copy(Block(DiagonalCopy(), width, width, width),
            Block(diagonal, matrix_.ld(), width, width));
    on.Copy(Block(column, matrix_.ld(), height, width), ColumnBlock(step));
    on.Trsm(Side::kRight, Op::kNone, height, width, DiagonalCopy(), width, column, matrix_.ld(),
            kUnitLower);
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int64_t n_;
  const Triangle triangle_;
  const bool upper_;
  const SweepOrder order_;
  const Chain chain_;
  T* const workspace_;
  std::vector<Data> columns_;  // by tile: the column of V or W that is sent to all ranks
  std::vector<Data> mine_;     // by slot: the column in the matrix
  std::array<Room, 2> rooms_;  // by the parity of a step
};

// Computes X = U^-1 L^-1 on one rank, whose tile columns are contiguous. Solves X^H = L^-H U^-H by
// two substitutions with whole triangles, from the left, which is faster in cuBLAS than from the
// right. They bound X M - I, as the sweeps and LAPACK do; substitutions for U^-1 (L^-1 I) would
// bound M X - I.
template <typename T>
Status InvertWhole(const RankContext& context, const Matrix<T>& matrix, T* inverse) {
  const int64_t n = matrix.rows;
  Flow flow(context, Precision::kHighest);
  {
    Step<T> on(flow, Stream::kMain, "getri");
    on.SetIdentity(n, inverse, n);
    on.Trsm(Side::kLeft, Op::kConjTrans, n, n, matrix.data, matrix.ld(), inverse, n, kUpper);
    on.Trsm(Side::kLeft, Op::kConjTrans, n, n, matrix.data, matrix.ld(), inverse, n, kUnitLower);
    on.ConjTranspose(n, n, inverse, n, matrix.data, matrix.ld());
  }
  return flow.Finish();
}

}  // namespace

template <typename T>
Status Getri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace) {
  if (InvertsWhole(matrix.tiles, matrix.rows, context.device.tuning())) {
    return InvertWhole(context, matrix, workspace);
  }
  for (const Triangle& triangle : {kUnitLower, kUpper}) {
    JAXMG_RETURN_IF_ERROR(InversionSweep<T>(context, precision, matrix, triangle, workspace).Run());
  }
  return Status::Ok();
}

template <typename T>
Status PermuteColumns(const RankContext& context, const Blocks<T>& blocks, const int32_t* pivots,
                      T* staging, int64_t size) {
  const int64_t n = blocks.rows;
  const int rank = context.comm.rank(), ranks = context.comm.size();
  LuKernels<T>& lu = context.device.template lu<T>();
  if (ranks == 1) {
    return lu.SwapColumns(Stream::kMain, Order::kBackward, n, blocks.data, n, n, pivots);
  }
  Flow flow(context);
  Step<T> on(flow, Stream::kMain, "interchange columns");
  const int64_t most = size / n;  // the number of rows that a rank receives at a time
  for (int64_t first = 0; first < n; first += most * ranks) {
    auto begin = [&](int peer) { return std::min(first + peer * most, n); };
    const int64_t height = begin(rank + 1) - begin(rank), ld = std::max<int64_t>(height, 1);
    // `mine`: the rows of this rank's columns that `peer` receives. `staged`: where this rank
    // stores its rows of `peer`'s columns.
    auto mine = [&](int peer) {
      return Block(blocks.data + begin(peer), n, begin(peer + 1) - begin(peer), blocks.width(rank));
    };
    auto staged = [&](int peer) {
      return Block(staging + blocks.begin(peer) * ld, ld, height, blocks.width(peer));
    };
    auto exchange = [&](auto from, auto to) {
      auto empty = [](const Bytes2D& block) { return block.height == 0 || block.columns == 0; };
      for (int step = 1; step < ranks; ++step) {
        const int peer = (rank + step) % ranks;
        if (!empty(from(peer))) on.Send(peer, from(peer));
      }
      if (!empty(from(rank))) on.Copy(to(rank), from(rank));
      for (int step = 1; step < ranks; ++step) {
        const int peer = (rank - step + ranks) % ranks;
        if (!empty(to(peer))) on.Recv(peer, to(peer));
      }
      on.WaitAllSent();
    };
    exchange(mine, staged);
    if (height > 0) on.SwapColumns(Order::kBackward, height, staging, ld, n, pivots);
    exchange(staged, mine);
  }
  return flow.Finish();
}

template <typename T>
GetriSpace<T>::GetriSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesToInvert(sizes, ranks), GathersToInvert(sizes, ranks)),
      precision(LuPrecision<T>(sizes.precision, sizes.n, ranks.tuning)),
      factored(TilesToFactor<T>(this->tiles, sizes.n, ranks.tuning)) {
  if (!this->works) return;
  this->ReservePanels(std::max(GetrfWorkspace<T>(factored, sizes.n, ranks.tuning),
                               GetriWorkspace(this->tiles, sizes.n, ranks.tuning)));
  this->ReserveOverflow();
  pivots = this->pieces.template Reserve<int32_t>(sizes.n);
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
Status InvertFactors(Frame<T>& frame, Precision precision, const int32_t* pivots) {
  if (frame.works()) {
    JAXMG_RETURN_IF_ERROR(Getri(frame.context(), precision, frame.matrix(), frame.panels()));
  }
  JAXMG_RETURN_IF_ERROR(frame.Untile(Region::kFull));
  if (!frame.works()) return Status::Ok();
  const Matrix<T> matrix = frame.matrix();
  const Blocks<T> blocks = {matrix.rows, matrix.tiles.columns(), matrix.tiles.block(), matrix.data};
  return PermuteColumns(frame.context(), blocks, pivots, frame.panels(),
                        GetriWorkspace(matrix.tiles, matrix.rows, frame.context().device.tuning()));
}

template <typename T>
Status GetriRoutine(const RankContext& context, const Operand<T>& operand) {
  const GetriSpace<T> space(operand.sizes(), RanksOf(context));
  Frame<T> frame(context, operand, space);
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    AnnounceWork(context.device, 3 * LuWork(operand.n, operand.n));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    int32_t* pivots = frame.works() ? frame.at(space.pivots) : nullptr;
    if (frame.works()) {
      JAXMG_RETURN_IF_ERROR(Getrf(frame.context(), space.precision, frame.matrix(space.factored),
                                  RightHandSides<T>{}, frame.panels(), pivots, outcome.info(),
                                  Determinant<T>{}));
    }
    JAXMG_RETURN_IF_ERROR(InvertFactors(frame, space.precision, pivots));
    JAXMG_RETURN_IF_ERROR(outcome.SetAndKeepNegative());
    JAXMG_RETURN_IF_ERROR(
        outcome.PoisonIfNegative(operand.n, frame.tiles().block(), frame.matrix().data));
    JAXMG_RETURN_IF_ERROR(frame.Return());
    return WaitAllSent(context.comm, Stream::kMain);
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    return frame.works() ? context.device.ReserveHandles() : Status::Ok();
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                               \
  template Status Getri(const RankContext&, Precision, const Matrix<T>&, T*);              \
  template Status PermuteColumns(const RankContext&, const Blocks<T>&, const int32_t*, T*, \
                                 int64_t);                                                 \
  template struct GetriSpace<T>;                                                           \
  template Status InvertFactors(Frame<T>&, Precision, const int32_t*);                     \
  template Status GetriRoutine(const RankContext&, const Operand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
