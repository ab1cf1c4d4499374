#include "xla_ffi/engine/cholesky/substitution.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/diagonal.h"

namespace jaxmg {
namespace {

constexpr std::array<Stream, 4> kOthers = {Stream::kPanel, Stream::kNext, Stream::kCopy,
                                           Stream::kSide};

// Columns of X, of tiles [first, end).
template <typename T>
Bytes2D Columns(const RightHandSides<T>& x, const Tiles& tiles, int64_t first, int64_t end) {
  const int64_t begin = tiles.offset(first);
  return Block(x.column(begin), x.count, x.count, tiles.offset(end) - begin);
}

// Tile k among its owner's right-hand sides.
template <typename T>
Bytes2D ShareOf(const RightHandSides<T>& x, const Tiles& tiles, int64_t k) {
  return Block(x.of_slot(tiles, tiles.slot(k)), x.count, x.count, tiles.width(k));
}

}  // namespace

// --- Diagonal tiles ------------------------------------------------------------------------------

template <typename T>
Status InvertDiagonals(const RankContext& context, const Matrix<T>& matrix,
                       const Inverses<T>& inverses) {
  const Tiles& tiles = matrix.tiles;
  const int64_t order = inverses.order, ld = matrix.ld();
  if (order == 0) return Status::Ok();
  Flow flow(context);
  flow.Fork();
  // Each is small for a device: as many at a time as there are streams beside kMain.
  size_t turn = 0;
  for (int64_t k = matrix.rank; k < tiles.nonempty(); k += tiles.ranks()) {
    for (int64_t begin = 0; begin < tiles.width(k); begin += order) {
      const int64_t n = std::min(order, tiles.width(k) - begin);
      T* inverse = inverses.workspace + static_cast<int64_t>(turn) * order * order;
      T* block = matrix.tile(k, tiles.offset(k) + begin) + begin * ld;
      Step<T> on(flow, kOthers[turn], "invert diagonal", k);
      on.Trtri(n, block, ld, inverse, n);
      on.StoreInverse(n, inverse, n, block, ld);
      turn = (turn + 1) % kOthers.size();
    }
  }
  flow.Join();
  return flow.status();
}

template <typename T>
DiagonalSolver<T>::DiagonalSolver(Flow& flow, const Matrix<T>& matrix, Sweep sweep,
                                  const Inverses<T>& inverses)
    : flow_(flow),
      matrix_(matrix),
      sweep_(sweep),
      order_(inverses.order),
      workspace_(inverses.workspace) {
  if (!inverts()) return;
  const Tiles& tiles = matrix_.tiles;
  for (int64_t k = matrix_.rank; k < tiles.nonempty(); k += tiles.ranks()) {
    const DiagonalTile<T> tile = DiagonalOf(matrix_, k);
    for (int64_t begin = 0; begin < tile.n; begin += order_) {
      blocks_.push_back(tile.Block(begin, std::min(order_, tile.n - begin)));
    }
  }
  if (sweep_ == Sweep::kBackward) std::reverse(blocks_.begin(), blocks_.end());
  Refill();
}

template <typename T>
void DiagonalSolver<T>::Refill() {
  while (ready_ < std::min(next_ + 2, blocks_.size())) Prepare();
}

template <typename T>
void DiagonalSolver<T>::Prepare() {
  const size_t j = ready_++;
  const DiagonalTile<T>& block = blocks_[j];
  T* l = Space(j);
  Step<T> on(flow_, Stream::kSide);
  on.Gives(prepared_[j % 2]);
  on.LoadInverse(block.n, sweep_ == Sweep::kBackward, block.l, block.ld, l, l + order_ * order_);
}

template <typename T>
void DiagonalSolver<T>::Solve(Step<T>& on, int64_t k, int64_t count, T* x, T* solved) {
  const DiagonalTile<T> tile = DiagonalOf(matrix_, k);
  const bool forward = sweep_ == Sweep::kForward;
  if (!inverts()) {
    return forward ? SolveForward(on, tile, count, x, solved)
                   : SolveBackward(on, tile, count, x, solved);
  }
  auto solve = [&](const DiagonalTile<T>& block, T* piece, T* target) {
    SolveBlock(on, block.n, count, piece, target);
  };
  return forward ? SolveForward(on, tile, order_, count, x, solved, solve)
                 : SolveBackward(on, tile, order_, count, x, solved, solve);
}

template <typename T>
void DiagonalSolver<T>::SolveBlock(Step<T>& on, int64_t n, int64_t count, T* x, T* solved) {
  if (ready_ == next_) Prepare();
  const size_t j = next_++;
  const T *l = Space(j), *inverse = l + order_ * order_;
  auto add_product = [&](Real<T> alpha, const T* a, const T* b, Real<T> beta, T* c) {
    on.ExactGemm(Op::kNone, Op::kConjTrans, count, n, n, alpha, a, count, b, n, beta, c, count);
  };
  Step<T> block(flow_, on.stream());
  block.Reads(prepared_[j % 2]);
  add_product(1, x, inverse, 0, solved);
  add_product(-1, solved, l, 1, x);
  add_product(1, x, inverse, 1, solved);
}

// --- The sweeps ----------------------------------------------------------------------------------
//
// A rank can't enqueue what needs a message before the message's sender has enqueued what that is
// made of, so the hosts work one after the other as the devices do. Between one message and the
// next stands only what the next one needs; everything else is enqueued behind it.

template <typename T>
Status ForwardSubstitution(const RankContext& context, const Matrix<T>& matrix,
                           const RightHandSides<T>& x, T* sums, const Inverses<T>& inverses) {
  const Tiles& tiles = matrix.tiles;
  const int64_t nrhs = x.count, ld = matrix.ld(), count = tiles.nonempty();
  const int ranks = tiles.ranks(), rank = matrix.rank;
  const int previous = (rank + ranks - 1) % ranks, next = (rank + 1) % ranks;
  if (nrhs == 0) return Status::Ok();
  // `target`'s columns of tiles [first, end) minus what tile k contributes to them.
  auto subtract = [&](Step<T>& on, int64_t k, int64_t first, int64_t end, T* target) {
    const int64_t begin = tiles.offset(first), columns = tiles.offset(end) - begin;
    on.Gemm(Op::kNone, Op::kConjTrans, nrhs, columns, tiles.width(k), -1,
            x.of_slot(tiles, tiles.slot(k)), nrhs, matrix.tile(k, begin), ld, 1,
            target + begin * nrhs, nrhs);
  };
  // By slot: its tile, solved; what that contributes to the tiles behind the window.
  std::vector<Data> solved(tiles.slots()), kept(tiles.slots());
  Flow flow(context);
  Step<T>(flow, Stream::kMain).SetZero(nrhs, tiles.columns(), sums, nrhs);
  flow.Fork();
  DiagonalSolver<T> diagonal(flow, matrix, Sweep::kForward, inverses);
  for (int64_t k = rank; k < count; k += ranks) {
    // The window that comes is tiles [k, last), complete but for this rank's columns; what goes on
    // is [k + 1, end): the tile that is solved next, and the others.
    const int64_t last = std::min(k + ranks, count), end = std::min(last + 1, count);
    const int64_t slot = tiles.slot(k);
    const bool comes = k > 0 && ranks > 1;
    Data first, others;
    {
      Step<T> on(flow, Stream::kPanel, "solve tile", k);
      on.Gives(solved[slot]);
      if (comes) on.Recv(previous, Columns(x, tiles, k, k + 1));
      diagonal.Solve(on, k, nrhs, x.column(tiles.offset(k)), x.of_slot(tiles, slot));
    }
    if (comes && k + 1 < last) {
      Step<T> on(flow, Stream::kNext);
      on.Writes(first, others);
      on.Recv(previous, Columns(x, tiles, k + 1, last));
    }
    if (k > rank && k + 1 < end) {
      const int64_t begin = tiles.offset(k + 1);
      Step<T> on(flow, Stream::kNext);
      on.Reads(kept[slot - 1]).Writes(first, others);
      on.Add(nrhs, tiles.offset(end) - begin, sums + begin * nrhs, nrhs, x.column(begin), nrhs);
    }
    if (k + 1 < count) {
      Step<T> on(flow, Stream::kPanel);
      on.Reads(solved[slot]).Writes(first);
      subtract(on, k, k + 1, k + 2, x.data);
      if (ranks > 1) on.Send(next, Columns(x, tiles, k + 1, k + 2));
    }
    if (k + 2 < end) {
      Step<T> on(flow, Stream::kNext);
      on.Reads(solved[slot]).Writes(others);
      subtract(on, k, k + 2, end, x.data);
      on.Send(next, Columns(x, tiles, k + 2, end));
    }
    if (end < count) {
      Step<T> on(flow, Stream::kMain, "substitute", k);
      on.Reads(solved[slot]).Writes(kept[slot]);
      subtract(on, k, end, count, sums);
    }
    diagonal.Refill();
  }
  return flow.Finish();
}

template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const RightHandSides<T>& x, const Inverses<T>& inverses) {
  const Tiles& tiles = matrix.tiles;
  const int64_t nrhs = x.count, ld = matrix.ld(), last = tiles.nonempty() - 1;
  if (nrhs == 0) return Status::Ok();
  auto mine = [&](int64_t k) { return tiles.owner(k) == matrix.rank; };
  // The `count` columns of L from `columns` on, of this rank's slots from `slot` on, by rows k.
  auto subtract = [&](Step<T>& on, int64_t k, int64_t slot, const T* columns, int64_t count) {
    on.Gemm(Op::kNone, Op::kNone, nrhs, count, tiles.width(k), -1, x.column(tiles.offset(k)), nrhs,
            columns + tiles.offset(k), ld, 1, x.of_slot(tiles, slot), nrhs);
  };
  // By tile, what is solved; by slot, what it is solved from.
  std::vector<Data> solved(tiles.nonempty()), local(tiles.slots());
  Flow flow(context);
  flow.Fork();
  DiagonalSolver<T> diagonal(flow, matrix, Sweep::kBackward, inverses);
  auto solve = [&](int64_t k) {
    const int64_t slot = tiles.slot(k);
    Step<T> on(flow, Stream::kPanel, "solve tile", k);
    on.Writes(local[slot]).Gives(solved[k]);
    if (k < last) {
      on.Reads(solved[k + 1]);
      subtract(on, k + 1, slot, matrix.slot(slot), tiles.width(k));
    }
    diagonal.Solve(on, k, nrhs, x.of_slot(tiles, slot), x.column(tiles.offset(k)));
    on.Broadcast(matrix.rank, Columns(x, tiles, k, k + 1));
  };
  if (last >= 0 && mine(last)) solve(last);
  for (int64_t k = last; k >= 0; --k) {
    if (!mine(k)) {
      Step<T> on(flow, Stream::kCopy);
      on.Gives(solved[k]);
      on.Recv(tiles.owner(k), Columns(x, tiles, k, k + 1));
    }
    // What is solved next comes first, the rest beside it.
    if (k > 0 && mine(k - 1)) solve(k - 1);
    const int64_t rest = tiles.slots_before(matrix.rank, std::max<int64_t>(k - 1, 0));
    Step<T> on(flow, Stream::kMain, "substitute", k);
    on.Reads(solved[k]).Gives(local, 0, rest);
    matrix.ForRuns(0, rest, [&](int64_t slot, const T* columns, int64_t count) {
      subtract(on, k, slot, columns, count);
    });
    diagonal.Refill();
  }
  return flow.Finish();
}

// --- Right-hand sides ----------------------------------------------------------------------------

template <typename T>
Status TakeLocal(const RankContext& context, const Matrix<T>& matrix, const RightHandSides<T>& x) {
  const Tiles& tiles = matrix.tiles;
  for (int64_t k = matrix.rank; k < tiles.nonempty() && x.count > 0; k += tiles.ranks()) {
    JAXMG_RETURN_IF_ERROR(
        context.device.Copy(Stream::kMain, ShareOf(x, tiles, k), Columns(x, tiles, k, k + 1)));
  }
  return Status::Ok();
}

template <typename T>
Status GatherLocal(const RankContext& context, const Matrix<T>& matrix,
                   const RightHandSides<T>& x) {
  const Tiles& tiles = matrix.tiles;
  for (int64_t k = 0; k < tiles.nonempty() && x.count > 0; ++k) {
    const Bytes2D columns = Columns(x, tiles, k, k + 1);
    if (tiles.owner(k) == matrix.rank) {
      JAXMG_RETURN_IF_ERROR(context.device.Copy(Stream::kMain, columns, ShareOf(x, tiles, k)));
    }
    JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, tiles.owner(k), columns));
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

namespace {

// x.data := the sum of all ranks' `sums`, in the order of the ranks; `sums` is used up.
template <typename T>
Status SumOverRanks(const RankContext& context, int64_t n, const RightHandSides<T>& x, T* sums) {
  Communicator& comm = context.comm;
  const int rank = comm.rank(), last = comm.size() - 1;
  const Bytes2D all = Block(x.data, x.count, x.count, n), mine = Block(sums, x.count, x.count, n);
  if (rank > 0) {
    JAXMG_RETURN_IF_ERROR(comm.Recv(Stream::kMain, rank - 1, all));
    JAXMG_RETURN_IF_ERROR(
        context.device.blas<T>().Add(Stream::kMain, x.count, n, x.data, x.count, sums, x.count));
  }
  if (rank < last) {
    JAXMG_RETURN_IF_ERROR(comm.Send(Stream::kMain, rank + 1, mine));
  } else {
    JAXMG_RETURN_IF_ERROR(context.device.Copy(Stream::kMain, all, mine));
  }
  JAXMG_RETURN_IF_ERROR(Broadcast(comm, Stream::kMain, last, all));
  return WaitAllSent(comm, Stream::kMain);
}

}  // namespace

template <typename T>
Status Multiply(const RankContext& context, const Matrix<T>& matrix, Op op,
                const RightHandSides<T>& x, T* sums) {
  const Tiles& tiles = matrix.tiles;
  Device& device = context.device;
  Blas<T>& blas = device.blas<T>();
  const int64_t nrhs = x.count, ld = matrix.ld(), n = tiles.columns();
  const bool by_rows = op == Op::kNone;  // X L: a tile column makes a tile of the result
  if (nrhs == 0) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(TakeLocal(context, matrix, x));
  if (!by_rows) JAXMG_RETURN_IF_ERROR(blas.SetZero(Stream::kMain, nrhs, n, sums, nrhs));
  for (int64_t k = matrix.rank; k < tiles.nonempty(); k += tiles.ranks()) {
    const Range range(device, Stream::kMain, "multiply", k);
    const int64_t width = tiles.width(k), begin = tiles.offset(k), end = tiles.offset(k + 1);
    T* local = x.of_slot(tiles, tiles.slot(k));
    JAXMG_RETURN_IF_ERROR(blas.Trmm(Stream::kMain, Side::kRight, op, nrhs, width,
                                    matrix.tile(k, begin), ld, local, nrhs));
    if (by_rows) {
      JAXMG_RETURN_IF_ERROR(blas.Gemm(Stream::kMain, Op::kNone, op, nrhs, width, n - end, 1,
                                      x.column(end), nrhs, matrix.tile(k, end), ld, 1, local,
                                      nrhs));
    } else {
      JAXMG_RETURN_IF_ERROR(
          blas.Add(Stream::kMain, nrhs, width, local, nrhs, sums + begin * nrhs, nrhs));
      JAXMG_RETURN_IF_ERROR(blas.Gemm(Stream::kMain, Op::kNone, op, nrhs, n - end, width, 1,
                                      x.column(begin), nrhs, matrix.tile(k, end), ld, 1,
                                      sums + end * nrhs, nrhs));
    }
  }
  return by_rows ? GatherLocal(context, matrix, x) : SumOverRanks(context, n, x, sums);
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template Status InvertDiagonals(const RankContext&, const Matrix<T>&, const Inverses<T>&);       \
  template class DiagonalSolver<T>;                                                                \
  template Status ForwardSubstitution(const RankContext&, const Matrix<T>&,                        \
                                      const RightHandSides<T>&, T*, const Inverses<T>&);           \
  template Status BackSubstitution(const RankContext&, const Matrix<T>&, const RightHandSides<T>&, \
                                   const Inverses<T>&);                                            \
  template Status TakeLocal(const RankContext&, const Matrix<T>&, const RightHandSides<T>&);       \
  template Status GatherLocal(const RankContext&, const Matrix<T>&, const RightHandSides<T>&);     \
  template Status Multiply(const RankContext&, const Matrix<T>&, Op, const RightHandSides<T>&, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
