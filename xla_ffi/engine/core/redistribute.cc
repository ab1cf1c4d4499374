#include "xla_ffi/engine/core/redistribute.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/layout/redistribution.h"

namespace jaxmg {
namespace {

// Exchanges are staged on kPanel and received on kCopy, so that one chunk is staged while the one
// before it is under way. Moves go beside them on kNext, each cycle of them once its slots are
// through with their exchanges, or the other way round.
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
    // A half of the staging tile each, unless it is too narrow to be shared.
    beside_ = width >= 4;
    chunk_ = std::clamp<int64_t>(wanted, 1, beside_ ? width / 4 : (width + 1) / 2);
    parts_.resize(std::min<int64_t>((beside_ ? width / 2 : width) / chunk_, kMostParts));
    const int64_t taken = beside_ ? static_cast<int64_t>(parts_.size()) * chunk_ : 0;
    move_staging_ = staging + taken * matrix.rows;
    move_columns_ = width - taken;
  }

  Status ToCyclic(const RedistributionPlan& plan) {
    MoveLastTile(/*to_overflow=*/true);
    flow_.Fork();
    for (const TileExchange& exchange : plan.exchanges) {
      Exchange(exchange);
      Step<T>(flow_, Stream::kCopy).Gives(Slot(exchange.slot));
    }
    if (!beside_) {
      // Moves are staged where other ranks may still read chunks.
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
    if (!beside_) Step<T>(flow_, Stream::kPanel).Follows(Stream::kNext);
    for (const TileExchange& exchange : plan.exchanges) Exchange(exchange);
    JAXMG_RETURN_IF_ERROR(flow_.Finish());
    MoveLastTile(/*to_overflow=*/false);
    return flow_.status();
  }

 private:
  static constexpr int64_t kMostParts = 4;

  // A part of the staging tile, and the message that was last sent from it.
  struct Part {
    int peer = -1;
    int64_t message = 0;
  };

  // What is in a slot, for the second of both phases, exchanges and moves.
  Data& Slot(int64_t slot) { return slot_[slot - TileMove::kStaging]; }

  // The tile that is last in this rank's block, between its place there and the overflow tile.
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
    const int64_t given = matrix_.tiles.width(exchange.given);
    const int64_t taken = matrix_.tiles.width(exchange.taken);
    for (int64_t column = 0; column < std::max(given, taken); column += chunk_) {
      Data place;  // of this chunk
      if (column < given && FirstRow(exchange.given) < matrix_.rows) {
        Give(exchange, column, std::min(chunk_, given - column), place);
      }
      if (column < taken && FirstRow(exchange.taken) < matrix_.rows) {
        Step<T> on(flow_, Stream::kCopy);
        on.Writes(place).Reads(Slot(exchange.slot));
        on.Recv(exchange.from,
                Piece(exchange.slot, exchange.taken, column, std::min(chunk_, taken - column)));
      }
    }
  }

  void Give(const TileExchange& exchange, int64_t column, int64_t columns, Data& place) {
    Part& part = parts_[next_part_];
    const int64_t rows = matrix_.rows - FirstRow(exchange.given);
    const Bytes2D staged =
        Block(staging_ + next_part_ * chunk_ * matrix_.rows, rows, rows, columns);
    Step<T> on(flow_, Stream::kPanel, "stage", exchange.given);
    on.Reads(Slot(exchange.slot), place);
    if (part.peer >= 0) on.AwaitsSent(part.peer, part.message);
    on.CopyWithin(staged, Piece(exchange.slot, exchange.given, column, columns));
    on.Send(exchange.to, staged);
    part = {exchange.to, flow_.comm().Sent(exchange.to)};
    next_part_ = (next_part_ + 1) % parts_.size();
  }

  // As many columns of all its tiles at a time as can be staged.
  void MoveTiles(const MoveCycle& cycle) {
    for (int64_t column = 0; column < matrix_.tiles.width(); column += move_columns_) {
      for (const TileMove& move : cycle) {
        const int64_t left = matrix_.tiles.width(move.tile) - column;
        if (left <= 0) continue;
        const int64_t columns = std::min(left, move_columns_);
        Step<T> on(flow_, Stream::kNext, "move tile", move.tile);
        on.CopyWithin(Moved(move.target, move.tile, column, columns),
                      Moved(move.source, move.tile, column, columns));
      }
    }
  }

  Bytes2D Moved(int64_t slot, int64_t tile, int64_t column, int64_t columns) const {
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
  bool beside_;    // moves and exchanges can be staged beside each other
  int64_t chunk_;  // columns of an exchange
  std::vector<Part> parts_;
  size_t next_part_ = 0;
  T* move_staging_;
  int64_t move_columns_;
  std::vector<Data> slot_;  // the staging tile's first
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
