#include "xla_ffi/engine/offload/host_getrs.h"

#include <algorithm>
#include <array>
#include <complex>
#include <optional>
#include <vector>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/lu/getrf.h"
#include "xla_ffi/engine/offload/host_cache.h"
#include "xla_ffi/engine/offload/transfer.h"

namespace jaxmg {
namespace {

// The buffers of streamed tile columns: one is used while two are loaded.
constexpr int64_t kBuffers = 3;

bool IsLower(LuSweep sweep) {
  return sweep == LuSweep::kLower || sweep == LuSweep::kLowerTrans ||
         sweep == LuSweep::kLowerConjTrans;
}

Op OpOf(LuSweep sweep) {
  if (sweep == LuSweep::kUpper || sweep == LuSweep::kLower) return Op::kNone;
  const bool plain = sweep == LuSweep::kUpperTrans || sweep == LuSweep::kLowerTrans;
  return plain ? Op::kTrans : Op::kConjTrans;
}

template <typename T>
class LuBlockSweep {
 public:
  LuBlockSweep(const RankContext& context, const HostGetrsOperand<T>& operand,
               const HostMatrix& host, const HostCall& call, T* panels, HostRing& ring)
      : context_(context),
        flow_(context),
        shape_(operand.shape),
        host_(host),
        lower_(IsLower(static_cast<LuSweep>(call.direction))),
        op_(OpOf(static_cast<LuSweep>(call.direction))),
        ascends_(lower_ == (op_ != Op::kNone)),
        triangle_(lower_ ? kUnitLower : kUpper),
        rank_(context.comm.rank()),
        first_(shape_.first(call.block)),
        tiles_(shape_.tiles(call.block)),
        nrhs_(shape_.nrhs),
        x_(operand.x),
        pivots_(operand.pivots + first_),
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
    if (lower_ && op_ != Op::kNone) JAXMG_RETURN_IF_ERROR(Interchange(Order::kForward));
    flow_.Fork();
    Stage stage(flow_.device(), "substitute", tiles_.nonempty(),
                ProductWork(Rows(), tiles_.columns(), nrhs_));
    for (size_t i = 0; i + 1 < kBuffers; ++i) LoadTile(i);
    for (int64_t s = 0; s < tiles_.nonempty(); ++s) {
      const int64_t p = Tile(s);
      const bool mine = tiles_.owner(p) == rank_;
      const bool streams = mine && Kept(p) == nullptr;
      if (streams) LoadTile(next_ + kBuffers - 1);
      Step<T> on(flow_, Stream::kMain, "substitute", p);
      if (streams) on.Reads(loaded_[next_ % kBuffers]);
      op_ == Op::kNone ? Gather(on, p, mine) : Scatter(on, s, mine);
      if (streams) ++next_;
      stage.Done(Stream::kMain, s + 1);
    }
    JAXMG_RETURN_IF_ERROR(flow_.Finish());
    return lower_ && op_ == Op::kNone ? Interchange(Order::kBackward) : Status::Ok();
  }

 private:
  // The tile of step s.
  int64_t Tile(int64_t s) const { return ascends_ ? s : tiles_.nonempty() - 1 - s; }
  T* Buffer(size_t i) const {
    return panels_ + static_cast<int64_t>(i % kBuffers) * tiles_.width() * shape_.n;
  }
  T* X(int64_t column) const { return x_ + column * nrhs_; }

  // The number of rows of the triangle in this block column.
  int64_t Rows() const { return lower_ ? shape_.n - first_ : first_ + tiles_.columns(); }
  // The first row of tile column p that is needed, and the number of these rows: L from the
  // diagonal down, U down to the diagonal tile.
  int64_t Begin(int64_t p) const { return lower_ ? Column(p) : 0; }
  int64_t Height(int64_t p) const { return lower_ ? shape_.n - Column(p) : Column(p + 1); }
  // The first column of tile p in the matrix.
  int64_t Column(int64_t p) const { return first_ + tiles_.offset(p); }

  // This rank's tile column of L on the device, from its diagonal down, or null. Columns are as
  // many elements apart as the block column has rows.
  const T* Kept(int64_t p) const {
    const T* kept = lower_ ? cache_.at(block_, tiles_.slot(p)) : nullptr;
    return kept == nullptr ? nullptr : kept + tiles_.offset(p);
  }

  // Interchanges columns of X by the pivots of the block column.
  Status Interchange(Order order) {
    return context_.device.lu<T>().SwapColumns(Stream::kMain, order, nrhs_, X(first_), nrhs_,
                                               tiles_.columns(), pivots_);
  }

  // Loads this rank's i-th tile column of the sweep.
  void LoadTile(size_t i) {
    if (i >= streamed_.size()) return;
    const int64_t p = streamed_[i], height = Height(p);
    RingStep<T> on(&ring_, flow_, Stream::kLoad, "load tile", p);
    on.Gives(loaded_[i % kBuffers]);
    on.Load(host_.factor[block_], {Begin(p), height, host_.StoredColumn(p), tiles_.width(p)},
            Buffer(i), height);
  }

  // Where the tile column of this step is: the diagonal tile, the other rows, and the columns of X
  // that match these.
  struct Parts {
    const T *diagonal, *others;
    int64_t ld, width, count;
    T *solved, *x;
  };
  Parts PartsOf(int64_t p) const {
    const T* const kept = Kept(p);
    const T* const column = kept != nullptr ? kept : Buffer(next_);
    const int64_t width = tiles_.width(p), count = Height(p) - width;
    const int64_t ld = kept != nullptr ? shape_.n - first_ : Height(p);
    const int64_t below = lower_ ? width : 0;
    return {column + (lower_ ? 0 : count),
            column + below,
            ld,
            width,
            count,
            X(Column(p)),
            X(Begin(p) + below)};
  }

  void Gather(Step<T>& on, int64_t p, bool mine) {
    if (mine) {
      const Parts tile = PartsOf(p);
      if (tile.count > 0) {
        on.ExactGemm(Op::kNone, Op::kNone, nrhs_, tile.width, tile.count, -1, tile.x, nrhs_,
                     tile.others, tile.ld, 1, tile.solved, nrhs_);
      }
      on.Trsm(Side::kRight, Op::kNone, nrhs_, tile.width, tile.diagonal, tile.ld, tile.solved,
              nrhs_, triangle_);
    }
    on.Broadcast(tiles_.owner(p), Block(X(Column(p)), nrhs_, nrhs_, tiles_.width(p)));
  }

  // The right-hand sides pass from owner to owner, and at last to all ranks.
  void Scatter(Step<T>& on, int64_t s, bool mine) {
    const int64_t p = Tile(s);
    const bool last = s + 1 == tiles_.nonempty(), several = tiles_.ranks() > 1;
    const Bytes2D all = Block(X(lower_ ? first_ : 0), nrhs_, nrhs_, Rows());
    if (mine) {
      const Parts tile = PartsOf(p);
      if (s > 0 && several) on.Recv(tiles_.owner(Tile(s - 1)), all);
      on.Trsm(Side::kRight, op_, nrhs_, tile.width, tile.diagonal, tile.ld, tile.solved, nrhs_,
              triangle_);
      if (tile.count > 0) {
        on.ExactGemm(Op::kNone, op_, nrhs_, tile.count, tile.width, -1, tile.solved, nrhs_,
                     tile.others, tile.ld, 1, tile.x, nrhs_);
      }
      // When they come back, all other ranks have taken them.
      if (!last && several) on.Send(tiles_.owner(Tile(s + 1)), all);
    }
    if (last) on.Broadcast(tiles_.owner(p), all);
  }

  const RankContext& context_;
  Flow flow_;
  const HostShape& shape_;
  const HostMatrix& host_;
  const bool lower_;
  const Op op_;
  const bool ascends_;
  const Triangle triangle_;
  const int rank_;
  const int64_t first_;  // the block column's first column
  const Tiles tiles_;
  const int64_t nrhs_;
  T* const x_;
  const int32_t* const pivots_;
  T* const panels_;
  const int64_t block_;
  const HostCache<const T> cache_;
  HostRing& ring_;
  std::vector<int64_t> streamed_;  // this rank's tiles that aren't cached, in the sweep's order
  size_t next_ = 0;                // of these
  std::array<Data, kBuffers> loaded_;
};

// The right-hand sides need not be those of the factorization.
}  // namespace

template <typename T>
HostGetrsSpace<T>::HostGetrsSpace(const HostShape& shape)
    : panels(pieces.Reserve<T>(kBuffers * std::min(shape.tile, shape.rank_columns()) * shape.n)) {}

template <typename T>
Status HostGetrsRoutine(const RankContext& context, const HostGetrsOperand<T>& operand) {
  Device& device = context.device;
  const HostShape& shape = operand.shape;
  const HostGetrsSpace<T> space(shape);
  Workspace workspace(space.pieces);
  HostCall call = {};
  std::shared_ptr<const HostMatrix> host;
  std::optional<HostRing> ring;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(ReadHostCall(device, operand.call, operand.find, &call, &host));
    JAXMG_RETURN_IF_ERROR(CheckHostMatrix("host_getrs", *host, shape, DtypeName<T>(),
                                          /*with_right_hand_sides=*/false));
    if (call.direction < 0 || call.direction >= kLuSweeps) {
      return Error(Code::kInvalidArgument, "host_getrs: there is no substitution ", call.direction);
    }
    ring.emplace(device, host->ring, host->LocalIndex(context.comm.rank()), host->local_ranks());
    JAXMG_RETURN_IF_ERROR(ring->Prepare());
    JAXMG_RETURN_IF_ERROR(workspace.Allocate(device));
    JAXMG_RETURN_IF_ERROR(device.ReserveHandles());
    return CopyIfApart(device, operand.x_source, operand.x, shape.n * shape.nrhs);
  };
  auto work = [&]() -> Status {
    if (shape.nrhs == 0) return Status::Ok();
    const bool lower = IsLower(static_cast<LuSweep>(call.direction));
    const int64_t end = shape.first(call.block) + shape.columns(call.block);
    AnnounceWork(device, ProductWork(lower ? shape.rows(call.block) : end,
                                     shape.columns(call.block), shape.nrhs));
    LuBlockSweep<T> sweep(context, operand, *host, call, workspace.Get(space.panels), *ring);
    return sweep.Run();
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)         \
  template struct HostGetrsSpace<T>; \
  template Status HostGetrsRoutine(const RankContext&, const HostGetrsOperand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
