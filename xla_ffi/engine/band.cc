#include "xla_ffi/engine/band.h"

#include <complex>

#include "xla_ffi/engine/flow.h"
#include "xla_ffi/engine/gather.h"

namespace jaxmg {
namespace {

// Panels that are applied at once have this many columns together, where they fit: deeper products.
constexpr int64_t kAppliedColumns = 128;

constexpr Triangle kUpper = {Uplo::kUpper};

// What a rank has of columns that are packed side by side, and where they are in the whole: runs of
// tiles of equal width, at equal distances.
struct TileRun {
  int64_t packed;  // columns before it
  int64_t offset;  // of its first tile in the whole
  int64_t width, stride, count;

  // Its columns, of `height` elements each: a tile is a column of the block.
  template <typename T>
  Bytes2D Packed(const T* columns, int64_t height) const {
    return Block(columns + packed * height, width * height, width * height, count);
  }
  template <typename T>
  Bytes2D Spread(const T* whole, int64_t height, int64_t first) const {
    return Block(whole + (offset - first) * height, stride * height, width * height, count);
  }
};

// Calls f(run) for the tiles of a rank from position `first` on.
template <typename F>
void ForTileRuns(const Tiles& tiles, int rank, int64_t first, const F& f) {
  const int64_t end = tiles.nonempty(), step = tiles.ranks();
  int64_t packed = 0;
  for (int64_t p = tiles.tile_in(rank, tiles.slots_before(rank, first)); p < end;) {
    TileRun run = {packed, tiles.offset(p), tiles.width(p), tiles.width(p), 1};
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

// The panel of tile column k. What comes behind the tile has `trailing` rows and columns from
// `behind` on; the panel's own rows begin at `top`, which is further down where the tile is
// narrower than the band: V has zeros there.
struct Panel {
  Panel(const Tiles& tiles, int64_t k)
      : owner(tiles.owner(k)),
        begin(tiles.offset(k)),
        width(tiles.width(k)),
        behind(begin + width),
        trailing(tiles.columns() - behind),
        top(std::min(begin + tiles.width(), tiles.columns())),
        rows(tiles.columns() - top),
        reflectors(std::min(rows, width)) {}
  const int owner;
  const int64_t begin, width, behind, trailing, top, rows, reflectors;
};

template <typename T>
class BandReduction {
 public:
  BandReduction(const RankContext& context, const Matrix<T>& matrix, T* factors, T* workspace)
      : flow_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        rank_(matrix.rank),
        n_(tiles_.columns()),
        b_(tiles_.width()),
        ldb_(BandRows(tiles_)),
        factors_(factors) {
    const int64_t own = tiles_.slots() * b_;
    auto take = [&](int64_t elements) {
      T* piece = workspace;
      workspace += elements;
      return piece;
    };
    message_ = take(b_ * (n_ + b_));
    y_ = take(b_ * n_);
    stack_ = take(3 * b_ * n_);
    own_y_ = take(b_ * own);
    own_stack_ = take(3 * b_ * own);
    small_ = take(b_ * b_);
    own_band_ = take(ldb_ * own);
  }

  static int64_t Workspace(const Tiles& tiles) {
    const int64_t n = tiles.columns(), b = tiles.width(), own = tiles.slots() * b;
    return b * (5 * n + 2 * b) + own * (4 * b + BandRows(tiles));
  }

  Status Run(T* band) {
    for (int64_t k = 0; k < tiles_.nonempty(); ++k) {
      const Panel panel(tiles_, k);
      if (panel.owner == rank_) Factor(k, panel);
      if (panel.reflectors == 0) continue;
      Spread(panel);
      Multiply(k + 1, panel);
      Combine(panel);
      Update(k + 1, panel);
    }
    GatherBand(band);
    return flow_.Finish();
  }

 private:
  T* factor(const Panel& panel) const { return factors_ + panel.begin * b_; }

  // What comes after tile column k, of this rank: f(columns, elements, packed columns before).
  template <typename F>
  void ForOwn(int64_t first, const F& f) const {
    int64_t packed = 0;
    matrix_.ForRuns(tiles_.slots_before(rank_, first),
                    tiles_.slots_before(rank_, tiles_.nonempty()),
                    [&](int64_t, T* data, int64_t columns) {
                      f(columns, data, packed);
                      packed += columns;
                    });
  }

  void Factor(int64_t k, const Panel& panel) {
    Step<T> on(flow_, Stream::kMain, "panel", k);
    const int64_t r = panel.reflectors;
    T* below = matrix_.tile(k, panel.top);
    if (r > 0) {
      on.QrPanel(panel.rows, panel.width, below, n_, factor(panel), b_);
      on.UnpackReflectors(panel.rows, r, below, n_, y_, panel.rows);
      on.WaitAllSent();  // the panel before
      on.SetZero(r, panel.top - panel.behind, message_, r);
      on.ConjTranspose(panel.rows, r, y_, panel.rows, message_ + (panel.top - panel.behind) * r, r);
      on.Copy(Block(message_ + panel.trailing * r, r, r, r), Block(factor(panel), b_, r, r));
    }
    on.PackBand(panel.top - panel.begin, panel.width, r, matrix_.tile(k, panel.begin), n_,
                own_band_ + tiles_.slot(k) * b_ * ldb_, ldb_);
  }

  // V^H, r x trailing, and T behind it.
  void Spread(const Panel& panel) {
    Step<T> on(flow_, Stream::kMain);
    const int64_t r = panel.reflectors, rows = panel.trailing;
    if (panel.owner != rank_) on.WaitAllSent();
    on.Broadcast(panel.owner, Block(message_, r, r, rows + r));
    if (panel.owner != rank_) {
      on.Copy(Block(factor(panel), b_, r, r), Block(message_ + rows * r, r, r, r));
    }
    on.Copy(Block(stack_ + r, 3 * r, r, rows), Block(message_, r, r, rows));
  }

  // Y^H = V^H M, each rank its columns: as Y = M^H V, which BLAS makes faster.
  void Multiply(int64_t first, const Panel& panel) {
    Step<T> on(flow_, Stream::kMain, "multiply", first - 1);
    const int64_t r = panel.reflectors;
    ForOwn(first, [&](int64_t columns, T* data, int64_t packed) {
      on.Gemm(Op::kConjTrans, Op::kConjTrans, columns, r, panel.trailing, 1, data + panel.behind,
              n_, message_, r, 0, own_stack_, columns);
      on.ConjTranspose(columns, r, own_stack_, columns, own_y_ + packed * r, r);
    });
    ForTileRuns(tiles_, rank_, first, [&](const TileRun& run) {
      for (int step = 1; step < tiles_.ranks(); ++step) {
        on.Send((rank_ + step) % tiles_.ranks(), run.Packed(own_y_, r));
      }
      on.Copy(run.Spread(y_, r, panel.behind), run.Packed(own_y_, r));
    });
    for (int step = 1; step < tiles_.ranks(); ++step) {
      const int peer = (rank_ - step + tiles_.ranks()) % tiles_.ranks();
      ForTileRuns(tiles_, peer, first,
                  [&](const TileRun& run) { on.Recv(peer, run.Spread(y_, r, panel.behind)); });
    }
  }

  // W^H = X^H - (X^H V) T V^H / 2, to both sides of V^H.
  void Combine(const Panel& panel) {
    Step<T> on(flow_, Stream::kMain);
    const int64_t r = panel.reflectors, rows = panel.trailing;
    const T* t = factor(panel);
    on.Trmm(Side::kLeft, Op::kConjTrans, r, rows, t, b_, y_, r, kUpper);
    on.Gemm(Op::kNone, Op::kConjTrans, r, r, rows, 1, y_, r, message_, r, 0, small_, r);
    on.Trmm(Side::kRight, Op::kNone, r, r, t, b_, small_, r, kUpper);
    on.Gemm(Op::kNone, Op::kNone, r, rows, r, Real<T>(-0.5), small_, r, message_, r, 1, y_, r);
    for (T* side : {stack_, stack_ + 2 * r}) {
      on.Copy(Block(side, 3 * r, r, rows), Block(y_, r, r, rows));
    }
  }

  // M -= V W^H + W V^H, as one product.
  void Update(int64_t first, const Panel& panel) {
    Step<T> on(flow_, Stream::kMain, "update", first - 1);
    const int64_t r = panel.reflectors;
    ForTileRuns(tiles_, rank_, first, [&](const TileRun& run) {
      on.Copy(run.Packed(own_stack_, 3 * r), run.Spread(stack_, 3 * r, panel.behind));
    });
    ForOwn(first, [&](int64_t columns, T* data, int64_t packed) {
      on.Gemm(Op::kConjTrans, Op::kNone, panel.trailing, columns, 2 * r, -1, stack_ + r, 3 * r,
              own_stack_ + packed * 3 * r, 3 * r, 1, data + panel.behind, n_);
    });
  }

  void GatherBand(T* band) {
    Step<T> on(flow_, Stream::kMain);
    // Columns were packed by slots; a narrow one leaves a gap behind it.
    auto for_tiles = [&](int rank, const auto& f) {
      for (int64_t p = rank; p < tiles_.nonempty(); p += tiles_.ranks()) f(p);
    };
    auto mine = [&](int64_t p) {
      return Block(own_band_ + tiles_.slot(p) * b_ * ldb_, ldb_, ldb_, tiles_.width(p));
    };
    auto place = [&](int64_t p) {
      return Block(band + tiles_.offset(p) * ldb_, ldb_, ldb_, tiles_.width(p));
    };
    for_tiles(rank_, [&](int64_t p) {
      if (rank_ == kRoot) return on.Copy(place(p), mine(p));
      on.Send(kRoot, mine(p));
    });
    if (rank_ != kRoot) return;
    for (int peer = 1; peer < tiles_.ranks(); ++peer) {
      for_tiles(peer, [&](int64_t p) { on.Recv(peer, place(p)); });
    }
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int rank_;
  const int64_t n_, b_, ldb_;
  T* const factors_;
  T *message_, *y_, *stack_, *own_y_, *own_stack_, *small_, *own_band_;
};

// Panels side by side in one WY form, from the last to the first.
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
    for (int64_t end = count, turn = 0; end > 0; ++turn) {
      const int64_t begin = std::max<int64_t>(0, end - most_);
      Apply(begin, end, v_[turn % 2]);
      end = begin;
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
    on.WaitAllSent();  // two turns ago, from here
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
      // T of both: T12 = -T1 (V1^H V2) T2.
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
