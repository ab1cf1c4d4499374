#include "xla_ffi/engine/core/root_exchange.h"

#include <algorithm>
#include <cstring>

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {
namespace {

constexpr Stream kMain = Stream::kMain;

int64_t BeginOf(const RootPiece& piece, int rank) {
  return piece.part == piece.whole ? 0 : std::min(rank * piece.part, piece.whole);
}

int64_t BytesOf(const RootPiece& piece, int rank) {
  return std::min(piece.part, piece.whole - BeginOf(piece, rank));
}

Bytes2D At(const void* data, int64_t begin, int64_t bytes) {
  return Block(static_cast<const char*>(data) + begin, bytes, bytes, 1);
}

// Calls copy(rank, a part's place in the whole array, a part) for those of all ranks.
template <typename F>
Status ForAllParts(const RootPiece& piece, int ranks, const F& copy) {
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t bytes = BytesOf(piece, rank);
    if (bytes > 0) JAXMG_RETURN_IF_ERROR(copy(rank, BeginOf(piece, rank), bytes));
  }
  return Status::Ok();
}

Status Gather(const RankContext& context, const RootPiece& piece) {
  const int mine = context.comm.rank();
  if (mine != kRoot) {
    const int64_t bytes = BytesOf(piece, mine);
    if (bytes == 0) return Status::Ok();
    return context.comm.Send(kMain, kRoot, At(piece.source, 0, bytes));
  }
  return ForAllParts(piece, context.comm.size(),
                     [&](int rank, int64_t begin, int64_t bytes) -> Status {
                       const Bytes2D place = At(piece.target, begin, bytes);
                       if (rank != kRoot) return context.comm.Recv(kMain, rank, place);
                       return context.device.Copy(kMain, place, At(piece.source, 0, bytes));
                     });
}

Status Scatter(const RankContext& context, const RootPiece& piece) {
  const int mine = context.comm.rank();
  if (mine != kRoot) {
    const int64_t bytes = BytesOf(piece, mine);
    if (bytes == 0) return Status::Ok();
    return context.comm.Recv(kMain, kRoot, At(piece.target, 0, bytes));
  }
  return ForAllParts(piece, context.comm.size(),
                     [&](int rank, int64_t begin, int64_t bytes) -> Status {
                       const Bytes2D place = At(piece.source, begin, bytes);
                       if (rank != kRoot) return context.comm.Send(kMain, rank, place);
                       return context.device.Copy(kMain, At(piece.target, 0, bytes), place);
                     });
}

Status ExchangeWith(const RankContext& alone, const std::vector<RootExchange>& exchanges,
                    int number) {
  const RootExchange& root = exchanges[number];
  for (size_t i = 0; i < root.pieces.size(); ++i) {
    const RootPiece& whole = root.pieces[i];
    JAXMG_RETURN_IF_ERROR(ForAllParts(
        whole, static_cast<int>(exchanges.size()), [&](int rank, int64_t begin, int64_t bytes) {
          const RootPiece& part = exchanges[rank].pieces[i];
          return root.gathers ? alone.device.Copy(kMain, At(whole.target, begin, bytes),
                                                  At(part.source, 0, bytes))
                              : alone.device.Copy(kMain, At(part.target, 0, bytes),
                                                  At(whole.source, begin, bytes));
        }));
  }
  return Status::Ok();
}

}  // namespace

Status RootExchangeRoutine(const RankContext& context, const RootExchange& exchange) {
  auto work = [&]() -> Status {
    for (const RootPiece& piece : exchange.pieces) {
      JAXMG_RETURN_IF_ERROR(exchange.gathers ? Gather(context, piece) : Scatter(context, piece));
    }
    return WaitAllSent(context.comm, kMain);
  };
  return RunOnAllRanks(context.comm, [] { return Status::Ok(); }, work);
}

RootExchange LeaveSources(const RootExchange& exchange) {
  *exchange.is_root = 0;
  int64_t bytes = 0;
  for (const RootPiece& piece : exchange.pieces) bytes += piece.part;
  const std::shared_ptr<char[]> memory(new char[bytes]);
  RootExchange own = exchange;
  char* next = memory.get();
  for (RootPiece& piece : own.pieces) {
    if (piece.part > 0) std::memcpy(next, piece.source, piece.part);
    piece.source = next;
    next += piece.part;
  }
  own.memory = memory;
  return own;
}

Status RootExchangeForAll(const RankContext& alone, const std::vector<RootExchange>& exchanges) {
  int root = kRoot;
  for (size_t rank = 0; rank < exchanges.size(); ++rank) {
    const int32_t* is_root = exchanges[rank].is_root;
    if (is_root != nullptr && *is_root != 0) root = static_cast<int>(rank);
  }
  return ExchangeWith(alone, exchanges, root);
}

Status RootGatherOnLast(const RankContext& alone, const std::vector<RootExchange>& exchanges,
                        int last) {
  JAXMG_RETURN_IF_ERROR(ExchangeWith(alone, exchanges, last));
  *exchanges[last].is_root = 1;
  return Status::Ok();
}

}  // namespace jaxmg
