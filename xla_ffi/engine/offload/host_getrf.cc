#include "xla_ffi/engine/offload/host_getrf.h"

#include <algorithm>
#include <complex>
#include <optional>
#include <vector>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/lu/gesv.h"
#include "xla_ffi/engine/offload/host_cache.h"
#include "xla_ffi/engine/offload/host_panels.h"

namespace jaxmg {
namespace {

// The operations of the updates of block column j.
double UpdateWork(const HostShape& shape, int64_t j) {
  return ProductWork(2 * shape.n - shape.first(j), shape.columns(j), shape.first(j)) / 2;
}

template <typename T>
class LuBlockColumn {
 public:
  LuBlockColumn(const RankContext& context, const HostGetrfOperand<T>& operand,
                const HostMatrix& host, int64_t j, const HostGetrfSpace<T>& space,
                const Workspace& workspace, HostRing& ring)
      : context_(context),
        operand_(operand),
        host_(host),
        shape_(host.shape),
        j_(j),
        first_(shape_.first(j)),
        precision_(space.precision),
        tiles_(shape_.tiles(j)),
        rank_(context.comm.rank()),
        ld_(shape_.ld()),
        chunk_(shape_.chunk(context.device.tuning())),
        flow_(context, space.precision),
        a_(operand.a[j % 2]),
        panels_(flow_, host, &ring, workspace.Get(space.panels), chunk_),
        cache_(shape_, rank_, operand.cache, operand.cached),
        ring_(ring),
        end_(tiles_.slots_before(rank_, tiles_.nonempty())),
        columns_(ColumnsIn(tiles_)) {
    T* const data = operand.x + first_ * shape_.nrhs;
    x_ = {shape_.nrhs, data, alone() ? data : workspace.Get(space.local)};
  }

  Status Run(int32_t* info, const Determinant<T>& determinant) {
    flow_.Fork();
    if (j_ == 0) {
      for (int64_t slot = 0; slot < end_ && !host_.source.empty(); ++slot) {
        LoadTile(0, slot, a_, loaded_block_);
      }
      // Before the next block column is loaded, so that the event doesn't cover that.
      Step<T>(flow_, Stream::kMain).Reads(loaded_block_);
    }
    Update();
    // The first one waits for the updates, and not for Getrf. Those through a ring would keep this
    // thread from Getrf.
    Prefetch();
    JAXMG_RETURN_IF_ERROR(flow_.status());
    // The block column from its diagonal down.
    const Matrix<T> below = {tiles_, rank_, ld_, a_ + first_, nullptr};
    JAXMG_RETURN_IF_ERROR(Getrf(context_, precision_, below, x_, panels_.at(0),
                                operand_.pivots + first_, info, determinant, shape_.n - first_));
    while (Prefetch()) {
    }
    Flow ends(context_);
    Data block;
    ends.Fork();
    const bool stores = !alone() || j_ + 1 == shape_.blocks();
    for (int64_t slot = 0; slot < end_ && stores; ++slot) StoreTile(ends, j_, slot, block);
    KeepLower(ends);
    ends.Join();
    JAXMG_RETURN_IF_ERROR(ends.status());
    flow_.Join();
    JAXMG_RETURN_IF_ERROR(flow_.status());
    return ring_.Drain();
  }

 private:
  // Columns [column, column + columns) of block column k of L, from the first one's diagonal on,
  // and where they are if they needn't be loaded.
  struct Chunk {
    int64_t k, column, columns;
    const T* data;
    int64_t ld;

    int64_t row(const HostShape& shape) const { return shape.first(k) + column; }
  };

  // A rank alone has all of the last block column.
  bool alone() const { return tiles_.ranks() == 1; }

  // The number of this rank's columns, which are contiguous in its buffer.
  int64_t ColumnsIn(const Tiles& tiles) const {
    int64_t columns = 0;
    for (int64_t p = rank_; p < tiles.nonempty(); p += tiles.ranks()) columns += tiles.width(p);
    return columns;
  }

  // --- Transfers ---------------------------------------------------------------------------------

  // Loads this rank's tile column in `slot` of block column j.
  void LoadTile(int64_t j, int64_t slot, T* buffer, Data& block) {
    const Tiles tiles = shape_.tiles(j);
    const int64_t p = tiles.tile_in(rank_, slot);
    RingStep<T> on(&ring_, flow_, Stream::kLoad, "load tile", p);
    on.Writes(block);
    on.Load(host_.source[j], {0, shape_.n, tiles.offset(p), tiles.width(p)},
            buffer + slot * tiles.width() * ld_, ld_);
  }

  // Loads the next tile column of the next block column, in the place of the last one. Returns
  // whether there was one.
  bool Prefetch() {
    const int64_t next = j_ + 1;
    if (next == shape_.blocks() || host_.source.empty()) return false;
    const Tiles tiles = shape_.tiles(next);
    if (prefetched_ >= tiles.slots_before(rank_, tiles.nonempty())) return false;
    LoadTile(next, prefetched_++, operand_.a[next % 2], other_block_);
    return true;
  }

  void LoadChunk(const std::vector<Chunk>& chunks, size_t i) {
    if (i >= chunks.size()) return;
    const Chunk& chunk = chunks[i];
    const int64_t row = chunk.row(shape_);
    panels_.Load(i, chunk.k, {row, shape_.n - row, chunk.column, chunk.columns});
  }

  // Stores this rank's tile column in `slot` of block column j.
  void StoreTile(Flow& flow, int64_t j, int64_t slot, Data& block) {
    const Tiles tiles = shape_.tiles(j);
    const int64_t p = tiles.tile_in(rank_, slot);
    RingStep<T> on(&ring_, flow, Stream::kStore, "store tile", p);
    on.Reads(block);
    on.Store(host_.factor[j], {0, shape_.n, host_.StoredColumn(p), tiles.width(p)},
             operand_.a[j % 2] + slot * tiles.width() * ld_, ld_);
  }

  // Stores the next tile column of the last block column. Returns whether there was one.
  bool StoreNext() {
    if (j_ == 0 || stored_ >= shape_.tiles(j_ - 1).nonempty()) return false;
    StoreTile(flow_, j_ - 1, stored_++, other_block_);
    return true;
  }

  // Copies the tile columns of L that stay on the device.
  void KeepLower(Flow& flow) {
    const int64_t rows = shape_.rows(j_);
    Step<T> on(flow, Stream::kMain, "keep", j_);
    for (int64_t slot = 0; slot < end_; ++slot) {
      T* const kept = cache_.at(j_, slot);
      if (kept == nullptr) continue;
      on.Copy(Block(kept, rows, rows, tiles_.width(tiles_.tile_in(rank_, slot))),
              Block(a_ + slot * tiles_.width() * ld_ + first_, ld_, rows,
                    tiles_.width(tiles_.tile_in(rank_, slot))));
    }
  }

  // --- Updates -----------------------------------------------------------------------------------

  void Update() {
    std::vector<Chunk> chunks, streamed;
    for (int64_t k = 0; k < j_; ++k) {
      for (int64_t column = 0; column < shape_.width; column += chunk_) {
        chunks.push_back(ChunkOf(k, column));
        if (chunks.back().data == nullptr) streamed.push_back(chunks.back());
      }
    }
    Stage stage(flow_.device(), "update", static_cast<int64_t>(chunks.size()),
                UpdateWork(shape_, j_));
    for (size_t i = 0; i + 1 < HostPanels<T>::kBuffers; ++i) LoadChunk(streamed, i);
    size_t next = 0;  // of those that are streamed
    int64_t done = 0;
    for (Chunk chunk : chunks) {
      alone() ? StoreNext() : Prefetch();
      if (chunk.data != nullptr) {
        UpdateWith(chunk, chunk.k == j_ - 1 ? other_block_ : kept_);
      } else {
        chunk.data = panels_.at(next);
        LoadChunk(streamed, next + HostPanels<T>::kBuffers - 1);
        UpdateWith(chunk, panels_.data(next++));
      }
      stage.Done(Stream::kMain, ++done);
    }
    {
      Step<T> last(flow_, Stream::kMain);
      panels_.AwaitTaken(last);  // Getrf has its panels there
    }
    while (alone() && StoreNext()) {
    }
    UpdateRightHandSides();
  }

  // A rank alone has all columns of the last block column, and of those that are cached.
  Chunk ChunkOf(int64_t k, int64_t column) const {
    Chunk chunk = {k, column, std::min(chunk_, shape_.width - column), nullptr, ld_};
    if (!alone()) return chunk;
    if (k == j_ - 1) {
      chunk.data = operand_.a[k % 2] + column * ld_ + chunk.row(shape_);
    } else if (const T* kept = cache_.at(k, column / shape_.tile); kept != nullptr) {
      chunk.data = kept + column;
      chunk.ld = shape_.rows(k);
    }
    return chunk;
  }

  void UpdateWith(const Chunk& chunk, Data& data) {
    const int64_t begin = shape_.first(chunk.k), row = chunk.row(shape_);
    Step<T> on(flow_, Stream::kMain, "update", chunk.k);
    on.Reads(data);
    if (columns_ == 0) return;
    if (chunk.column == 0) {
      on.SwapRows(Order::kForward, columns_, a_ + begin, ld_, int64_t{0}, shape_.width,
                  operand_.pivots + begin);
    }
    const int64_t depth = chunk.columns, rest = shape_.n - row - depth;
    T* const top = a_ + row;
    on.Trsm(Side::kLeft, Op::kNone, depth, columns_, chunk.data, chunk.ld, top, ld_, kUnitLower);
    on.Gemm(Op::kNone, Op::kNone, rest, columns_, depth, -1, chunk.data + depth, chunk.ld, top, ld_,
            1, top + depth, ld_);
  }

  // Subtracts Y U for all earlier block columns: U above the diagonal of this one is complete.
  void UpdateRightHandSides() {
    if (x_.count == 0 || first_ == 0) return;
    Step<T> on(flow_, Stream::kMain, "right-hand sides", j_);
    for (int64_t p = rank_; p < tiles_.nonempty(); p += tiles_.ranks()) {
      on.ExactGemm(Op::kNone, Op::kNone, x_.count, tiles_.width(p), first_, -1, operand_.x,
                   x_.count, a_ + tiles_.slot(p) * tiles_.width() * ld_, ld_, 1,
                   x_.column(tiles_.offset(p)), x_.count);
    }
  }

  const RankContext& context_;
  const HostGetrfOperand<T>& operand_;
  const HostMatrix& host_;
  const HostShape& shape_;
  const int64_t j_, first_;
  const Precision precision_;
  const Tiles tiles_;
  const int rank_;
  const int64_t ld_, chunk_;
  Flow flow_;
  T* const a_;
  HostPanels<T> panels_;
  const HostCache<T> cache_;
  HostRing& ring_;
  const int64_t end_, columns_;  // this rank's slots that have columns, and these columns
  RightHandSides<T> x_;
  int64_t prefetched_ = 0, stored_ = 0;
  // This block column; the buffer of the last and of the next one; the cache.
  Data loaded_block_, other_block_, kept_;
};

}  // namespace

template <typename T>
HostGetrfSpace<T>::HostGetrfSpace(const HostShape& shape, Precision products, const Ranks& ranks)
    : precision(LuPrecision<T>(products, shape.n, ranks.tuning)) {
  const Tiles tiles = shape.tiles(0);
  const int64_t streamed =
      shape.blocks() > 1 ? HostPanels<T>::kBuffers * shape.chunk(ranks.tuning) * shape.ld() : 0;
  records = pieces.Reserve<char>(RecordsBytes(ranks.size));
  panels = pieces.Reserve<T>(std::max(streamed, GetrfWorkspace<T>(tiles, shape.n, ranks.tuning)));
  local = pieces.Reserve<T>(LocalInPlace(tiles, shape.nrhs));
  split_bytes = SplitBytes<T>(tiles, shape.n, precision);
}

template <typename T>
Status HostGetrfRoutine(const RankContext& context, const HostGetrfOperand<T>& operand) {
  Device& device = context.device;
  const HostShape& shape = operand.shape;
  const HostGetrfSpace<T> space(shape, operand.products, RanksOf(context));
  Workspace workspace(space.pieces);
  HostCall call = {};
  std::shared_ptr<const HostMatrix> host;
  const int64_t buffer = shape.rank_columns() * shape.ld(), count = shape.n * shape.nrhs;
  std::optional<Outcome<T>> outcome;
  std::optional<HostRing> ring;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(ReadHostCall(device, operand.call, operand.find, &call, &host));
    JAXMG_RETURN_IF_ERROR(CheckHostMatrix("host_getrf", *host, shape, DtypeName<T>(),
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
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device, operand.pivots_source, operand.pivots, shape.n));
    JAXMG_RETURN_IF_ERROR(device.ReserveHandles());
    return outcome->Init();
  };
  auto work = [&]() -> Status {
    const int64_t j = call.block;
    AnnounceWork(device, UpdateWork(shape, j) + LuWork(shape.rows(j), shape.columns(j)) +
                             SolveWork(shape.rows(j), shape.nrhs));
    LuBlockColumn<T> block(context, operand, *host, j, space, workspace, *ring);
    JAXMG_RETURN_IF_ERROR(block.Run(outcome->info(), {outcome->log_det(), outcome->sign()}));
    JAXMG_RETURN_IF_ERROR(
        outcome->ConcludeDeterminant(operand.log_abs, operand.sign, operand.x, count));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)         \
  template struct HostGetrfSpace<T>; \
  template Status HostGetrfRoutine(const RankContext&, const HostGetrfOperand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
