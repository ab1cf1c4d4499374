#include "xla_ffi/engine/offload/host_potrf.h"

#include <algorithm>
#include <complex>
#include <optional>
#include <vector>

#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/offload/host_cache.h"
#include "xla_ffi/engine/offload/host_panels.h"

namespace jaxmg {
namespace {

// Potrf gets the right-hand sides in its own precision, and whole block columns can't be
// equilibrated; products with streamed panels scale their own factors instead.
template <typename T>
Precision StreamedPrecision(Precision requested, int64_t n, const Tuning& tuning) {
  const Precision chosen = ChosenPrecision<T>(requested, n, tuning);
  if (chosen != Precision::kF16x3) return chosen;
  return tuning.products.scales ? Precision::kScaledF16x3 : Precision::kHighest;
}

template <typename T>
class BlockColumn {
 public:
  BlockColumn(const RankContext& context, const HostPotrfOperand<T>& operand,
              const HostMatrix& host, int64_t j, const HostPotrfSpace<T>& space,
              const Workspace& workspace, HostRing& ring)
      : context_(context),
        operand_(operand),
        host_(host),
        shape_(host.shape),
        j_(j),
        tiles_(shape_.tiles(j)),
        ld_(shape_.ld()),
        chunk_(shape_.chunk(context.device.tuning())),
        flow_(context, space.precision),
        matrix_({tiles_, context.comm.rank(), ld_, operand.a[j % 2], nullptr}),
        x_({shape_.nrhs, operand.x + shape_.first(j) * shape_.nrhs, workspace.Get(space.local)}),
        panels_(flow_, host, &ring, workspace.Get(space.panels), chunk_),
        factor_(workspace.Get(space.factor)),
        cache_(shape_, matrix_.rank, operand.cache, operand.cached),
        ring_(ring),
        stored_(context.device.blas<T>(space.precision).StoredFactor()),
        splits_(context.device.blas<T>(space.precision).parts().depth > 0),
        end_(tiles_.slots_before(matrix_.rank, tiles_.nonempty())) {
    for (int64_t slot = 0; slot < end_; ++slot) columns_.push_back(columns_.back() + Width(slot));
  }

  Status Run(int32_t* info, Real<T>* log_det) {
    flow_.Fork();
    if (j_ == 0) {
      for (int64_t slot = 0; slot < end_ && !host_.source.empty(); ++slot) {
        LoadTile(0, slot, matrix_.data, loaded_block_);
      }
      // Before the next block column is loaded, so that the event doesn't cover that.
      Step<T>(flow_, Stream::kMain).Reads(loaded_block_);
    }
    Update();
    while (Prefetch()) {
    }
    JAXMG_RETURN_IF_ERROR(flow_.status());
    PartOfMatrix part;
    part.rows_below = shape_.rows(j_) - tiles_.columns();
    part.order = shape_.first(j_);
    part.stores = [this](Flow& flow, int64_t k, Data& diagonal, Data& below) {
      Store(flow, k, diagonal, below);
    };
    JAXMG_RETURN_IF_ERROR(Potrf(context_, Precision::kHighest, matrix_, x_, panels_.at(0), info,
                                log_det, /*spoils=*/false, part));
    JAXMG_RETURN_IF_ERROR(GatherLocal(context_, matrix_, x_));
    flow_.Join();
    JAXMG_RETURN_IF_ERROR(flow_.status());
    return ring_.Drain();
  }

 private:
  // Columns [column, column + columns) of block column k, and where they are if they needn't be
  // loaded: from this block column's first row on.
  struct Chunk {
    int64_t k, column, columns;
    const T* data;
    int64_t ld;
  };

  int64_t Width(int64_t slot) const { return tiles_.width(tiles_.tile_in(matrix_.rank, slot)); }

  // --- Transfers ---------------------------------------------------------------------------------

  // Loads this rank's tile in `slot` of block column j, from its diagonal tile down.
  void LoadTile(int64_t j, int64_t slot, T* buffer, Data& block) {
    const Tiles tiles = shape_.tiles(j);
    const int64_t p = tiles.tile_in(matrix_.rank, slot), begin = tiles.offset(p);
    RingStep<T> on(&ring_, flow_, Stream::kLoad, "load tile", p);
    on.Writes(block);
    on.Load(host_.source[j], {begin, shape_.rows(j) - begin, begin, tiles.width(p)},
            buffer + slot * tiles.width() * ld_ + begin, ld_);
  }

  // Loads the next tile of the next block column, in the place of the last one. Returns whether
  // there was one.
  bool Prefetch() {
    const int64_t next = j_ + 1;
    if (next == shape_.blocks() || host_.source.empty()) return false;
    const Tiles tiles = shape_.tiles(next);
    if (prefetched_ >= tiles.slots_before(matrix_.rank, tiles.nonempty())) return false;
    LoadTile(next, prefetched_++, operand_.a[next % 2], other_block_);
    return true;
  }

  void LoadChunk(const std::vector<Chunk>& chunks, size_t i) {
    if (i >= chunks.size()) return;
    const Chunk& chunk = chunks[i];
    const int64_t row = shape_.first(j_) - shape_.first(chunk.k);
    panels_.Load(i, chunk.k, {row, shape_.rows(j_), chunk.column, chunk.columns});
  }

  void Store(Flow& flow, int64_t k, Data& diagonal, Data& below) {
    const int64_t begin = tiles_.offset(k);
    RingStep<T> on(&ring_, flow, Stream::kStore, "store tile", k);
    on.Reads(diagonal, below);
    on.Store(host_.factor[j_],
             {begin, shape_.rows(j_) - begin, host_.StoredColumn(k), tiles_.width(k)},
             matrix_.tile(k, begin), ld_);
    T* const kept = cache_.at(j_, tiles_.slot(k));
    if (kept == nullptr) return;
    const int64_t rows = shape_.rows(j_);
    on.Copy(Block(kept + begin, rows, rows - begin, tiles_.width(k)),
            Block(matrix_.tile(k, begin), ld_, rows - begin, tiles_.width(k)));
  }

  // --- Updates -----------------------------------------------------------------------------------

  // Updates the block column with all before it: first with the last one where it still is, then
  // from the first on, with chunks that are cached or streamed.
  void Update() {
    std::vector<Chunk> chunks, streamed;
    for (int64_t i = 0; i < j_; ++i) {
      const bool alone = tiles_.ranks() == 1;
      const int64_t k = alone ? (i + j_ - 1) % j_ : i;
      for (int64_t column = 0; column < shape_.width; column += chunk_) {
        chunks.push_back(ChunkOf(k, column));
        if (chunks.back().data == nullptr) streamed.push_back(chunks.back());
      }
    }
    const double work = ProductWork(shape_.rows(j_), tiles_.columns(), shape_.first(j_));
    Stage stage(flow_.device(), "update", static_cast<int64_t>(chunks.size()), work);
    for (size_t i = 0; i + 1 < HostPanels<T>::kBuffers; ++i) LoadChunk(streamed, i);
    size_t next = 0;  // of those that are streamed
    int64_t done = 0;
    for (Chunk chunk : chunks) {
      if (chunk.k != j_ - 1 || tiles_.ranks() > 1) Prefetch();
      if (chunk.data != nullptr) {
        UpdateWith(chunk, chunk.k == j_ - 1 ? other_block_ : kept_);
      } else {
        chunk.data = panels_.at(next);
        LoadChunk(streamed, next + HostPanels<T>::kBuffers - 1);
        UpdateWith(chunk, panels_.data(next++));
      }
      stage.Done(Stream::kMain, ++done);
    }
    Step<T> last(flow_, Stream::kMain);
    panels_.AwaitTaken(last);  // Potrf has its panels there
  }

  // A rank alone has all columns of the last block column, and of those that are cached.
  Chunk ChunkOf(int64_t k, int64_t column) const {
    const int64_t columns = std::min(chunk_, shape_.width - column);
    if (tiles_.ranks() > 1) return {k, column, columns, nullptr, ld_};
    const int64_t row = shape_.first(j_) - shape_.first(k);
    if (k == j_ - 1) return {k, column, columns, operand_.a[k % 2] + column * ld_ + row, ld_};
    const T* kept = cache_.at(k, column / shape_.tile);
    if (kept == nullptr) return {k, column, columns, nullptr, ld_};
    return {k, column, columns, kept + row, shape_.rows(k)};
  }

  // Subtracts L B^H, where L is the chunk from this block column's first row on, and B its rows
  // that match this rank's columns. The tile columns are in groups. A group has one product below
  // its last diagonal tile; the rows above that, from each diagonal tile down, are multiplied
  // beside it, unless every product splits its factors into parts.
  void UpdateWith(const Chunk& chunk, Data& data) {
    Step<T> on(flow_, Stream::kMain, "update", chunk.k);
    on.Reads(data);
    for (int64_t slot = 0; slot < end_; ++slot) GatherRows(on, chunk, slot);
    {
      Step<T> beside(flow_, Stream::kSide);
      beside.Follows(Stream::kMain).Reads(data);
      const int64_t group = std::max<int64_t>(
          on.tuning().cholesky.group_columns / (tiles_.width() * tiles_.ranks()), 1);
      for (int64_t slot = 0; slot < end_; slot += group) {
        const int64_t after = std::min(slot + group, end_);
        const int64_t top = tiles_.offset(tiles_.tile_in(matrix_.rank, slot));
        const int64_t bottom =
            splits_ ? top : tiles_.offset(tiles_.tile_in(matrix_.rank, after - 1) + 1);
        for (int64_t s = slot; s < after && !splits_; ++s) {
          UpdateRows(beside, chunk, s, s + 1, tiles_.offset(tiles_.tile_in(matrix_.rank, s)),
                     bottom);
        }
        UpdateRows(on, chunk, slot, after, bottom, shape_.rows(j_));
      }
    }
    on.Follows(Stream::kSide);
    if (x_.count == 0) return;
    // The columns of one rank are contiguous in x, too.
    const int64_t step = tiles_.ranks() == 1 ? std::max<int64_t>(end_, 1) : 1;
    for (int64_t slot = 0; slot < end_; slot += step) {
      const int64_t first = shape_.first(chunk.k) + chunk.column;
      on.ExactGemm(Op::kNone, stored_, x_.count, Columns(slot, slot + step), chunk.columns, -1,
                   operand_.x + first * x_.count, x_.count, Rows(chunk, slot), LdOfRows(chunk), 1,
                   x_.column(tiles_.offset(tiles_.tile_in(matrix_.rank, slot))), x_.count);
    }
  }

  // Updates rows [begin, end) of the tile columns in slots [slot, after).
  void UpdateRows(Step<T>& on, const Chunk& chunk, int64_t slot, int64_t after, int64_t begin,
                  int64_t end) {
    if (begin == end) return;
    on.Gemm(Op::kNone, stored_, end - begin, Columns(slot, after), chunk.columns, -1,
            chunk.data + begin, chunk.ld, Rows(chunk, slot), LdOfRows(chunk), 1,
            matrix_.slot(slot) + begin, ld_);
  }

  // The number of columns in slots [slot, end).
  int64_t Columns(int64_t slot, int64_t end) const { return columns_[end] - columns_[slot]; }
  // Where B, or B^H, is stored from a slot on.
  int64_t LdOfRows(const Chunk& chunk) const {
    return stored_ == Op::kNone ? chunk.columns : columns_.back();
  }
  T* Rows(const Chunk& chunk, int64_t slot) const {
    return factor_ + columns_[slot] * (stored_ == Op::kNone ? chunk.columns : 1);
  }

  void GatherRows(Step<T>& on, const Chunk& chunk, int64_t slot) {
    const T* source = chunk.data + tiles_.offset(tiles_.tile_in(matrix_.rank, slot));
    T* target = Rows(chunk, slot);
    if (stored_ == Op::kNone) {
      on.ConjTranspose(Width(slot), chunk.columns, source, chunk.ld, target, chunk.columns);
    } else {
      on.Copy(Block(target, LdOfRows(chunk), Width(slot), chunk.columns),
              Block(source, chunk.ld, Width(slot), chunk.columns));
    }
  }

  const RankContext& context_;
  const HostPotrfOperand<T>& operand_;
  const HostMatrix& host_;
  const HostShape& shape_;
  const int64_t j_;
  const Tiles tiles_;
  const int64_t ld_, chunk_;
  Flow flow_;
  const Matrix<T> matrix_;
  const RightHandSides<T> x_;
  HostPanels<T> panels_;
  T* const factor_;
  const HostCache<T> cache_;
  HostRing& ring_;
  const Op stored_;
  const bool splits_;
  const int64_t end_;                   // the end of this rank's slots that have columns
  std::vector<int64_t> columns_ = {0};  // columns before each slot
  int64_t prefetched_ = 0;
  // This block column; the buffer of the last and of the next one; the cache.
  Data loaded_block_, other_block_, kept_;
};

}  // namespace

template <typename T>
HostPotrfSpace<T>::HostPotrfSpace(const HostShape& shape, Precision products, const Ranks& ranks)
    : precision(StreamedPrecision<T>(products, shape.n, ranks.tuning)) {
  const Tiles tiles = shape.tiles(0);
  const int64_t chunk = shape.chunk(ranks.tuning);
  const int64_t streamed = shape.blocks() > 1 ? HostPanels<T>::kBuffers * chunk * shape.ld() : 0;
  records = pieces.Reserve<char>(RecordsBytes(ranks.size));
  panels = pieces.Reserve<T>(
      std::max(streamed, PotrfWorkspace<T>(tiles, shape.ld(), Precision::kHighest, ranks.tuning)));
  factor = pieces.Reserve<T>(shape.blocks() > 1 ? chunk * shape.rank_columns() : 0);
  local = pieces.Reserve<T>(LocalRightHandSides(tiles, shape.nrhs));
  split_bytes = SplitBytes<T>(tiles, shape.n, precision);
}

template <typename T>
Status HostPotrfRoutine(const RankContext& context, const HostPotrfOperand<T>& operand) {
  Device& device = context.device;
  const HostShape& shape = operand.shape;
  const HostPotrfSpace<T> space(shape, operand.products, RanksOf(context));
  Workspace workspace(space.pieces);
  HostCall call = {};
  std::shared_ptr<const HostMatrix> host;
  const int64_t buffer = shape.rank_columns() * shape.ld(), count = shape.n * shape.nrhs;
  std::optional<Outcome<T>> outcome;
  std::optional<HostRing> ring;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(ReadHostCall(device, operand.call, operand.find, &call, &host));
    JAXMG_RETURN_IF_ERROR(CheckHostMatrix("host_potrf", *host, shape, DtypeName<T>(),
                                          /*with_right_hand_sides=*/true));
    ring.emplace(device, host->ring, host->LocalIndex(context.comm.rank()), host->local_ranks());
    JAXMG_RETURN_IF_ERROR(ring->Prepare());
    JAXMG_RETURN_IF_ERROR(workspace.Allocate(device));
    outcome.emplace(context, false, workspace.Get(space.records), operand.status);
    for (int i = 0; i < 2; ++i) {
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, operand.source[i], operand.a[i], buffer));
    }
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device, operand.cache_source, operand.cache, operand.cached));
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device, operand.x_source, operand.x, count));
    JAXMG_RETURN_IF_ERROR(
        ReservePotrf(device, Matrix<T>{shape.tiles(call.block), context.comm.rank(), shape.ld(),
                                       operand.a[call.block % 2], nullptr}));
    return outcome->Init();
  };
  auto work = [&]() -> Status {
    const int64_t j = call.block;
    AnnounceWork(device,
                 ProductWork(shape.rows(j), shape.columns(j), shape.first(j)) +
                     FactorWork(shape.columns(j)) +
                     SolveWork(shape.columns(j), shape.nrhs + shape.rows(j) - shape.columns(j)));
    BlockColumn<T> block(context, operand, *host, j, space, workspace, *ring);
    JAXMG_RETURN_IF_ERROR(block.Run(outcome->info(), outcome->log_det()));
    JAXMG_RETURN_IF_ERROR(outcome->ConcludeOrFail(operand.log_det, operand.x, count));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)         \
  template struct HostPotrfSpace<T>; \
  template Status HostPotrfRoutine(const RankContext&, const HostPotrfOperand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
