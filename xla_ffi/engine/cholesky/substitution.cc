#include "xla_ffi/engine/cholesky/substitution.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/diagonal.h"

namespace jaxmg {
namespace {

constexpr std::array<Stream, 4> kOthers = {Stream::kPanel, Stream::kNext, Stream::kCopy,
                                           Stream::kSide};

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
  // A block is too small to fill a device, so blocks are inverted on all streams except kMain.
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

template <typename T>
Status ForwardSubstitution(const RankContext& context, const Matrix<T>& matrix,
                           const RightHandSides<T>& x, T* sums, const Inverses<T>& inverses) {
  if (x.count == 0) return Status::Ok();
  Flow flow(context);
  ClearSums(flow, matrix.tiles, x, sums);
  flow.Fork();
  DiagonalSolver<T> diagonal(flow, matrix, Sweep::kForward, inverses);
  return SweepByColumns(flow, matrix, Op::kConjTrans, /*ascends=*/true, x, sums, diagonal);
}

template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const RightHandSides<T>& x, const Inverses<T>& inverses) {
  if (x.count == 0) return Status::Ok();
  Flow flow(context);
  if (matrix.IsOneTile() && x.in_place()) {
    const DiagonalTile<T> tile = DiagonalOf(matrix, 0);
    Step<T>(flow, Stream::kMain, "solve")
        .Trsm(Side::kRight, Op::kNone, x.count, tile.n, tile.l, tile.ld, x.data, x.count);
    return flow.Finish();
  }
  flow.Fork();
  DiagonalSolver<T> diagonal(flow, matrix, Sweep::kBackward, inverses);
  return SweepByRows(flow, matrix, /*ascends=*/false, x, diagonal);
}

// --- Products ------------------------------------------------------------------------------------

namespace {

// x.data := the sum of all ranks' `sums`, in rank order. Overwrites `sums`.
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
  const bool by_rows = op == Op::kNone;  // X L: each tile column yields a tile of the result
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
  template Status Multiply(const RankContext&, const Matrix<T>&, Op, const RightHandSides<T>&, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
