#include "xla_ffi/engine/redistribute.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "xla_ffi/layout/redistribution.h"

namespace jaxmg {
namespace {

template <typename T>
class Redistribution {
 public:
  Redistribution(const RankContext& context, const Matrix<T>& matrix, Region region, T* staging)
      : context_(context), matrix_(matrix), region_(region), staging_(staging) {
    const int64_t column_bytes = std::max<int64_t>(matrix.rows, 1) * sizeof(T);
    const int64_t half_tile = (matrix.tiles.width() + 1) / 2;
    const int64_t wanted = context.device.tuning().exchange_bytes / column_bytes;
    chunk_ = std::clamp<int64_t>(wanted, 1, half_tile);
    parts_.resize(std::min<int64_t>(matrix.tiles.width() / chunk_, kMostParts));
  }

  // Exchanges stage on kPanel and receive on kCopy, so that one chunk is staged while the one
  // before it is under way.
  Status Begin() {
    JAXMG_RETURN_IF_ERROR(Order(context_.device, Stream::kMain, Stream::kPanel));
    return Order(context_.device, Stream::kMain, Stream::kCopy);
  }

  Status Exchange(const TileExchange& exchange) {
    const int64_t given = matrix_.tiles.width(exchange.given);
    const int64_t taken = matrix_.tiles.width(exchange.taken);
    for (int64_t column = 0; column < std::max(given, taken); column += chunk_) {
      if (column < given && FirstRow(exchange.given) < matrix_.rows) {
        JAXMG_RETURN_IF_ERROR(Give(exchange, column, std::min(chunk_, given - column)));
      }
      if (column < taken && FirstRow(exchange.taken) < matrix_.rows) {
        // Into the place of what has been staged.
        JAXMG_RETURN_IF_ERROR(Order(context_.device, Stream::kPanel, Stream::kCopy));
        JAXMG_RETURN_IF_ERROR(context_.comm.Recv(
            Stream::kCopy, exchange.from,
            Piece(exchange.slot, exchange.taken, column, std::min(chunk_, taken - column))));
      }
    }
    return Status::Ok();
  }

  Status Move(const TileMove& move) {
    const Range range(context_.device, Stream::kMain, "move tile", move.tile);
    return context_.device.Copy(Stream::kMain, Tile(move.target, move.tile),
                                Tile(move.source, move.tile));
  }

  // The tile that is last in this rank's block, between its place there and the overflow tile.
  Status MoveLastTile(bool to_overflow) {
    if (!matrix_.tiles.has_overflow()) return Status::Ok();
    const int64_t last = matrix_.tiles.slots() - 1;
    const int64_t tile = matrix_.rank * matrix_.tiles.slots() + last;
    T* in_block = matrix_.data + last * matrix_.tiles.width() * matrix_.ld() + FirstRow(tile);
    const int64_t rows = matrix_.rows - FirstRow(tile), columns = matrix_.tiles.width(tile);
    const Bytes2D block = Block(in_block, matrix_.ld(), rows, columns);
    const Bytes2D overflow = Piece(last, tile, 0, columns);
    return to_overflow ? context_.device.Copy(Stream::kMain, overflow, block)
                       : context_.device.Copy(Stream::kMain, block, overflow);
  }

  Status Finish() {
    JAXMG_RETURN_IF_ERROR(Order(context_.device, Stream::kPanel, Stream::kMain));
    JAXMG_RETURN_IF_ERROR(Order(context_.device, Stream::kCopy, Stream::kMain));
    return WaitAllSent(context_.comm, Stream::kMain);
  }

 private:
  static constexpr int64_t kMostParts = 4;

  // A part of the staging tile, and the message that was last sent from it.
  struct Part {
    int peer = -1;
    int64_t message = 0;
  };

  Status Give(const TileExchange& exchange, int64_t column, int64_t columns) {
    Part& part = parts_[next_part_];
    if (part.peer >= 0) {
      JAXMG_RETURN_IF_ERROR(context_.comm.WaitSent(Stream::kPanel, part.peer, part.message));
    }
    const Range range(context_.device, Stream::kPanel, "stage", exchange.given);
    const int64_t rows = matrix_.rows - FirstRow(exchange.given);
    const Bytes2D staged =
        Block(staging_ + next_part_ * chunk_ * matrix_.rows, rows, rows, columns);
    JAXMG_RETURN_IF_ERROR(context_.device.Copy(
        Stream::kPanel, staged, Piece(exchange.slot, exchange.given, column, columns)));
    JAXMG_RETURN_IF_ERROR(context_.comm.Send(Stream::kPanel, exchange.to, staged));
    part = {exchange.to, context_.comm.Sent(exchange.to)};
    next_part_ = (next_part_ + 1) % parts_.size();
    return Status::Ok();
  }

  int64_t FirstRow(int64_t tile) const {
    return region_ == Region::kFull ? 0 : std::min(matrix_.tiles.offset(tile), matrix_.rows);
  }

  Bytes2D Piece(int64_t slot, int64_t tile, int64_t column, int64_t columns) const {
    const int64_t row = FirstRow(tile);
    return Block(matrix_.slot(slot) + column * matrix_.ld() + row, matrix_.ld(), matrix_.rows - row,
                 columns);
  }

  Bytes2D Tile(int64_t slot, int64_t tile) const {
    const int64_t columns = matrix_.tiles.width(tile);
    if (slot != TileMove::kStaging) return Piece(slot, tile, 0, columns);
    const int64_t rows = matrix_.rows - FirstRow(tile);
    return Block(staging_, rows, rows, columns);
  }

  const RankContext& context_;
  const Matrix<T>& matrix_;
  const Region region_;
  T* const staging_;
  int64_t chunk_;  // columns
  std::vector<Part> parts_;
  size_t next_part_ = 0;
};

}  // namespace

template <typename T>
Status ToBlockCyclic(const RankContext& context, const Matrix<T>& matrix, Region region,
                     T* staging) {
  if (matrix.tiles.ranks() == 1) return Status::Ok();
  Redistribution<T> redistribution(context, matrix, region, staging);
  const RedistributionPlan plan = PlanRedistribution(matrix.tiles)[matrix.rank];
  JAXMG_RETURN_IF_ERROR(redistribution.MoveLastTile(/*to_overflow=*/true));
  JAXMG_RETURN_IF_ERROR(redistribution.Begin());
  for (const TileExchange& exchange : plan.exchanges) {
    JAXMG_RETURN_IF_ERROR(redistribution.Exchange(exchange));
  }
  // Moves stage tiles where other ranks may still read chunks.
  JAXMG_RETURN_IF_ERROR(redistribution.Finish());
  for (const TileMove& move : plan.moves) JAXMG_RETURN_IF_ERROR(redistribution.Move(move));
  return Status::Ok();
}

template <typename T>
Status ToContiguous(const RankContext& context, const Matrix<T>& matrix, Region region,
                    T* staging) {
  if (matrix.tiles.ranks() == 1) return Status::Ok();
  Redistribution<T> redistribution(context, matrix, region, staging);
  const RedistributionPlan plan = Inverse(PlanRedistribution(matrix.tiles)[matrix.rank]);
  for (const TileMove& move : plan.moves) JAXMG_RETURN_IF_ERROR(redistribution.Move(move));
  JAXMG_RETURN_IF_ERROR(redistribution.Begin());
  for (const TileExchange& exchange : plan.exchanges) {
    JAXMG_RETURN_IF_ERROR(redistribution.Exchange(exchange));
  }
  JAXMG_RETURN_IF_ERROR(redistribution.Finish());
  return redistribution.MoveLastTile(/*to_overflow=*/false);
}

#define JAXMG_INSTANTIATE(T)                                                       \
  template Status ToBlockCyclic(const RankContext&, const Matrix<T>&, Region, T*); \
  template Status ToContiguous(const RankContext&, const Matrix<T>&, Region, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
