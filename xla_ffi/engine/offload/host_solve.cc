#include "xla_ffi/engine/offload/host_solve.h"

#include <algorithm>
#include <array>
#include <complex>
#include <optional>
#include <vector>

#include "xla_ffi/engine/cholesky/diagonal.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/offload/host_cache.h"
#include "xla_ffi/engine/offload/transfer.h"

namespace jaxmg {
namespace {

// The buffers of streamed tile columns: one is used while two are loaded.
constexpr int64_t kBuffers = 3;

template <typename T>
class BlockSweep {
 public:
  BlockSweep(const RankContext& context, const HostSolveOperand<T>& operand, const HostMatrix& host,
             const HostCall& call, T* panels, HostRing& ring)
      : flow_(context),
        shape_(operand.shape),
        host_(host),
        forward_(call.direction == 0),
        rank_(context.comm.rank()),
        first_(shape_.first(call.block)),
        height_(shape_.rows(call.block)),
        tiles_(shape_.tiles(call.block)),
        nrhs_(shape_.nrhs),
        x_(operand.x),
        panels_(panels),
        block_(call.block),
        cache_(shape_, rank_, operand.cache, operand.cached),
        ring_(ring) {
    for (int64_t s = 0; s < tiles_.nonempty(); ++s) {
      const int64_t p = Tile(s);
      if (tiles_.owner(p) == rank_ && Kept(p) == nullptr) streamed_.push_back(p);
    }
  }

  Status Run() {
    flow_.Fork();
    Stage stage(flow_.device(), "substitute", tiles_.nonempty(),
                ProductWork(height_, tiles_.columns(), nrhs_));
    for (size_t i = 0; i + 1 < kBuffers; ++i) LoadTile(i);
    for (int64_t s = 0; s < tiles_.nonempty(); ++s) {
      const int64_t p = Tile(s);
      const bool mine = tiles_.owner(p) == rank_;
      const T* kept = mine ? Kept(p) : nullptr;
      const bool streams = mine && kept == nullptr;
      if (streams) LoadTile(next_ + kBuffers - 1);
      Step<T> on(flow_, Stream::kMain, "substitute", p);
      if (streams) on.Reads(loaded_[next_ % kBuffers]);
      // A tile column that is streamed begins with its diagonal.
      const DiagonalTile<T> tile = {kept != nullptr ? kept : Buffer(next_),
                                    height_ - (kept != nullptr ? 0 : tiles_.offset(p)),
                                    tiles_.width(p)};
      forward_ ? Forward(on, s, p, mine, tile) : Backward(on, p, mine, tile);
      if (streams) ++next_;
      stage.Done(Stream::kMain, s + 1);
    }
    return flow_.Finish();
  }

 private:
  // The tile of step s.
  int64_t Tile(int64_t s) const { return forward_ ? s : tiles_.nonempty() - 1 - s; }
  T* Buffer(size_t i) const {
    return panels_ + static_cast<int64_t>(i % kBuffers) * tiles_.width() * shape_.n;
  }
  T* X(int64_t column) const { return x_ + column * nrhs_; }
  // Columns [begin, n) of X.
  Bytes2D From(int64_t begin) const { return Block(X(begin), nrhs_, nrhs_, shape_.n - begin); }

  // The diagonal of this rank's tile column on the device, or null. Columns are height_ apart.
  const T* Kept(int64_t p) const {
    const T* kept = cache_.at(block_, tiles_.slot(p));
    return kept == nullptr ? nullptr : kept + tiles_.offset(p);
  }

  // Loads this rank's i-th tile column of those that are streamed, from its diagonal tile down.
  void LoadTile(size_t i) {
    if (i >= streamed_.size()) return;
    const int64_t p = streamed_[i], begin = tiles_.offset(p);
    RingStep<T> on(&ring_, flow_, Stream::kLoad, "load tile", p);
    on.Gives(loaded_[i % kBuffers]);
    on.Load(host_.factor[block_], {begin, height_ - begin, host_.StoredColumn(p), tiles_.width(p)},
            Buffer(i), height_ - begin);
  }

  // The right-hand sides pass from owner to owner, and at last to all ranks.
  void Forward(Step<T>& on, int64_t s, int64_t p, bool mine, const DiagonalTile<T>& tile) {
    const int64_t begin = tiles_.offset(p), end = tiles_.offset(p + 1), width = end - begin;
    const bool last = s + 1 == tiles_.nonempty();
    if (mine) {
      if (s > 0 && tiles_.ranks() > 1) on.Recv(tiles_.owner(p - 1), From(first_));
      on.Trsm(Side::kRight, Op::kConjTrans, nrhs_, width, tile.l, tile.ld, X(first_ + begin),
              nrhs_);
      if (height_ > end) {
        on.ExactGemm(Op::kNone, Op::kConjTrans, nrhs_, height_ - end, width, -1, X(first_ + begin),
                     nrhs_, tile.l + width, tile.ld, 1, X(first_ + end), nrhs_);
      }
      // When they come back, all other ranks have taken them.
      if (!last && tiles_.ranks() > 1) on.Send(tiles_.owner(p + 1), From(first_));
    }
    if (last) on.Broadcast(tiles_.owner(p), From(first_));
  }

  void Backward(Step<T>& on, int64_t p, bool mine, const DiagonalTile<T>& tile) {
    const int64_t begin = tiles_.offset(p), end = tiles_.offset(p + 1), width = end - begin;
    if (mine) {
      if (height_ > end) {
        on.ExactGemm(Op::kNone, Op::kNone, nrhs_, width, height_ - end, -1, X(first_ + end), nrhs_,
                     tile.l + width, tile.ld, 1, X(first_ + begin), nrhs_);
      }
      on.Trsm(Side::kRight, Op::kNone, nrhs_, width, tile.l, tile.ld, X(first_ + begin), nrhs_);
    }
    on.Broadcast(tiles_.owner(p), Block(X(first_ + begin), nrhs_, nrhs_, width));
  }

  Flow flow_;
  const HostShape& shape_;
  const HostMatrix& host_;
  const bool forward_;
  const int rank_;
  const int64_t first_, height_;  // the block column's first column, and its rows
  const Tiles tiles_;
  const int64_t nrhs_;
  T* const x_;
  T* const panels_;
  const int64_t block_;
  const HostCache<const T> cache_;
  HostRing& ring_;
  std::vector<int64_t> streamed_;  // this rank's tiles that aren't cached, in the sweep's order
  size_t next_ = 0;                // of these
  std::array<Data, kBuffers> loaded_;
};

}  // namespace

template <typename T>
HostSolveSpace<T>::HostSolveSpace(const HostShape& shape)
    : panels(pieces.Reserve<T>(kBuffers * std::min(shape.tile, shape.rank_columns()) * shape.n)) {}

template <typename T>
Status HostSolveRoutine(const RankContext& context, const HostSolveOperand<T>& operand) {
  Device& device = context.device;
  const HostShape& shape = operand.shape;
  const HostSolveSpace<T> space(shape);
  Workspace workspace(space.pieces);
  HostCall call = {};
  std::shared_ptr<const HostMatrix> host;
  std::optional<HostRing> ring;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(ReadHostCall(device, operand.call, operand.find, &call, &host));
    JAXMG_RETURN_IF_ERROR(CheckHostMatrix("host_solve", *host, shape, DtypeName<T>(),
                                          /*with_right_hand_sides=*/false));
    ring.emplace(device, host->ring, host->LocalIndex(context.comm.rank()), host->local_ranks());
    JAXMG_RETURN_IF_ERROR(ring->Prepare());
    JAXMG_RETURN_IF_ERROR(workspace.Allocate(device));
    JAXMG_RETURN_IF_ERROR(device.ReserveHandles());
    return CopyIfApart(device, operand.x_source, operand.x, shape.n * shape.nrhs);
  };
  auto work = [&]() -> Status {
    if (shape.nrhs == 0) return Status::Ok();
    AnnounceWork(device,
                 ProductWork(shape.rows(call.block), shape.columns(call.block), shape.nrhs));
    BlockSweep<T> sweep(context, operand, *host, call, workspace.Get(space.panels), *ring);
    return sweep.Run();
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)         \
  template struct HostSolveSpace<T>; \
  template Status HostSolveRoutine(const RankContext&, const HostSolveOperand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
