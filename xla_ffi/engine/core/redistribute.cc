#include "xla_ffi/engine/core/redistribute.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/layout/redistribution.h"

namespace jaxmg {
namespace {

// Exchanges between ranks are staged on kPanel and received on kCopy, so that one chunk is staged
// while the previous one is in transfer. Moves within the rank run concurrently on kNext. Towards
// tiles, each cycle of moves starts when the exchanges of its slots have ended; on the way back,
// each exchange starts when the moves of its slot have ended.
template <typename T>
class Redistribution {
 public:
  Redistribution(const RankContext& context, const Matrix<T>& matrix, Region region, T* staging)
      : flow_(context),
        matrix_(matrix),
        region_(region),
        staging_(staging),
        slot_(1 + matrix.tiles.slots()) {
    const int64_t width = matrix.tiles.width();
    const int64_t column_bytes = std::max<int64_t>(matrix.rows, 1) * sizeof(T);
    const int64_t wanted = flow_.tuning().exchange_bytes / column_bytes;
    // Exchanges and moves use half of the staging tile each, unless it is too narrow to be shared.
    separate_ = width >= 4;
    chunk_ = std::clamp<int64_t>(wanted, 1, separate_ ? width / 4 : (width + 1) / 2);
    chunks_.resize(std::min<int64_t>((separate_ ? width / 2 : width) / chunk_, kMostChunks));
    const int64_t staged = separate_ ? static_cast<int64_t>(chunks_.size()) * chunk_ : 0;
    move_staging_ = staging + staged * matrix.rows;
    move_columns_ = width - staged;
  }

  Status ToCyclic(const RedistributionPlan& plan) {
    MoveLastTile(/*to_overflow=*/true);
    flow_.Fork();
    for (const TileExchange& exchange : plan.exchanges) {
      Exchange(exchange);
      Step<T>(flow_, Stream::kCopy).Gives(Slot(exchange.slot));
    }
    if (!separate_) {
      // Moves use the staging memory that other ranks may still read.
      Step<T> on(flow_, Stream::kNext);
      on.Follows(Stream::kCopy);
      on.WaitAllSent();
    }
    for (const MoveCycle& cycle : plan.cycles) {
      for (const TileMove& move : cycle) Step<T>(flow_, Stream::kNext).Reads(Slot(move.source));
      MoveTiles(cycle);
    }
    return flow_.Finish();
  }

  Status ToContiguous(const RedistributionPlan& plan) {
    flow_.Fork();
    for (const MoveCycle& cycle : plan.cycles) {
      MoveTiles(cycle);
      for (const TileMove& move : cycle) Step<T>(flow_, Stream::kNext).Gives(Slot(move.source));
    }
    if (!separate_) Step<T>(flow_, Stream::kPanel).Follows(Stream::kNext);
    for (const TileExchange& exchange : plan.exchanges) Exchange(exchange);
    JAXMG_RETURN_IF_ERROR(flow_.Finish());
    MoveLastTile(/*to_overflow=*/false);
    return flow_.status();
  }

 private:
  static constexpr int64_t kMostChunks = 4;

  // A chunk of the staging tile, and the last message sent from it.
  struct Chunk {
    int peer = -1;
    int64_t message = 0;
  };

  // The content of a slot, on which the later phase (moves or exchanges) depends.
  Data& Slot(int64_t slot) { return slot_[slot - TileMove::kStaging]; }

  // Moves this rank's last tile between its block and the overflow tile.
  void MoveLastTile(bool to_overflow) {
    if (!matrix_.tiles.has_overflow()) return;
    const int64_t last = matrix_.tiles.slots() - 1;
    const int64_t tile = matrix_.rank * matrix_.tiles.slots() + last;
    T* in_block = matrix_.data + last * matrix_.tiles.width() * matrix_.ld() + FirstRow(tile);
    const int64_t rows = matrix_.rows - FirstRow(tile), columns = matrix_.tiles.width(tile);
    const Bytes2D block = Block(in_block, matrix_.ld(), rows, columns);
    const Bytes2D overflow = Piece(last, tile, 0, columns);
    Step<T> on(flow_, Stream::kMain);
    to_overflow ? on.CopyWithin(overflow, block) : on.CopyWithin(block, overflow);
  }

  void Exchange(const TileExchange& exchange) {
    const int64_t outgoing = matrix_.tiles.width(exchange.outgoing);
    const int64_t incoming = matrix_.tiles.width(exchange.incoming);
    for (int64_t column = 0; column < std::max(outgoing, incoming); column += chunk_) {
      Data chunk;  // the columns of this chunk
      if (column < outgoing && FirstRow(exchange.outgoing) < matrix_.rows) {
        SendChunk(exchange, column, std::min(chunk_, outgoing - column), chunk);
      }
      if (column < incoming && FirstRow(exchange.incoming) < matrix_.rows) {
        Step<T> on(flow_, Stream::kCopy);
        on.Writes(chunk).Reads(Slot(exchange.slot));
        on.Recv(exchange.from, Piece(exchange.slot, exchange.incoming, column,
                                     std::min(chunk_, incoming - column)));
      }
    }
  }

  void SendChunk(const TileExchange& exchange, int64_t column, int64_t columns, Data& chunk) {
    Chunk& last = chunks_[next_chunk_];
    const int64_t rows = matrix_.rows - FirstRow(exchange.outgoing);
    const Bytes2D staged =
        Block(staging_ + next_chunk_ * chunk_ * matrix_.rows, rows, rows, columns);
    Step<T> on(flow_, Stream::kPanel, "stage", exchange.outgoing);
    on.Reads(Slot(exchange.slot), chunk);
    if (last.peer >= 0) on.AwaitsSent(last.peer, last.message);
    on.CopyWithin(staged, Piece(exchange.slot, exchange.outgoing, column, columns));
    on.Send(exchange.to, staged);
    last = {exchange.to, flow_.comm().Sent(exchange.to)};
    next_chunk_ = (next_chunk_ + 1) % chunks_.size();
  }

  // Moves the tiles in pieces of as many columns as the staging memory holds.
  void MoveTiles(const MoveCycle& cycle) {
    for (int64_t column = 0; column < matrix_.tiles.width(); column += move_columns_) {
      for (const TileMove& move : cycle) {
        const int64_t left = matrix_.tiles.width(move.tile) - column;
        if (left <= 0) continue;
        const int64_t columns = std::min(left, move_columns_);
        Step<T> on(flow_, Stream::kNext, "move tile", move.tile);
        on.CopyWithin(PieceToMove(move.target, move.tile, column, columns),
                      PieceToMove(move.source, move.tile, column, columns));
      }
    }
  }

  Bytes2D PieceToMove(int64_t slot, int64_t tile, int64_t column, int64_t columns) const {
    if (slot != TileMove::kStaging) return Piece(slot, tile, column, columns);
    const int64_t rows = matrix_.rows - FirstRow(tile);
    return Block(move_staging_, rows, rows, columns);
  }

  int64_t FirstRow(int64_t tile) const {
    return region_ == Region::kFull ? 0 : std::min(matrix_.tiles.offset(tile), matrix_.rows);
  }

  Bytes2D Piece(int64_t slot, int64_t tile, int64_t column, int64_t columns) const {
    const int64_t row = FirstRow(tile);
    return Block(matrix_.slot(slot) + column * matrix_.ld() + row, matrix_.ld(), matrix_.rows - row,
                 columns);
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Region region_;
  T* const staging_;
  bool separate_;  // whether moves and exchanges have separate staging
  int64_t chunk_;  // columns of a chunk of an exchange
  std::vector<Chunk> chunks_;
  size_t next_chunk_ = 0;
  T* move_staging_;
  int64_t move_columns_;
  std::vector<Data> slot_;  // the first one is the staging tile
};

}  // namespace

template <typename T>
Status ToBlockCyclic(const RankContext& context, const Matrix<T>& matrix, Region region,
                     T* staging) {
  if (matrix.tiles.ranks() == 1) return Status::Ok();
  return Redistribution<T>(context, matrix, region, staging)
      .ToCyclic(PlanRedistribution(matrix.tiles)[matrix.rank]);
}

template <typename T>
Status ToContiguous(const RankContext& context, const Matrix<T>& matrix, Region region,
                    T* staging) {
  if (matrix.tiles.ranks() == 1) return Status::Ok();
  return Redistribution<T>(context, matrix, region, staging)
      .ToContiguous(Inverse(PlanRedistribution(matrix.tiles)[matrix.rank]));
}

#define JAXMG_INSTANTIATE(T)                                                       \
  template Status ToBlockCyclic(const RankContext&, const Matrix<T>&, Region, T*); \
  template Status ToContiguous(const RankContext&, const Matrix<T>&, Region, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
