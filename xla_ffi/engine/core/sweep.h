// Sweep: substitution with one triangle R of a distributed matrix, for few right-hand sides in row
// form (right_hand_sides.h): X R = B or X op(R) = B, tile by tile, R staying where it is. With L
// and with U, forward and back: what Cholesky factors and LU factors are solved with.
//
// One tile after the other is solved for, so the time of each step counts, not its operations. A
// rank can't enqueue what needs a message before the message's sender has enqueued what that is
// made of, so the hosts work one after the other as the devices do. Between one message and the
// next stands only what the next one needs; everything else is enqueued behind it.
//
// nrhs n^2 / 2 multiply-adds over all ranks.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_SWEEP_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_SWEEP_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/right_hand_sides.h"

namespace jaxmg {

// Solves with the diagonal tiles of one rank in the order of a sweep.
template <typename T>
class TileSolver {
 public:
  virtual ~TileSolver() = default;
  // solved := x op(R_kk)^-1. x is count x width, used up; both have leading dimension `count`. They
  // are the same where right-hand sides are in place.
  virtual void Solve(Step<T>& on, int64_t k, int64_t count, T* x, T* solved) = 0;
  // Prepares for the next tiles: once what others wait for is on its way.
  virtual void Refill() {}
};

// By one TRSM each.
template <typename T>
class TrsmSolver : public TileSolver<T> {
 public:
  TrsmSolver(const Matrix<T>& matrix, const Triangle& triangle, Op op)
      : matrix_(matrix), triangle_(triangle), op_(op) {}

  void Solve(Step<T>& on, int64_t k, int64_t count, T* x, T* solved) override {
    const int64_t width = matrix_.tiles.width(k);
    on.Trsm(Side::kRight, op_, count, width, matrix_.tile(k, matrix_.tiles.offset(k)), matrix_.ld(),
            x, count, triangle_);
    if (solved != x) on.Copy(Block(solved, count, count, width), Block(x, count, count, width));
  }

 private:
  const Matrix<T>& matrix_;
  const Triangle triangle_;
  const Op op_;
};

// The order of tiles: from the first to the last, or the other way round. Step s is of tile k.
class SweepOrder {
 public:
  SweepOrder(const Tiles& tiles, bool ascends)
      : tiles_(tiles), count_(tiles.nonempty()), ascends_(ascends) {}

  bool ascends() const { return ascends_; }
  int64_t count() const { return count_; }
  int64_t tile(int64_t step) const { return ascends_ ? step : count_ - 1 - step; }
  // Tiles of steps [first, end), end > first, are [begin(first, end), begin + end - first).
  int64_t first_tile(int64_t first, int64_t end) const { return ascends_ ? first : count_ - end; }
  // The first step that is this rank's.
  int64_t first_of(int rank) const {
    if (ascends_) return rank;
    const int64_t last = (count_ - 1) % tiles_.ranks();  // owns step 0
    return (last - rank + tiles_.ranks()) % tiles_.ranks();
  }
  // The rank of the next step, and of the one before.
  int next(int rank) const { return (rank + (ascends_ ? 1 : tiles_.ranks() - 1)) % tiles_.ranks(); }
  int previous(int rank) const {
    return (rank + (ascends_ ? tiles_.ranks() - 1 : 1)) % tiles_.ranks();
  }

 private:
  const Tiles& tiles_;
  const int64_t count_;
  const bool ascends_;
};

// X R = B: x.local holds this rank's columns of B and is used up, x.data becomes X on every rank.
// R upper is swept from the first tile column to the last, lower the other way round. The owner of
// a tile column solves with the diagonal tile and sends the result to all, and every rank subtracts
// its product with one row of tiles of R from what it holds. `flow` is forked; enqueued on all
// streams, kMain last.
template <typename T>
Status SweepByRows(Flow& flow, const Matrix<T>& matrix, bool ascends, const RightHandSides<T>& x,
                   TileSolver<T>& diagonal) {
  const Tiles& tiles = matrix.tiles;
  const SweepOrder order(tiles, ascends);
  const int64_t nrhs = x.count, ld = matrix.ld();
  auto mine = [&](int64_t k) { return tiles.owner(k) == matrix.rank; };
  // The `count` columns of R from `columns` on, of this rank's slots from `slot` on, by rows k.
  auto subtract = [&](Step<T>& on, int64_t k, int64_t slot, const T* columns, int64_t count) {
    on.ExactGemm(Op::kNone, Op::kNone, nrhs, count, tiles.width(k), -1, x.column(tiles.offset(k)),
                 nrhs, columns + tiles.offset(k), ld, 1, x.of_slot(tiles, slot), nrhs);
  };
  // By tile, what is solved; by slot, what it is solved from.
  std::vector<Data> solved(tiles.nonempty()), local(tiles.slots());
  auto solve = [&](int64_t step) {
    const int64_t k = order.tile(step), slot = tiles.slot(k);
    Step<T> on(flow, Stream::kPanel, "solve tile", k);
    on.Writes(local[slot]).Gives(solved[k]);
    if (step > 0) {
      const int64_t before = order.tile(step - 1);
      on.Reads(solved[before]);
      subtract(on, before, slot, matrix.slot(slot), tiles.width(k));
    }
    diagonal.Solve(on, k, nrhs, x.of_slot(tiles, slot), x.column(tiles.offset(k)));
    on.Broadcast(matrix.rank, x.OfTiles(tiles, k, k + 1));
  };
  if (order.count() > 0 && mine(order.tile(0))) solve(0);
  for (int64_t step = 0; step < order.count(); ++step) {
    const int64_t k = order.tile(step);
    if (!mine(k)) {
      Step<T> on(flow, Stream::kCopy);
      on.Gives(solved[k]);
      on.Recv(tiles.owner(k), x.OfTiles(tiles, k, k + 1));
    }
    // What is solved next comes first, the rest beside it.
    const bool next = step + 1 < order.count() && mine(order.tile(step + 1));
    if (next) solve(step + 1);
    int64_t begin = 0, end = tiles.slots_before(matrix.rank, tiles.nonempty());
    if (ascends) {
      begin = tiles.slots_before(matrix.rank, k + 1) + (next ? 1 : 0);
    } else {
      end = tiles.slots_before(matrix.rank, k) - (next ? 1 : 0);
    }
    Step<T> on(flow, Stream::kMain, "substitute", k);
    on.Reads(solved[k]).Gives(local, begin, end);
    matrix.ForRuns(begin, end, [&](int64_t slot, const T* columns, int64_t count) {
      subtract(on, k, slot, columns, count);
    });
    diagonal.Refill();
  }
  return flow.Finish();
}

// X op(R) = B, op a transposition: x.data holds B on every rank and is used up; x.local becomes
// this rank's columns of X. R lower is swept from the first tile column to the last, upper the
// other way round. `sums`, nrhs x n, is workspace that is zero. A window of the next P tiles passes
// from owner to owner, and each adds what its columns contribute to those; what they contribute to
// tiles behind the window it keeps in `sums` until the window gets there. `flow` is forked;
// enqueued on all streams, kMain last.
template <typename T>
Status SweepByColumns(Flow& flow, const Matrix<T>& matrix, Op op, bool ascends,
                      const RightHandSides<T>& x, T* sums, TileSolver<T>& diagonal) {
  const Tiles& tiles = matrix.tiles;
  const SweepOrder order(tiles, ascends);
  const int64_t nrhs = x.count, ld = matrix.ld(), count = order.count();
  const int ranks = tiles.ranks(), rank = matrix.rank;
  const int previous = order.previous(rank), next = order.next(rank);
  // Where the columns of steps [first, end) begin, and how many there are; those of X.
  auto offset = [&](int64_t first, int64_t end) {
    return tiles.offset(order.first_tile(first, end));
  };
  auto columns = [&](int64_t first, int64_t end) {
    const int64_t tile = order.first_tile(first, end);
    return tiles.offset(tile + end - first) - tiles.offset(tile);
  };
  auto window = [&](int64_t first, int64_t end) {
    const int64_t tile = order.first_tile(first, end);
    return x.OfTiles(tiles, tile, tile + end - first);
  };
  // `target`'s columns of steps [first, end) minus what step s contributes to them.
  auto subtract = [&](Step<T>& on, int64_t s, int64_t first, int64_t end, T* target) {
    const int64_t k = order.tile(s), begin = offset(first, end);
    on.ExactGemm(Op::kNone, op, nrhs, columns(first, end), tiles.width(k), -1,
                 x.of_slot(tiles, tiles.slot(k)), nrhs, matrix.tile(k, begin), ld, 1,
                 target + begin * nrhs, nrhs);
  };
  // By slot: its tile, solved; what that contributes to the tiles behind the window.
  std::vector<Data> solved(tiles.slots()), kept(tiles.slots());
  for (int64_t s = order.first_of(rank), before = -1; s < count; before = s, s += ranks) {
    // The window that comes is steps [s, last), complete but for this rank's columns; what goes on
    // is [s + 1, end): the tile that is solved next, and the others.
    const int64_t last = std::min(s + ranks, count), end = std::min(last + 1, count);
    const int64_t k = order.tile(s), slot = tiles.slot(k);
    const bool comes = s > 0 && ranks > 1;
    Data first, others;
    {
      Step<T> on(flow, Stream::kPanel, "solve tile", k);
      on.Gives(solved[slot]);
      if (comes) on.Recv(previous, window(s, s + 1));
      diagonal.Solve(on, k, nrhs, x.column(tiles.offset(k)), x.of_slot(tiles, slot));
    }
    if (comes && s + 1 < last) {
      Step<T> on(flow, Stream::kNext);
      on.Writes(first, others);
      on.Recv(previous, window(s + 1, last));
    }
    if (before >= 0 && s + 1 < end) {
      const int64_t begin = offset(s + 1, end);
      Step<T> on(flow, Stream::kNext);
      on.Reads(kept[tiles.slot(order.tile(before))]).Writes(first, others);
      on.Add(nrhs, columns(s + 1, end), sums + begin * nrhs, nrhs, x.column(begin), nrhs);
    }
    if (s + 1 < count) {
      Step<T> on(flow, Stream::kPanel);
      on.Reads(solved[slot]).Writes(first);
      subtract(on, s, s + 1, s + 2, x.data);
      if (ranks > 1) on.Send(next, window(s + 1, s + 2));
    }
    if (s + 2 < end) {
      Step<T> on(flow, Stream::kNext);
      on.Reads(solved[slot]).Writes(others);
      subtract(on, s, s + 2, end, x.data);
      on.Send(next, window(s + 2, end));
    }
    if (end < count) {
      Step<T> on(flow, Stream::kMain, "substitute", k);
      on.Reads(solved[slot]).Writes(kept[slot]);
      subtract(on, s, end, count, sums);
    }
    diagonal.Refill();
  }
  return flow.Finish();
}

// `sums` for SweepByColumns := 0, before the flow is forked.
template <typename T>
void ClearSums(Flow& flow, const Tiles& tiles, const RightHandSides<T>& x, T* sums) {
  Step<T>(flow, Stream::kMain).SetZero(x.count, tiles.columns(), sums, x.count);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_SWEEP_H_
