#include "xla_ffi/engine/redistribute.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/layout/redistribution.h"

namespace jaxmg {
namespace {

// Chunks of this many bytes keep both halves of the staging tile busy without growing latency.
constexpr int64_t kChunkBytes = int64_t{8} << 20;

template <typename T>
class Redistribution {
 public:
  Redistribution(const RankContext& context, const Matrix<T>& matrix, Region region, T* staging)
      : context_(context), matrix_(matrix), region_(region), staging_(staging) {
    const int64_t column_bytes = std::max<int64_t>(matrix.rows, 1) * sizeof(T);
    const int64_t half_tile = (matrix.tiles.width() + 1) / 2;
    chunk_ = std::clamp<int64_t>(kChunkBytes / column_bytes, 1, half_tile);
    halves_ = 2 * chunk_ <= matrix.tiles.width() ? 2 : 1;
  }

  Status Exchange(const TileExchange& exchange) {
    const int64_t given = matrix_.tiles.width(exchange.given);
    const int64_t taken = matrix_.tiles.width(exchange.taken);
    for (int64_t column = 0; column < std::max(given, taken); column += chunk_) {
      if (column < given && FirstRow(exchange.given) < matrix_.rows) {
        const int64_t columns = std::min(chunk_, given - column);
        const Bytes2D source = Piece(exchange.slot, exchange.given, column, columns);
        const int64_t rows = matrix_.rows - FirstRow(exchange.given);
        const Bytes2D staged =
            Block(staging_ + half_ * chunk_ * matrix_.rows, rows, rows, columns);
        half_ = (half_ + 1) % halves_;
        // A half is free once its last content, sent two chunks ago, has been taken.
        if (in_flight_ == halves_) {
          JAXMG_RETURN_IF_ERROR(WaitAllSent(context_.comm, Stream::kMain));
          in_flight_ = 0;
        }
        ++in_flight_;
        JAXMG_RETURN_IF_ERROR(context_.device.Copy(Stream::kMain, staged, source));
        JAXMG_RETURN_IF_ERROR(context_.comm.Send(Stream::kMain, exchange.to, staged));
      }
      if (column < taken && FirstRow(exchange.taken) < matrix_.rows) {
        const int64_t columns = std::min(chunk_, taken - column);
        JAXMG_RETURN_IF_ERROR(context_.comm.Recv(
            Stream::kMain, exchange.from, Piece(exchange.slot, exchange.taken, column, columns)));
      }
    }
    return Status::Ok();
  }

  Status Move(const TileMove& move) {
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

  Status Finish() { return WaitAllSent(context_.comm, Stream::kMain); }

 private:
  int64_t FirstRow(int64_t tile) const {
    return region_ == Region::kFull ? 0 : std::min(matrix_.tiles.offset(tile), matrix_.rows);
  }

  Bytes2D Piece(int64_t slot, int64_t tile, int64_t column, int64_t columns) const {
    const int64_t row = FirstRow(tile);
    return Block(matrix_.slot(slot) + column * matrix_.ld() + row, matrix_.ld(),
                 matrix_.rows - row, columns);
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
  int64_t chunk_;      // columns
  int halves_;         // parts of the staging tile that chunks take turns in
  int half_ = 0;       // the next part
  int in_flight_ = 0;  // parts that may still be read by other ranks
};

}  // namespace

template <typename T>
Status ToBlockCyclic(const RankContext& context, const Matrix<T>& matrix, Region region,
                     T* staging) {
  if (matrix.tiles.ranks() == 1) return Status::Ok();
  Redistribution<T> redistribution(context, matrix, region, staging);
  const RedistributionPlan plan = PlanRedistribution(matrix.tiles)[matrix.rank];
  JAXMG_RETURN_IF_ERROR(redistribution.MoveLastTile(/*to_overflow=*/true));
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
  for (const TileExchange& exchange : plan.exchanges) {
    JAXMG_RETURN_IF_ERROR(redistribution.Exchange(exchange));
  }
  JAXMG_RETURN_IF_ERROR(redistribution.Finish());
  return redistribution.MoveLastTile(/*to_overflow=*/false);
}

#define JAXMG_INSTANTIATE(T)                                                                  \
  template Status ToBlockCyclic(const RankContext&, const Matrix<T>&, Region, T*);           \
  template Status ToContiguous(const RankContext&, const Matrix<T>&, Region, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
