#include "xla_ffi/engine/offload/host_potri.h"

#include <algorithm>
#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/cholesky/potri.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/offload/host_panels.h"

namespace jaxmg {
namespace {

template <typename T>
class InverseColumn {
 public:
  InverseColumn(const RankContext& context, const HostPotriOperand<T>& operand,
                const HostMatrix& host, int64_t j, T* panels, T* words)
      : context_(context),
        host_(host),
        shape_(host.shape),
        j_(j),
        tiles_(shape_.tiles(j)),
        ld_(shape_.ld()),
        chunk_(shape_.chunk(context.device.tuning())),
        height_(tiles_.columns()),
        below_(shape_.rows(j) - height_),
        a_({tiles_, context.comm.rank(), ld_, operand.a, nullptr}),
        z_({tiles_, context.comm.rank(), ld_, operand.z, nullptr}),
        words_(words),
        flow_(context),
        panels_(flow_, host, nullptr, panels, chunk_),
        end_(tiles_.slots_before(a_.rank, tiles_.nonempty())) {
    for (int64_t k = j + 1; k < shape_.blocks(); ++k) {
      for (int64_t column = 0; column < shape_.columns(k); column += chunk_) {
        chunks_.push_back({k, column, std::min(chunk_, shape_.columns(k) - column)});
      }
    }
  }

  Status Run() {
    flow_.Fork();
    for (int64_t slot = 0; slot < end_; ++slot) LoadTile(slot);
    Step<T>(flow_, Stream::kMain).Reads(factor_);  // before panels, which the event would cover
    for (size_t i = 0; i < kLast; ++i) LoadChunk(i);
    DivideByDiagonal();
    MultiplyByInverse();
    for (int64_t p = a_.rank; p < tiles_.nonempty() && below_ > 0; p += tiles_.ranks()) {
      Store(p, height_, below_, under_);
    }
    JAXMG_RETURN_IF_ERROR(flow_.status());
    JAXMG_RETURN_IF_ERROR(Potri(context_, Precision::kHighest, a_, panels_.at(0)));
    SubtractFromDiagonal();
    for (int64_t p = a_.rank; p < tiles_.nonempty(); p += tiles_.ranks()) {
      Store(p, tiles_.offset(p), height_ - tiles_.offset(p), diagonal_);
    }
    flow_.Join();
    JAXMG_RETURN_IF_ERROR(flow_.status());
    if (tiles_.ranks() == 1) return Status::Ok();
    // Another rank's next call reads what this one has stored.
    JAXMG_RETURN_IF_ERROR(context_.device.blas<T>().SetZero(Stream::kMain, 1, 1, words_, 1));
    return AllGather(context_.comm, context_.device, Stream::kMain, words_, words_ + 1, sizeof(T));
  }

 private:
  // Columns [column, column + columns) of block column k of Z.
  struct Chunk {
    int64_t k, column, columns;
  };

  // The buffer of panels that also takes tile columns of B from other ranks.
  static constexpr size_t kLast = HostPanels<T>::kBuffers - 1;

  // Columns of this rank in its slots [0, end).
  int64_t Columns(int64_t end) const {
    int64_t columns = 0;
    for (int64_t s = 0; s < end; ++s) columns += tiles_.width(tiles_.tile_in(a_.rank, s));
    return columns;
  }

  void LoadTile(int64_t slot) {
    const int64_t p = tiles_.tile_in(a_.rank, slot), begin = tiles_.offset(p);
    Step<T> on(flow_, Stream::kLoad, "load tile", p);
    on.Writes(factor_);
    Load(on, host_.factor[j_],
         {begin, shape_.rows(j_) - begin, host_.StoredColumn(p), tiles_.width(p)},
         a_.tile(p, begin), ld_);
  }

  void LoadChunk(size_t i) {
    if (i >= chunks_.size()) return;
    const Chunk& chunk = chunks_[i];
    panels_.Load(i, chunk.k,
                 {chunk.column, shape_.rows(chunk.k) - chunk.column, chunk.column, chunk.columns});
  }

  void Store(int64_t p, int64_t row, int64_t rows, Data& data) {
    Step<T> on(flow_, Stream::kStore, "store tile", p);
    on.Reads(data);
    StoreToHost(on, host_.factor[j_], {row, rows, host_.StoredColumn(p), tiles_.width(p)},
                z_.tile(p, row), ld_);
  }

  // --- B -----------------------------------------------------------------------------------------

  // A tile column of B, on all ranks.
  struct Factor {
    const T* data;
    int64_t ld;
  };

  // Sends tile column p of B from its owner, which keeps it where it is, to all ranks. The last
  // buffer of panels holds it: other panels are loaded meanwhile.
  Factor Share(Step<T>& on, int64_t p) {
    if (tiles_.owner(p) == a_.rank) {
      T* const data = a_.tile(p, height_);
      if (tiles_.ranks() > 1) on.Broadcast(a_.rank, Block(data, ld_, below_, tiles_.width(p)));
      return {data, ld_};
    }
    panels_.AwaitTaken(on, kLast);
    T* const data = panels_.at(kLast);
    on.Broadcast(tiles_.owner(p), Block(data, below_, below_, tiles_.width(p)));
    return {data, below_};
  }

  // Replaces the rows of L below the diagonal block by B, from the last tile column to the first:
  // B_p = (L_p - sum over q > p of B_q L_qp) L_pp^-1.
  void DivideByDiagonal() {
    if (below_ == 0) return;
    Stage stage(flow_.device(), "solve", tiles_.nonempty(), SolveWork(height_, below_));
    for (int64_t q = tiles_.nonempty() - 1; q >= 0; --q) {
      const int64_t begin = tiles_.offset(q), width = tiles_.width(q);
      Step<T> on(flow_, Stream::kMain, "solve", q);
      on.Writes(panels_.data(kLast));
      if (tiles_.owner(q) == a_.rank) {
        on.Trsm(Side::kRight, Op::kNone, below_, width, a_.tile(q, begin), ld_, a_.tile(q, height_),
                ld_);
      }
      const Factor b = Share(on, q);
      const int64_t columns = Columns(tiles_.slots_before(a_.rank, q));
      if (columns > 0) {
        on.Gemm(Op::kNone, Op::kNone, below_, columns, width, -1, b.data, b.ld, a_.data + begin,
                ld_, 1, a_.data + height_, ld_);
      }
      stage.Done(Stream::kMain, tiles_.nonempty() - q);
    }
  }

  // --- Z -----------------------------------------------------------------------------------------

  // Computes this rank's columns of Z below the diagonal block, -Z B.
  void MultiplyByInverse() {
    const int64_t columns = Columns(end_), count = static_cast<int64_t>(chunks_.size());
    if (below_ == 0) return;
    Stage stage(flow_.device(), "multiply", count, ProductWork(below_, height_, below_));
    for (size_t i = 0; i < chunks_.size(); ++i) {
      LoadChunk(i + kLast);
      Step<T> on(flow_, Stream::kMain, "multiply", chunks_[i].k);
      on.Writes(under_, panels_.data(i));
      if (i == 0 && columns > 0) on.SetZero(below_, columns, z_.data + height_, ld_);
      panels_.AwaitTaken(on, i);  // it is overwritten
      if (columns > 0) MultiplyChunk(on, chunks_[i], panels_.at(i), columns);
      stage.Done(Stream::kMain, static_cast<int64_t>(i) + 1);
    }
  }

  void MultiplyChunk(Step<T>& on, const Chunk& chunk, T* data, int64_t columns) {
    const int64_t first = shape_.first(chunk.k) + chunk.column - shape_.first(j_);
    const int64_t rows = shape_.rows(j_) - first, after = first + chunk.columns;
    on.MirrorLower(chunk.columns, data, ld_);
    on.Gemm(Op::kNone, Op::kNone, rows, columns, chunk.columns, -1, data, ld_, a_.data + first, ld_,
            1, z_.data + first, ld_);
    if (rows == chunk.columns) return;
    on.Gemm(Op::kConjTrans, Op::kNone, chunk.columns, columns, rows - chunk.columns, -1,
            data + chunk.columns, ld_, a_.data + after, ld_, 1, z_.data + first, ld_);
  }

  // Computes this rank's columns of the diagonal block of Z: what Potri has left of L, and the
  // contribution of the rows below.
  void SubtractFromDiagonal() {
    const int64_t count = tiles_.nonempty();
    {
      Step<T> on(flow_, Stream::kMain, "copy");
      on.Writes(diagonal_);
      for (int64_t p = a_.rank; p < count; p += tiles_.ranks()) {
        const int64_t begin = tiles_.offset(p), width = tiles_.width(p);
        on.Copy(Block(z_.tile(p, begin), ld_, height_ - begin, width),
                Block(a_.tile(p, begin), ld_, height_ - begin, width));
      }
    }
    if (below_ == 0) return;
    Stage stage(flow_.device(), "subtract", count, SolveWork(height_, below_));
    for (int64_t q = 0; q < count; ++q) {
      Step<T> on(flow_, Stream::kMain, "subtract", q);
      on.Writes(diagonal_, panels_.data(kLast)).Reads(under_);
      const Factor b = Share(on, q);
      const int64_t columns = Columns(tiles_.slots_before(a_.rank, q + 1));
      if (columns > 0) {
        on.Gemm(Op::kConjTrans, Op::kNone, tiles_.width(q), columns, below_, -1, b.data, b.ld,
                z_.data + height_, ld_, 1, z_.data + tiles_.offset(q), ld_);
      }
      stage.Done(Stream::kMain, q + 1);
    }
  }

  const RankContext& context_;
  const HostMatrix& host_;
  const HostShape& shape_;
  const int64_t j_;
  const Tiles tiles_;
  const int64_t ld_, chunk_;
  const int64_t height_, below_;  // rows of the diagonal block, and below it
  // Only a rank's last tile column may be narrower, so its columns are contiguous.
  const Matrix<T> a_, z_;
  T* const words_;
  Flow flow_;
  HostPanels<T> panels_;
  const int64_t end_;  // the end of this rank's slots that have columns
  std::vector<Chunk> chunks_;
  // This block column of L; of Z, below and in its diagonal block.
  Data factor_, under_, diagonal_;
};

}  // namespace

template <typename T>
HostPotriSpace<T>::HostPotriSpace(const HostShape& shape, const Ranks& ranks) {
  const int64_t streamed =
      shape.blocks() > 1 ? HostPanels<T>::kBuffers * shape.chunk(ranks.tuning) : 0;
  words = pieces.Reserve<T>(ranks.size + 1);
  panels = pieces.Reserve<T>(std::max(
      streamed * shape.ld(), PotriWorkspace<T>(shape.tiles(0), shape.ld(), Precision::kHighest)));
}

template <typename T>
Status HostPotriRoutine(const RankContext& context, const HostPotriOperand<T>& operand) {
  Device& device = context.device;
  const HostPotriSpace<T> space(operand.shape, RanksOf(context));
  Workspace workspace(space.pieces);
  HostCall call = {};
  std::shared_ptr<const HostMatrix> host;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(ReadHostCall(device, operand.call, operand.find, &call, &host));
    JAXMG_RETURN_IF_ERROR(CheckHostMatrix("host_potri", *host, operand.shape, DtypeName<T>(),
                                          /*with_right_hand_sides=*/true));
    JAXMG_RETURN_IF_ERROR(workspace.Allocate(device));
    return device.ReserveHandles();
  };
  auto work = [&]() -> Status {
    const HostShape& shape = host->shape;
    const int64_t columns = shape.columns(call.block), below = shape.rows(call.block) - columns;
    AnnounceWork(device, ProductWork(below, columns, below) + 2 * SolveWork(columns, below) +
                             2 * FactorWork(columns));
    InverseColumn<T> column(context, operand, *host, call.block, workspace.Get(space.panels),
                            workspace.Get(space.words));
    return column.Run();
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)         \
  template struct HostPotriSpace<T>; \
  template Status HostPotriRoutine(const RankContext&, const HostPotriOperand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
