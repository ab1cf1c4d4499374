// Sweep: substitution with one triangle R of a distributed matrix, for few right-hand sides in row
// form (right_hand_sides.h): X R = B or X op(R) = B, tile by tile, without moving R. Cholesky and
// LU factors solve with such sweeps, forward and backward, with L and U.
//
// The tiles are solved one after the other, so latency dominates, not the number of operations. A
// rank can enqueue work that needs a message only after the sender has enqueued the work that
// produces it. So the hosts work one after the other, as the devices do. Between one message and
// the next a rank does only the work that the next message needs; it enqueues everything else after
// that.
//
// nrhs n^2 / 2 multiply-adds over all ranks.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_SWEEP_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_SWEEP_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/right_hand_sides.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {

// Solves with the diagonal tiles of one rank in the order of a sweep.
template <typename T>
class TileSolver {
 public:
  virtual ~TileSolver() = default;
  // solved := x op(R_kk)^-1. x is count x width and is overwritten; both have leading dimension
  // `count`. x and `solved` are the same memory if right-hand sides are in place.
  virtual void Solve(Step<T>& on, int64_t k, int64_t count, T* x, T* solved) = 0;
  // Called after the sends that other ranks wait for; prepares the next tiles.
  virtual void Refill() {}
};

// Solves each tile by one TRSM.
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

// The order of tiles: ascending or descending. Step s solves tile(s).
class SweepOrder {
 public:
  SweepOrder(const Tiles& tiles, bool ascends)
      : tiles_(tiles), count_(tiles.nonempty()), ascends_(ascends) {}

  bool ascends() const { return ascends_; }
  int64_t count() const { return count_; }
  int64_t tile(int64_t step) const { return ascends_ ? step : count_ - 1 - step; }
  // The tiles of steps [first, end), end > first, begin with tile first_tile(first, end).
  int64_t first_tile(int64_t first, int64_t end) const { return ascends_ ? first : count_ - end; }
  // This rank's first step.
  int64_t first_of(int rank) const {
    if (ascends_) return rank;
    const int64_t last = (count_ - 1) % tiles_.ranks();  // owns step 0
    return (last - rank + tiles_.ranks()) % tiles_.ranks();
  }
  // The owners of the next and of the previous step.
  int next(int rank) const { return (rank + (ascends_ ? 1 : tiles_.ranks() - 1)) % tiles_.ranks(); }
  int previous(int rank) const {
    return (rank + (ascends_ ? tiles_.ranks() - 1 : 1)) % tiles_.ranks();
  }

 private:
  const Tiles& tiles_;
  const int64_t count_;
  const bool ascends_;
};

// X R = B: x.local holds this rank's columns of B and is overwritten; x.data becomes X on every
// rank. The sweep ascends if R is upper and descends if R is lower triangular. The owner of a tile
// column solves with the diagonal tile and sends the result to all. Every rank then multiplies the
// result by one row of tiles of R and subtracts the product from its x.local. `flow` must be
// forked; enqueued on all streams, kMain last.
template <typename T>
Status SweepByRows(Flow& flow, const Matrix<T>& matrix, bool ascends, const RightHandSides<T>& x,
                   TileSolver<T>& diagonal) {
  const Tiles& tiles = matrix.tiles;
  const SweepOrder order(tiles, ascends);
  const int64_t nrhs = x.count, ld = matrix.ld();
  auto mine = [&](int64_t k) { return tiles.owner(k) == matrix.rank; };
  // Subtracts tile k of X times `count` columns of R, which begin at `columns`, from x.local, from
  // this rank's slot `slot` on.
  auto subtract = [&](Step<T>& on, int64_t k, int64_t slot, const T* columns, int64_t count) {
    on.ExactGemm(Op::kNone, Op::kNone, nrhs, count, tiles.width(k), -1, x.column(tiles.offset(k)),
                 nrhs, columns + tiles.offset(k), ld, 1, x.of_slot(tiles, slot), nrhs);
  };
  // `solved`: the solution, by tile; `local`: the right-hand sides, by slot.
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
  Stage stage(flow.device(), "substitute", order.count(), SolveWork(matrix.rows, nrhs), kNarrows);
  if (order.count() > 0 && mine(order.tile(0))) solve(0);
  for (int64_t step = 0; step < order.count(); ++step) {
    const int64_t k = order.tile(step);
    if (!mine(k)) {
      Step<T> on(flow, Stream::kCopy);
      on.Gives(solved[k]);
      on.Recv(tiles.owner(k), x.OfTiles(tiles, k, k + 1));
    }
    // The next tile comes first. The other updates run concurrently.
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
    stage.Done(Stream::kMain, step + 1);
    diagonal.Refill();
  }
  return flow.Finish();
}

// X op(R) = B, op a transposition: x.data holds B on every rank and is overwritten; x.local becomes
// this rank's columns of X. The sweep ascends if R is lower and descends if R is upper triangular.
// `sums`, nrhs x n, is workspace and must be zero. A window of the next P tiles passes from owner
// to owner. Each owner adds the contributions of its columns to these tiles. It keeps contributions
// to tiles after the window in `sums` until the window reaches them. `flow` must be forked;
// enqueued on all streams, kMain last.
template <typename T>
Status SweepByColumns(Flow& flow, const Matrix<T>& matrix, Op op, bool ascends,
                      const RightHandSides<T>& x, T* sums, TileSolver<T>& diagonal) {
  const Tiles& tiles = matrix.tiles;
  const SweepOrder order(tiles, ascends);
  const int64_t nrhs = x.count, ld = matrix.ld(), count = order.count();
  const int ranks = tiles.ranks(), rank = matrix.rank;
  const int previous = order.previous(rank), next = order.next(rank);
  // The first column of steps [first, end), their number of columns, and these columns of X.
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
  // Subtracts the contribution of step s from `target`'s columns of steps [first, end).
  auto subtract = [&](Step<T>& on, int64_t s, int64_t first, int64_t end, T* target) {
    const int64_t k = order.tile(s), begin = offset(first, end);
    on.ExactGemm(Op::kNone, op, nrhs, columns(first, end), tiles.width(k), -1,
                 x.of_slot(tiles, tiles.slot(k)), nrhs, matrix.tile(k, begin), ld, 1,
                 target + begin * nrhs, nrhs);
  };
  // By slot: its solved tile, and that tile's contribution to the tiles after the window.
  std::vector<Data> solved(tiles.slots()), kept(tiles.slots());
  Stage stage(flow.device(), "substitute", count, SolveWork(matrix.rows, nrhs), kNarrows);
  for (int64_t s = order.first_of(rank), before = -1; s < count; before = s, s += ranks) {
    // The received window has steps [s, last) and lacks only this rank's contributions. The window
    // to send has steps [s + 1, end): the next tile to solve, and the others.
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
      stage.Done(Stream::kMain, s + 1);
    }
    diagonal.Refill();
  }
  return flow.Finish();
}

// Zeros `sums` for SweepByColumns. Call before the flow is forked.
template <typename T>
void ClearSums(Flow& flow, const Tiles& tiles, const RightHandSides<T>& x, T* sums) {
  Step<T>(flow, Stream::kMain).SetZero(x.count, tiles.columns(), sums, x.count);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_SWEEP_H_
