#include <complex>
#include <vector>

#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/products/parts_of_products.h"
#include "xla_ffi/engine/products/products.h"

namespace jaxmg {
namespace {

// Returns the number of rows of X to send to a rank at once.
template <typename T>
int64_t PieceRows(const Tuning& tuning, const RowBlocks<T>& x, const RowBlocks<T>& c) {
  const int64_t bytes = std::max<int64_t>(c.block * static_cast<int64_t>(sizeof(T)), 1);
  return std::min(std::max<int64_t>(tuning.exchange_bytes / bytes, 1), x.block);
}

}  // namespace

template <typename T>
void Adjoints(Flow& flow, Op op, const RowBlocks<T>& from, const RowBlocks<T>& to,
              const Rectangles& rectangles, T* workspace, int64_t room) {
  const int rank = flow.comm().rank(), ranks = flow.comm().size();
  auto store = [&](Step<T>& on, const Rectangle& r, const T* data, int64_t ld) {
    T* target = to.at(rank, r.column, r.row);
    on.ConjTranspose(r.columns, r.rows, data, ld, target, to.ld());
    if (op == Op::kTrans && kIsComplex<T>) on.Conjugate(r.rows, r.columns, target, to.ld());
  };
  auto send = [&](Step<T>& on) {
    for (const Rectangle& r : rectangles[rank]) {
      const int peer = to.owner(r.column);
      const T* data = from.at(rank, r.row, r.column);
      if (peer != rank) on.Send(peer, Block(data, from.ld(), r.columns, r.rows));
    }
  };
  struct Incoming {
    int rank;
    Rectangle rectangle;
  };
  std::vector<Incoming> incoming;
  for (int step = 0; step < ranks; ++step) {
    const int peer = (rank + step) % ranks;
    for (const Rectangle& r : rectangles[peer]) {
      if (to.owner(r.column) == rank) incoming.push_back({peer, r});
    }
  }
  if (flow.tuning().borrow_panels || ranks == 1) {
    Step<T> on(flow, Stream::kMain, "transpose");
    send(on);
    for (const auto& [peer, r] : incoming) {
      if (peer == rank) {
        store(on, r, from.at(rank, r.row, r.column), from.ld());
        continue;
      }
      const Bytes2D block = on.Borrow(peer);
      store(on, r, static_cast<const T*>(block.data),
            static_cast<int64_t>(block.pitch / sizeof(T)));
      on.Return(peer);
    }
    return;
  }
  flow.Fork();
  {
    Step<T> on(flow, Stream::kCopy);
    send(on);
  }
  DoubleBuffer<T>(flow, workspace, room)
      .ForEachReceived(
          static_cast<int64_t>(incoming.size()),
          [&](Step<T>& on, int64_t i, T* buffer) {
            const auto& [peer, r] = incoming[i];
            if (peer != rank) on.Recv(peer, Block(buffer, r.columns, r.columns, r.rows));
          },
          "transpose",
          [&](Step<T>& on, int64_t i, const T* buffer) {
            const auto& [peer, r] = incoming[i];
            if (peer != rank) return store(on, r, buffer, r.columns);
            store(on, r, from.at(rank, r.row, r.column), from.ld());
          });
}

template <typename T>
Status AdjointOf(const RankContext& context, Op op, const RowBlocks<T>& x, const RowBlocks<T>& c,
                 T* workspace) {
  const int ranks = context.comm.size();
  const int64_t most = PieceRows(context.device.tuning(), x, c);
  Flow flow(context);
  Rectangles rectangles(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (c.rows(peer) == 0) continue;
      ForRows(x.begin(rank), x.rows(rank), peer == rank ? x.block : most,
              [&](int64_t begin, int64_t count) {
                rectangles[rank].push_back({begin, count, c.begin(peer), c.rows(peer)});
              });
    }
  }
  Adjoints(flow, op, x, c, rectangles, workspace, most * c.block);
  ClearPadding(flow, c);
  return flow.Finish();
}

template <typename T>
int64_t AdjointOfSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c) {
  if (ranks.size == 1 || ranks.tuning.borrow_panels) return 0;
  return 2 * PieceRows(ranks.tuning, x, c) * c.block;
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template void Adjoints(Flow&, Op, const RowBlocks<T>&, const RowBlocks<T>&, const Rectangles&,   \
                         T*, int64_t);                                                             \
  template Status AdjointOf(const RankContext&, Op, const RowBlocks<T>&, const RowBlocks<T>&, T*); \
  template int64_t AdjointOfSpace(const Ranks&, const RowBlocks<T>&, const RowBlocks<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
