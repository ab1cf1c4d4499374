// Products X Y and X Y^H: a rank computes C's rows from the same rows of X, so ranks exchange Y.
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/products/parts_of_products.h"
#include "xla_ffi/engine/products/products.h"

namespace jaxmg {
namespace {

// Rows of one rank, and their location.
template <typename T>
struct Run {
  int rank;
  int64_t begin, count;
  const T* data;
};

template <typename T>
int64_t PieceRows(const Tuning& tuning, const RowBlocks<T>& y) {
  return std::min(RowsAtOnce<T>(tuning, y.n), y.block);
}

template <typename T>
int64_t Space(const Ranks& ranks, const RowBlocks<T>& y) {
  if (ranks.size == 1 || ranks.tuning.borrow_panels) return 0;
  return 2 * PieceRows(ranks.tuning, y) * y.n;
}

// Calls use(on, begin, count, rows, ld), in steps on kMain, for runs of rows that together make up
// Y.
template <typename T, typename Use>
void ForAllRows(Flow& flow, const RowBlocks<T>& y, double operations, T* workspace,
                const Use& use) {
  const int rank = flow.comm().rank(), ranks = flow.comm().size();
  const int64_t mine = y.rows(rank);
  if (flow.tuning().borrow_panels) {
    Stage stage(flow.device(), "multiply", ranks, operations);
    Step<T> on(flow, Stream::kMain, "multiply");
    if (mine > 0) on.Broadcast(rank, Block(y.data, y.ld(), y.n, mine));
    if (mine > 0) use(on, y.begin(rank), mine, y.data, y.ld());
    stage.Done(Stream::kMain, 1);
    for (int step = 1; step < ranks; ++step) {
      const int peer = (rank + step) % ranks;
      if (y.rows(peer) == 0) continue;
      const Bytes2D block = on.Borrow(peer);
      use(on, y.begin(peer), y.rows(peer), static_cast<const T*>(block.data),
          static_cast<int64_t>(block.pitch / sizeof(T)));
      on.Return(peer);
      stage.Done(Stream::kMain, step + 1);
    }
    return;
  }
  const int64_t most = PieceRows(flow.tuning(), y);
  std::vector<Run<T>> runs;
  if (mine > 0) runs.push_back({rank, y.begin(rank), mine, y.data});
  for (int step = 1; step < ranks; ++step) {
    const int peer = (rank + step) % ranks;
    ForRows(y.begin(peer), y.rows(peer), most,
            [&](int64_t begin, int64_t count) { runs.push_back({peer, begin, count, nullptr}); });
  }
  flow.Fork();
  {
    Step<T> on(flow, Stream::kCopy);
    ForRows(y.begin(rank), mine, most, [&](int64_t begin, int64_t count) {
      on.Broadcast(rank, Block(y.at(rank, begin), y.ld(), y.n, count));
    });
  }
  Stage stage(flow.device(), "multiply", static_cast<int64_t>(runs.size()), operations);
  DoubleBuffer<T>(flow, workspace, most * y.n)
      .ForEachReceived(
          static_cast<int64_t>(runs.size()),
          [&](Step<T>& on, int64_t i, T* buffer) {
            const Run<T>& run = runs[i];
            if (run.data == nullptr) on.Recv(run.rank, Block(buffer, y.ld(), y.n, run.count));
          },
          "multiply",
          [&](Step<T>& on, int64_t i, const T* buffer) {
            const Run<T>& run = runs[i];
            use(on, run.begin, run.count, run.data != nullptr ? run.data : buffer, y.ld());
          },
          &stage);
}

}  // namespace

template <typename T>
Status RowsTimesRows(const RankContext& context, const ProductTerms<T>& terms,
                     const RowBlocks<T>& x, const RowBlocks<T>& y, const RowBlocks<T>& c,
                     T* workspace, Factor factor) {
  const int rank = context.comm.rank();
  const int64_t rows = c.rows(rank),
                tile = std::max<int64_t>(context.device.tuning().usual_tile, 1);
  Flow flow(context, terms.precision);
  // A triangle's rows contribute to some columns only, in an order that differs between ranks, so
  // beta is applied before the products.
  Real<T> beta = terms.beta;
  if (factor != Factor::kGeneral || y.empty()) {
    Step<T> on(flow, Stream::kMain);
    Multiply(on, c, rank, beta);
    beta = 1;
  }
  auto add = [&](Step<T>& on, int64_t begin, int64_t count, int64_t first, int64_t end,
                 const T* rows_of_y, int64_t ld) {
    if (rows == 0 || first == end) return;
    on.Gemm(Op::kNone, Op::kNone, end - first, rows, count, terms.alpha, rows_of_y + first, ld,
            x.data + begin, x.ld(), beta, c.data + first, c.ld());
  };
  auto use = [&](Step<T>& on, int64_t begin, int64_t count, const T* rows_of_y, int64_t ld) {
    if (factor == Factor::kGeneral) {
      add(on, begin, count, 0, y.n, rows_of_y, ld);
      beta = 1;
      return;
    }
    ForRows(begin, count, tile, [&](int64_t from, int64_t piece) {
      const bool upper = factor == Factor::kUpper;
      const int64_t first = upper ? std::min(from, y.n) : 0;
      const int64_t end = upper ? y.n : std::min(from + piece, y.n);
      add(on, from, piece, first, end, rows_of_y + (from - begin) * ld, ld);
    });
  };
  const double operations = ProductWork(c.m, y.n, y.m) / (factor == Factor::kGeneral ? 1 : 2);
  if (!y.empty()) ForAllRows<T>(flow, y, operations, workspace, use);
  ClearPadding(flow, c);
  return flow.Finish();
}

template <typename T>
Status RowsTimesAdjoint(const RankContext& context, const ProductTerms<T>& terms,
                        const RowBlocks<T>& x, const RowBlocks<T>& y, const RowBlocks<T>& c,
                        T* workspace) {
  const int rank = context.comm.rank();
  const int64_t rows = c.rows(rank);
  Flow flow(context, terms.precision);
  auto use = [&](Step<T>& on, int64_t begin, int64_t count, const T* rows_of_y, int64_t ld) {
    if (rows == 0) return;
    on.Gemm(terms.adjoint, Op::kNone, count, rows, y.n, terms.alpha, rows_of_y, ld, x.data, x.ld(),
            terms.beta, c.data + begin, c.ld());
  };
  if (!y.empty()) ForAllRows<T>(flow, y, ProductWork(c.m, c.n, y.n), workspace, use);
  if (y.n == 0) {
    Step<T> on(flow, Stream::kMain);
    Multiply(on, c, rank, terms.beta);
  }
  ClearPadding(flow, c);
  return flow.Finish();
}

template <typename T>
int64_t RowsTimesRowsSpace(const Ranks& ranks, const RowBlocks<T>& y) {
  return Space(ranks, y);
}

template <typename T>
int64_t RowsTimesAdjointSpace(const Ranks& ranks, const RowBlocks<T>& y) {
  return Space(ranks, y);
}

#define JAXMG_INSTANTIATE(T)                                                                      \
  template Status RowsTimesRows(const RankContext&, const ProductTerms<T>&, const RowBlocks<T>&,  \
                                const RowBlocks<T>&, const RowBlocks<T>&, T*, Factor);            \
  template Status RowsTimesAdjoint(const RankContext&, const ProductTerms<T>&,                    \
                                   const RowBlocks<T>&, const RowBlocks<T>&, const RowBlocks<T>&, \
                                   T*);                                                           \
  template int64_t RowsTimesRowsSpace(const Ranks&, const RowBlocks<T>&);                         \
  template int64_t RowsTimesAdjointSpace(const Ranks&, const RowBlocks<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
