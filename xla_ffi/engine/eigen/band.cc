#include "xla_ffi/engine/eigen/band.h"

#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

// The number of columns of panels to apply together if they fit, for deeper products.
constexpr int64_t kAppliedColumns = 128;

constexpr Triangle kUpper = {Uplo::kUpper};

// A run of tiles of a rank with equal width and equal distances: their columns, which are packed
// contiguously, and the columns' positions in the whole matrix.
struct TileRun {
  int64_t tile;    // the first tile
  int64_t packed;  // packed columns before the run
  int64_t offset;  // of the first tile in the whole matrix
  int64_t width, stride, count;

  // The run's columns, of `height` elements each, as a block in which each column is a tile.
  template <typename T>
  Bytes2D Packed(const T* columns, int64_t height) const {
    return Block(columns + packed * height, width * height, width * height, count);
  }
  template <typename T>
  Bytes2D Spread(const T* whole, int64_t height, int64_t first) const {
    return Block(whole + (offset - first) * height, stride * height, width * height, count);
  }
};

// Calls f(run) for the runs of a rank's tiles from position `first` on.
template <typename F>
void ForTileRuns(const Tiles& tiles, int rank, int64_t first, const F& f) {
  const int64_t end = tiles.nonempty(), step = tiles.ranks();
  int64_t packed = 0;
  for (int64_t p = tiles.tile_in(rank, tiles.slots_before(rank, first)); p < end;) {
    TileRun run = {p, packed, tiles.offset(p), tiles.width(p), tiles.width(p), 1};
    for (p += step; p < end && tiles.width(p) == run.width; p += step) {
      const int64_t stride = tiles.offset(p) - run.offset - (run.count - 1) * run.stride;
      if (run.count == 1) run.stride = stride;
      if (stride != run.stride) break;
      ++run.count;
    }
    packed += run.width * run.count;
    f(run);
  }
}

// The panel of tile column k. The trailing matrix has `trailing` rows and columns and begins at
// `behind`. The panel's own rows begin at `top`, which is further down if the tile is narrower than
// the band; V is zero between `behind` and `top`.
struct Panel {
  Panel(const Tiles& tiles, int64_t k)
      : k(k),
        owner(tiles.owner(k)),
        begin(tiles.offset(k)),
        width(tiles.width(k)),
        behind(begin + width),
        trailing(tiles.columns() - behind),
        top(std::min(begin + tiles.width(), tiles.columns())),
        rows(tiles.columns() - top),
        reflectors(std::min(rows, width)) {}
  const int64_t k;
  const int owner;
  const int64_t begin, width, behind, trailing, top, rows, reflectors;
};

// The streams that receive rows of Y from the other ranks in turn, a few at the same time.
constexpr std::array<Stream, 3> kReceiving = {Stream::kCopy, Stream::kNext, Stream::kSide};

template <typename T>
class BandReduction {
 public:
  BandReduction(const RankContext& context, const Matrix<T>& matrix, T* factors, T* workspace)
      : flow_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        rank_(matrix.rank),
        alone_(tiles_.ranks() == 1),
        block_(context.device.tuning().eigen.triangle_columns),
        n_(tiles_.columns()),
        b_(tiles_.width()),
        ldb_(BandRows(tiles_)),
        factors_(factors),
        columns_(tiles_.slots()),
        received_(kReceiving.size()) {
    const int64_t own = tiles_.slots() * b_;
    auto take = [&](int64_t elements) {
      T* piece = workspace;
      workspace += elements;
      return piece;
    };
    message_ = take(b_ * (n_ + b_));
    unpacked_ = take(b_ * n_);
    y_ = take(b_ * n_);
    stack_ = take(3 * b_ * n_);
    own_y_ = take(b_ * own);
    own_stack_ = take(3 * b_ * own);
    small_ = take(b_ * b_);
    own_band_ = take(ldb_ * own);
  }

  static int64_t Workspace(const Tiles& tiles) {
    const int64_t n = tiles.columns(), b = tiles.width(), own = tiles.slots() * b;
    return b * (6 * n + 2 * b) + own * (4 * b + BandRows(tiles));
  }

  // kPanel factors and sends the next panel while kMain updates the columns after it.
  Status Run(T* band) {
    flow_.Fork();
    const Panel first(tiles_, 0);
    Mine(first) ? Factor(first) : Receive(first);
    Stage stage(flow_.device(), "reduce to a band", tiles_.nonempty(), BandWork(n_), kShrinks);
    for (int64_t k = 0; k < tiles_.nonempty(); ++k) {
      const Panel panel(tiles_, k), next(tiles_, k + 1);
      Keep(panel);
      if (panel.reflectors == 0) continue;
      Multiply(panel);
      Combine(panel, next);
      if (Mine(next)) {
        UpdateNext(panel, next);
        Factor(next);
      }
      Update(panel, next);
      if (!Mine(next)) Receive(next);
      stage.Done(Stream::kMain, k + 1);
    }
    flow_.Join();
    GatherBand(band);
    return flow_.Finish();
  }

 private:
  bool Mine(const Panel& panel) const { return panel.owner == rank_; }

  // The message from a panel's owner to all: V^H, r x trailing, followed by T.
  T* FactorIn(const Panel& panel) const { return message_ + panel.trailing * panel.reflectors; }
  Bytes2D Message(const Panel& panel) const {
    const int64_t r = panel.reflectors;
    return Block(message_, r, r, panel.trailing + r);
  }

  Data& Column(int64_t k) { return columns_[tiles_.slot(k)]; }

  // This rank's slots after tile column k: the first, and the end.
  int64_t FirstBehind(int64_t k) const { return tiles_.slots_before(rank_, k + 1); }
  int64_t EndOfSlots() const { return tiles_.slots_before(rank_, tiles_.nonempty()); }

  // Calls f(columns, elements, packed columns before) for the columns in these slots.
  template <typename F>
  void ForOwnBehind(int64_t k, const F& f) const {
    int64_t packed = 0;
    matrix_.ForRuns(FirstBehind(k), EndOfSlots(), [&](int64_t, T* data, int64_t columns) {
      f(columns, data, packed);
      packed += columns;
    });
  }

  // Whether a single rank updates only the rows from each block's own columns on.
  bool triangular() const { return alone_ && block_ > 0; }
  // Calls f(begin, columns) for the blocks of columns from `first` on. Blocks end at multiples of
  // block_.
  template <typename F>
  void ForBlocks(int64_t first, const F& f) const {
    for (int64_t begin = first; begin < n_;) {
      const int64_t end = std::min(n_, (begin / block_ + 1) * block_);
      f(begin, end - begin);
      begin = end;
    }
  }

  void Factor(const Panel& panel) {
    const int64_t r = panel.reflectors, above = panel.top - panel.behind;
    if (r == 0) return;
    T* below = matrix_.tile(panel.k, panel.top);
    Step<T> on(flow_, Stream::kPanel, "panel", panel.k);
    on.Writes(Column(panel.k)).Gives(panel_);
    on.QrPanel(panel.rows, panel.width, below, n_, FactorIn(panel), r);
    on.UnpackReflectors(panel.rows, r, below, n_, unpacked_, panel.rows);
    on.SetZero(r, above, message_, r);
    on.ConjTranspose(panel.rows, r, unpacked_, panel.rows, message_ + above * r, r);
    on.Broadcast(rank_, Message(panel));
    flow_.NoteSent(message_room_);
  }

  void Receive(const Panel& panel) {
    if (panel.reflectors == 0) return;
    Step<T> on(flow_, Stream::kPanel);
    on.AwaitsSent(message_room_).Gives(panel_);
    on.Broadcast(panel.owner, Message(panel));
  }

  // Copies a received panel: its part of the band, T, and V^H to the stack that updates read, after
  // the previous update. Multiply does not wait for these copies.
  void Keep(const Panel& panel) {
    const int64_t r = panel.reflectors;
    Step<T> on(flow_, Stream::kPanel);
    if (Mine(panel)) {
      on.Reads(Column(panel.k));
      on.PackBand(panel.top - panel.begin, panel.width, r, matrix_.tile(panel.k, panel.begin), n_,
                  own_band_ + tiles_.slot(panel.k) * b_ * ldb_, ldb_);
    }
    if (r == 0) return;
    on.Reads(panel_).Gives(stack_v_);
    on.Copy(Block(factors_ + panel.begin * b_, b_, r, r), Block(FactorIn(panel), r, r, r));
    on.Copy(Block(stack_ + r, 3 * r, r, panel.trailing), Block(message_, r, r, panel.trailing));
  }

  // Y^H = V^H M for the rank's columns, computed as Y = M^H V, which is faster in BLAS.
  void Multiply(const Panel& panel) {
    const int64_t r = panel.reflectors;
    if (triangular()) return MultiplyTriangle(panel);
    {
      Step<T> on(flow_, Stream::kMain, "multiply", panel.k);
      on.AwaitsSent(y_room_).Reads(columns_, FirstBehind(panel.k), EndOfSlots()).Reads(panel_);
      T* y = alone_ ? y_ : own_y_;
      ForOwnBehind(panel.k, [&](int64_t columns, T* data, int64_t packed) {
        on.Gemm(Op::kConjTrans, Op::kConjTrans, columns, r, panel.trailing, 1, data + panel.behind,
                n_, message_, r, 0, own_stack_, columns);
        on.ConjTranspose(columns, r, own_stack_, columns, y + packed * r, r);
      });
      if (alone_) return;
      auto for_runs = [&](const auto& f) { ForTileRuns(tiles_, rank_, panel.k + 1, f); };
      for_runs([&](const TileRun& run) { on.Broadcast(rank_, run.Packed(own_y_, r)); });
      for_runs([&](const TileRun& run) {
        on.Copy(run.Spread(y_, r, panel.behind), run.Packed(own_y_, r));
      });
      flow_.NoteSent(y_room_);
    }
    for (int step = 1; step < tiles_.ranks(); ++step) {
      const int peer = (rank_ - step + tiles_.ranks()) % tiles_.ranks();
      const size_t turn = step % kReceiving.size();
      Step<T> on(flow_, kReceiving[turn]);
      on.Writes(received_[turn]);
      ForTileRuns(tiles_, peer, panel.k + 1,
                  [&](const TileRun& run) { on.Recv(peer, run.Spread(y_, r, panel.behind)); });
    }
  }

  // As Multiply, but reads only the lower triangle of M. The part of a block of columns below its
  // diagonal block is used twice: its adjoint is the part of M to the right of the diagonal block.
  void MultiplyTriangle(const Panel& panel) {
    const int64_t r = panel.reflectors, rows = panel.trailing;
    Step<T> on(flow_, Stream::kMain, "multiply", panel.k);
    on.Reads(columns_, FirstBehind(panel.k), EndOfSlots()).Reads(panel_);
    Real<T> beta = 0;  // the first block writes all of Y
    ForBlocks(panel.behind, [&](int64_t begin, int64_t columns) {
      const int64_t before = begin - panel.behind, below = before + columns;
      const T* block = matrix_.data + begin * n_ + begin;
      const T* v = message_ + before * r;
      on.Gemm(Op::kConjTrans, Op::kConjTrans, columns, r, rows - before, 1, block, n_, v, r, beta,
              own_stack_ + before, rows);
      on.Gemm(Op::kNone, Op::kConjTrans, rows - below, r, columns, 1, block + columns, n_, v, r,
              beta, own_stack_ + below, rows);
      beta = 1;
    });
    on.ConjTranspose(rows, r, own_stack_, rows, y_, r);
  }

  // W^H = X^H - (X^H V) T V^H / 2, written to both sides of V^H in the stack. The left side holds
  // only the next tile column's part, for which other ranks wait.
  void Combine(const Panel& panel, const Panel& next) {
    Step<T> on(flow_, Stream::kMain);
    const int64_t r = panel.reflectors, rows = panel.trailing;
    const T* t = FactorIn(panel);
    on.Writes(received_, 0, received_.size()).Reads(panel_).Gives(stack_w_);
    on.Trmm(Side::kLeft, Op::kConjTrans, r, rows, t, r, y_, r, kUpper);
    on.Gemm(Op::kNone, Op::kConjTrans, r, r, rows, 1, y_, r, message_, r, 0, small_, r);
    on.Trmm(Side::kRight, Op::kNone, r, r, t, r, small_, r, kUpper);
    on.Gemm(Op::kNone, Op::kNone, r, rows, r, Real<T>(-0.5), small_, r, message_, r, 1, y_, r);
    on.Copy(Block(stack_ + 2 * r, 3 * r, r, rows), Block(y_, r, r, rows));
    on.Copy(Block(stack_, 3 * r, r, next.width), Block(y_, r, r, next.width));
  }

  // M -= V W^H + W V^H as one product, for the next tile column.
  void UpdateNext(const Panel& panel, const Panel& next) {
    Step<T> on(flow_, Stream::kPanel, "update next", panel.k);
    on.Reads(stack_v_, stack_w_).Writes(Column(next.k));
    const int64_t r = panel.reflectors;
    on.Gemm(Op::kConjTrans, Op::kNone, panel.trailing, next.width, 2 * r, -1, stack_ + r, 3 * r,
            stack_, 3 * r, 1, matrix_.tile(next.k, panel.behind), n_);
  }

  // The same update for all columns after the next tile column. The rows beside that column's
  // diagonal tile are not read any more.
  void Update(const Panel& panel, const Panel& next) {
    const int64_t r = panel.reflectors, ld = 3 * r;
    Step<T> on(flow_, Stream::kMain, "update", panel.k);
    on.Reads(stack_v_, stack_w_).Reads(received_, 0, received_.size());
    on.Writes(columns_, FirstBehind(next.k), EndOfSlots());
    const T* behind = stack_ + next.width * ld;
    on.Copy(Block(behind, ld, r, next.trailing), Block(y_ + next.width * r, r, r, next.trailing));
    if (!alone_) {
      ForTileRuns(tiles_, rank_, next.k + 1, [&](const TileRun& run) {
        on.Copy(run.Packed(own_stack_, ld), run.Spread(stack_, ld, panel.behind));
      });
    }
    if (triangular()) {
      return ForBlocks(next.behind, [&](int64_t begin, int64_t columns) {
        const T* rows = behind + (begin - next.behind) * ld;
        on.Gemm(Op::kConjTrans, Op::kNone, n_ - begin, columns, 2 * r, -1, rows + r, ld, rows, ld,
                1, matrix_.data + begin * n_ + begin, n_);
      });
    }
    const T* own = alone_ ? behind : own_stack_;
    ForOwnBehind(next.k, [&](int64_t columns, T* data, int64_t packed) {
      on.Gemm(Op::kConjTrans, Op::kNone, next.trailing, columns, 2 * r, -1, behind + r, ld,
              own + packed * ld, ld, 1, data + next.behind, n_);
    });
  }

  void GatherBand(T* band) {
    Step<T> on(flow_, Stream::kMain);
    // Packed by slots, so a narrow tile is followed by a gap.
    ForTileRuns(tiles_, rank_, 0, [&](const TileRun& run) {
      const Bytes2D mine = Block(own_band_ + tiles_.slot(run.tile) * b_ * ldb_, b_ * ldb_,
                                 run.width * ldb_, run.count);
      if (rank_ != kRoot) return on.Send(kRoot, mine);
      on.Copy(run.Spread(band, ldb_, 0), mine);
    });
    if (rank_ != kRoot) return;
    for (int peer = 1; peer < tiles_.ranks(); ++peer) {
      ForTileRuns(tiles_, peer, 0,
                  [&](const TileRun& run) { on.Recv(peer, run.Spread(band, ldb_, 0)); });
    }
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int rank_;
  const bool alone_;     // a single rank's columns are contiguous
  const int64_t block_;  // columns of a block if only a triangle is updated
  const int64_t n_, b_, ldb_;
  T* const factors_;
  T *message_, *unpacked_, *y_, *stack_, *own_y_, *own_stack_, *small_, *own_band_;
  std::vector<Data> columns_;   // by slot
  Data panel_;                  // message_
  Data stack_v_, stack_w_;      // the stack's rows; only kMain reads the rest
  std::vector<Data> received_;  // Y, by the streams of kReceiving; later W
  Room message_room_, y_room_;  // message_, own_y_
};

// Applies several panels together, in one WY form, from the last to the first.
template <typename T>
class BandProduct {
 public:
  BandProduct(const RankContext& context, const Matrix<T>& matrix, const T* factors,
              int64_t columns, T* z, T* workspace)
      : flow_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        n_(tiles_.columns()),
        b_(tiles_.width()),
        most_(MostPanels(tiles_)),
        factors_(factors),
        columns_(columns),
        z_(z) {
    for (T*& v : v_) {
      v = workspace;
      workspace += n_ * most_ * b_;
    }
    t_ = workspace;
    g_ = t_ + most_ * b_ * most_ * b_;
  }

  static int64_t Workspace(const Tiles& tiles, int64_t columns) {
    const int64_t width = MostPanels(tiles) * tiles.width();
    return width * (2 * tiles.columns() + width + columns);
  }

  Status Run() {
    const int64_t count = tiles_.nonempty();
    Stage stage(flow_.device(), "apply the band's reflectors", count,
                BackWork(n_, columns_ * tiles_.ranks()));
    for (int64_t end = count, turn = 0; end > 0; ++turn) {
      const int64_t begin = std::max<int64_t>(0, end - most_);
      Apply(begin, end, v_[turn % 2]);
      end = begin;
      stage.Done(Stream::kMain, count - end);
    }
    return flow_.Finish();
  }

 private:
  static int64_t MostPanels(const Tiles& tiles) {
    return std::max<int64_t>(1, kAppliedColumns / tiles.width());
  }

  void Apply(int64_t begin, int64_t end, T* v) {
    Step<T> on(flow_, Stream::kMain, "apply", begin);
    const int64_t top = tiles_.offset(begin + 1), height = n_ - top, ldt = most_ * b_;
    on.WaitAllSent();  // Waits for the sends of two iterations ago.
    int64_t width = 0;
    for (int64_t k = begin; k < end; ++k) {
      const Panel panel(tiles_, k);
      const int64_t r = panel.reflectors;
      if (r == 0) continue;
      T* columns = v + width * height;
      T* below = columns + panel.top - top;
      on.SetZero(panel.top - top, r, columns, height);
      if (panel.owner == matrix_.rank) {
        on.UnpackReflectors(panel.rows, r, matrix_.tile(k, panel.top), n_, below, height);
      }
      on.Broadcast(panel.owner, Block(below, height, panel.rows, r));
      // Combines T of these panels with T of the previous ones: T12 = -T1 (V1^H V2) T2.
      T* t12 = t_ + width * ldt;
      const T* t2 = factors_ + panel.begin * b_;
      on.Copy(Block(t12 + width, ldt, r, r), Block(t2, b_, r, r));
      if (width > 0) {
        on.Gemm(Op::kConjTrans, Op::kNone, width, r, panel.rows, -1, v + panel.top - top, height,
                below, height, 0, t12, ldt);
        on.Trmm(Side::kLeft, Op::kNone, width, r, t_, ldt, t12, ldt, kUpper);
        on.Trmm(Side::kRight, Op::kNone, width, r, t2, b_, t12, ldt, kUpper);
      }
      width += r;
    }
    if (width == 0 || columns_ == 0) return;
    T* z = z_ + top * columns_;
    on.Gemm(Op::kNone, Op::kNone, columns_, width, height, 1, z, columns_, v, height, 0, g_,
            columns_);
    on.Trmm(Side::kRight, Op::kConjTrans, columns_, width, t_, ldt, g_, columns_, kUpper);
    on.Gemm(Op::kNone, Op::kConjTrans, columns_, height, width, -1, g_, columns_, v, height, 1, z,
            columns_);
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int64_t n_, b_, most_;
  const T* const factors_;
  const int64_t columns_;
  T* const z_;
  T* v_[2];
  T *t_, *g_;
};

}  // namespace

int64_t ReduceToBandWorkspace(const Tiles& tiles) {
  return BandReduction<double>::Workspace(tiles);
}

int64_t ApplyBandWorkspace(const Tiles& tiles, int64_t columns) {
  return BandProduct<double>::Workspace(tiles, columns);
}

template <typename T>
Status ReduceToBand(const RankContext& context, const Matrix<T>& matrix, T* factors, T* band,
                    T* workspace) {
  return BandReduction<T>(context, matrix, factors, workspace).Run(band);
}

template <typename T>
Status ApplyBand(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                 int64_t columns, T* z, T* workspace) {
  return BandProduct<T>(context, matrix, factors, columns, z, workspace).Run();
}

#define JAXMG_INSTANTIATE(T)                                                      \
  template Status ReduceToBand(const RankContext&, const Matrix<T>&, T*, T*, T*); \
  template Status ApplyBand(const RankContext&, const Matrix<T>&, const T*, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
