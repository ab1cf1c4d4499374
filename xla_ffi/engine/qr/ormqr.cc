#include "xla_ffi/engine/qr/ormqr.h"

#include <algorithm>
#include <complex>
#include <numeric>
#include <vector>

#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

// The number of columns to multiply at a time, in tile widths.
constexpr int64_t kTilesAtOnce = 4;

// Returns the tile columns that have reflectors, ascending or descending.
std::vector<int64_t> OrderOfTiles(const Tiles& tiles, int64_t n, bool ascends) {
  std::vector<int64_t> order(TilesWithReflectors(tiles, n));
  std::iota(order.begin(), order.end(), 0);
  if (!ascends) std::reverse(order.begin(), order.end());
  return order;
}

// Sends the block reflectors to all ranks, one tile column after the other.
template <typename T>
class ReflectorSweep {
 public:
  ReflectorSweep(const Matrix<T>& matrix, const T* factors, T* workspace)
      : matrix_(matrix),
        tiles_(matrix.tiles),
        factors_(factors),
        buffers_(workspace),
        size_(BlockReflectorSize(tiles_, matrix.rows)),
        work_(workspace + 2 * size_) {}

  static int64_t Workspace(const Tiles& tiles, int64_t n) {
    return 2 * BlockReflectorSize(tiles, n) + kTilesAtOnce * tiles.width() * tiles.width();
  }

  // Calls use(on, tile, h) for each tile column.
  template <typename Use>
  void ForEach(Flow& flow, bool ascends, const char* name, const Use& use) {
    const std::vector<int64_t> order = OrderOfTiles(tiles_, matrix_.rows, ascends);
    Stage stage(flow.device(), "multiply by Q", static_cast<int64_t>(order.size()),
                QrWork(matrix_.rows, tiles_.columns()));
    DoubleBuffer<T>(flow, buffers_, size_)
        .ForEach(
            order, [&](Step<T>& on, int64_t k, T* buffer) { Gather(on, k, buffer); }, name,
            [&](Step<T>& on, int64_t k, T* buffer) {
              const TileReflectors tile(tiles_, matrix_.rows, k);
              use(on, tile, BlockReflector<T>(tile, buffer));
            },
            &stage);
  }

  void Apply(Step<T>& on, Op op, const BlockReflector<T>& h, int64_t columns, T* c) {
    ApplyLeft(on, op, h, columns, c, matrix_.ld(), work_, kTilesAtOnce * tiles_.width());
  }

 private:
  void Gather(Step<T>& on, int64_t k, T* buffer) {
    const TileReflectors tile(tiles_, matrix_.rows, k);
    const BlockReflector<T> h(tile, buffer);
    if (tile.owner == matrix_.rank) {
      on.UnpackReflectors(tile.rows, tile.count, matrix_.tile(k, tile.begin), matrix_.ld(), h.v,
                          h.ld);
      CombineFactors(on, tile, factors_, h);
    }
    on.Broadcast(tile.owner, h.block());
  }

  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const T* const factors_;
  T* const buffers_;
  const int64_t size_;
  T* const work_;
};

}  // namespace

int64_t MultiplyRightWorkspace(const Tiles& tiles, int64_t n, int64_t nrhs) {
  return n * tiles.width() + nrhs * kPanelColumns;
}

template <typename T>
Status MultiplyRight(const RankContext& context, const Matrix<T>& matrix, const T* factors,
                     RightFactor factor, bool conjugates, int64_t nrhs, T* x, T* workspace) {
  if (nrhs == 0) return Status::Ok();
  const Tiles& tiles = matrix.tiles;
  const int64_t n = matrix.rows;
  const bool ascends = factor == RightFactor::kQ;
  const Bytes2D whole = Block(x, nrhs, nrhs, n);
  T* const v = workspace;
  T* const work = workspace + n * tiles.width();
  auto multiply = [&](Step<T>& on, const TileReflectors& tile) {
    const int64_t ld = tile.rows;
    on.UnpackReflectors(tile.rows, tile.count, matrix.tile(tile.k, tile.begin), matrix.ld(), v, ld);
    auto by_panel = [&](int64_t first, int64_t columns) {
      ApplyRight(on, ascends ? Op::kNone : Op::kConjTrans, nrhs, tile.rows - first, columns,
                 v + first * ld + first, ld, PanelFactor(factors, tile, first), kPanelColumns,
                 x + (tile.begin + first) * nrhs, nrhs, work);
    };
    if (ascends) return ForPanels(tile, by_panel);
    const int64_t last = (tile.count - 1) / kPanelColumns * kPanelColumns;
    for (int64_t first = last; first >= 0; first -= kPanelColumns) {
      by_panel(first, std::min<int64_t>(kPanelColumns, tile.count - first));
    }
  };
  auto conjugate = [&](Step<T>& on) {
    if (kIsComplex<T> && conjugates) on.Conjugate(nrhs, n, x, nrhs);
  };
  Flow flow(context);
  {
    Step<T> on(flow, Stream::kMain, "multiply by Q");
    const std::vector<int64_t> order = OrderOfTiles(tiles, n, ascends);
    for (size_t i = 0; i < order.size(); ++i) {
      const TileReflectors tile(tiles, n, order[i]);
      const bool first = i == 0, last = i + 1 == order.size();
      if (tile.owner == matrix.rank) {
        on.WaitAllSent();
        if (!first && tiles.ranks() > 1) on.Recv(tiles.owner(order[i - 1]), whole);
        if (first) conjugate(on);
        multiply(on, tile);
        if (last) {
          conjugate(on);
        } else if (tiles.ranks() > 1) {
          on.Send(tiles.owner(order[i + 1]), whole);
        }
      }
      if (!last) continue;
      on.WaitAllSent();
      on.Broadcast(tile.owner, whole);
    }
  }
  return flow.Finish();
}

int64_t OrmqrWorkspace(const Tiles& tiles, int64_t n) {
  return ReflectorSweep<double>::Workspace(tiles, n);
}

template <typename T>
Status Ormqr(const RankContext& context, const Matrix<T>& matrix, const T* factors, Op op,
             int64_t columns, T* z, T* workspace) {
  // Q^T z is conj(Q^H conj(z)).
  const int64_t n = matrix.rows;
  const bool conjugates = kIsComplex<T> && op == Op::kTrans && columns > 0;
  const bool adjoint = op != Op::kNone;
  Flow flow(context);
  if (conjugates) Step<T>(flow, Stream::kMain).Conjugate(n, columns, z, n);
  ReflectorSweep<T> sweep(matrix, factors, workspace);
  sweep.ForEach(flow, /*ascends=*/adjoint, "ormqr",
                [&](Step<T>& on, const TileReflectors& tile, const BlockReflector<T>& h) {
                  sweep.Apply(on, adjoint ? Op::kConjTrans : Op::kNone, h, columns, z + tile.begin);
                });
  if (conjugates) Step<T>(flow, Stream::kMain).Conjugate(n, columns, z, n);
  return flow.Finish();
}

template <typename T>
Status Orgqr(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const T* factors, T* workspace) {
  const Tiles& tiles = matrix.tiles;
  const int64_t n = matrix.rows, ld = matrix.ld();
  const int64_t end = tiles.slots_before(matrix.rank, TilesWithReflectors(tiles, n));
  Flow flow(context, precision);
  {
    Step<T> on(flow, Stream::kMain);
    matrix.ForRuns(end, tiles.slots_before(matrix.rank, tiles.nonempty()),
                   [&](int64_t, T* c, int64_t columns) { on.SetZero(n, columns, c, ld); });
  }
  ReflectorSweep<T> sweep(matrix, factors, workspace);
  sweep.ForEach(flow, /*ascends=*/false, "orgqr",
                [&](Step<T>& on, const TileReflectors& tile, const BlockReflector<T>& h) {
                  if (tile.owner == matrix.rank) {
                    on.SetZero(n, tile.width, matrix.tile(tile.k), ld);
                    // The ones of the identity are copied from V's diagonal.
                    on.Copy(Block(matrix.tile(tile.k, tile.begin), ld + 1, 1, tile.count),
                            Block(h.v, h.ld + 1, 1, tile.count));
                  }
                  matrix.ForRuns(tiles.slots_before(matrix.rank, tile.k), end,
                                 [&](int64_t, T* c, int64_t columns) {
                                   sweep.Apply(on, Op::kNone, h, columns, c + tile.begin);
                                 });
                });
  return flow.Finish();
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template Status MultiplyRight(const RankContext&, const Matrix<T>&, const T*, RightFactor, bool, \
                                int64_t, T*, T*);                                                  \
  template Status Ormqr(const RankContext&, const Matrix<T>&, const T*, Op, int64_t, T*, T*);      \
  template Status Orgqr(const RankContext&, Precision, const Matrix<T>&, const T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
