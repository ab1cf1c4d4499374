#include "xla_ffi/engine/qr/geqrf.h"

#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/chain.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

// The number of columns to update at a time.
constexpr int64_t kColumnsAtOnce = 4096;

template <typename T>
class QrFactorization {
 public:
  QrFactorization(const RankContext& context, Precision precision, const Matrix<T>& matrix,
                  const FurtherColumns<T>& further, T* factors, T* tau, T* workspace)
      : flow_(context, precision),
        matrix_(matrix),
        tiles_(matrix.tiles),
        chain_(matrix.rank, tiles_.ranks(), flow_.tuning()),
        further_(further),
        share_(ShareOfColumns(further.count, tiles_.ranks())),
        factors_(factors),
        tau_(tau),
        count_(TilesWithReflectors(tiles_, matrix.rows)),
        panel_(count_),
        column_(tiles_.slots()) {
    auto take = [&](int64_t elements) {
      T* piece = workspace;
      workspace += elements;
      return piece;
    };
    const int64_t width = tiles_.width();
    for (T*& message : messages_) message = take(BlockReflectorSize(tiles_, matrix.rows));
    column_work_ = take(ColumnWork(width));
    next_work_ = take(width * width);
    work_ = take(ColumnsAtOnce(tiles_) * width);
    further_work_ = take(share_ * width);
  }

  static int64_t Workspace(const Tiles& tiles, int64_t n, int64_t further) {
    const int64_t width = tiles.width();
    return 2 * BlockReflectorSize(tiles, n) + ColumnWork(width) +
           (width + ColumnsAtOnce(tiles) + ShareOfColumns(further, tiles.ranks())) * width;
  }

  Status Run() {
    Begin();
    flow_.Fork();
    if (count_ > 0 && Mine(0)) FactorAndSend(0);
    const double further = 2 * SolveWork(matrix_.rows, further_.count);
    Stage stage(flow_.device(), "factor", count_, QrWork(matrix_.rows, tiles_.columns()) + further,
                kShrinks);
    for (int64_t k = 0; k < count_; ++k) {
      if (!Mine(k)) Receive(k);
      flow_.NoteSent(RoomOf(k));
      if (k + 1 < count_ && Mine(k + 1)) {
        UpdateNext(k);
        FactorAndSend(k + 1);
      }
      UpdateTrailing(k);
      UpdateFurther(k);
      Release(k);
      stage.Done(Stream::kMain, k + 1);
    }
    flow_.Join();
    End();
    return flow_.Finish();
  }

 private:
  // Returns the largest number of elements that ApplyWithin needs: i * (width - i) is largest at i
  // = width / 2.
  static int64_t ColumnWork(int64_t width) { return (width * width + 3) / 4; }

  static int64_t ColumnsAtOnce(const Tiles& tiles) {
    return std::min(kColumnsAtOnce, tiles.slots() * tiles.width());
  }

  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  TileReflectors Tile(int64_t k) const { return {tiles_, matrix_.rows, k}; }
  BlockReflector<T> Reflector(int64_t k) const { return {Tile(k), messages_[k % 2]}; }
  Room& RoomOf(int64_t k) { return rooms_[k % 2]; }
  // Returns the panels' T of tile column k.
  Bytes2D Factors(int64_t k) const {
    const TileReflectors tile = Tile(k);
    return Block(PanelFactor(factors_, tile, 0), kPanelColumns, kPanelColumns, tile.count);
  }
  // FirstOf returns the first right-hand side of a rank's share, ShareOf the whole share.
  int64_t FirstOf(int rank) const { return std::min(rank * share_, further_.count); }
  Bytes2D ShareOf(int rank) const {
    const int64_t first = FirstOf(rank);
    return Block(further_.data + first, further_.count, FirstOf(rank + 1) - first, matrix_.rows);
  }

  // Conjugates this rank's share of the right-hand sides. Called before and after the products with
  // Q, because (Q^H B)^T = B^T conj(Q).
  void ConjugateShare(Step<T>& on) {
    const int64_t first = FirstOf(matrix_.rank), count = FirstOf(matrix_.rank + 1) - first;
    if (!kIsComplex<T> || count == 0) return;
    on.Conjugate(count, matrix_.rows, further_.data + first, further_.count);
  }

  void Begin() {
    Step<T> on(flow_, Stream::kMain);
    on.SetZero(kPanelColumns, std::min(matrix_.rows, tiles_.columns()), factors_, kPanelColumns);
    ConjugateShare(on);
  }

  void End() {
    Step<T> on(flow_, Stream::kMain);
    ConjugateShare(on);
    for (int rank = 0; further_.count > 0 && rank < tiles_.ranks(); ++rank) {
      if (FirstOf(rank) < FirstOf(rank + 1)) on.Broadcast(rank, ShareOf(rank));
    }
    for (int64_t k = 0; tau_ != nullptr && k < count_; ++k) {
      const TileReflectors tile = Tile(k);
      ForPanels(tile, [&](int64_t first, int64_t columns) {
        on.Copy(Block(tau_ + tile.begin + first, 1, 1, columns),
                Block(PanelFactor(factors_, tile, first), kPanelColumns + 1, 1, columns));
      });
    }
  }

  // --- Messages between ranks -----------------------------------------------------------------

  void Receive(int64_t k) {
    Step<T> on(flow_, Stream::kCopy, "receive reflectors", k);
    on.Takes(RoomOf(k)).Gives(panel_[k]);
    chain_.Receive(on, tiles_.owner(k), Reflector(k).block());
    chain_.Receive(on, tiles_.owner(k), Factors(k));
  }

  // Releases the reflectors of tile column k, which are not needed any more.
  void Release(int64_t k) {
    Step<T> on(flow_, Stream::kMain);
    on.Writes(panel_[k]).AwaitsSent(RoomOf(k)).Frees(RoomOf(k));
  }

  // --- A tile column ---------------------------------------------------------------------------

  void FactorAndSend(int64_t k) {
    const TileReflectors tile = Tile(k);
    const BlockReflector<T> h = Reflector(k);
    Step<T> on(flow_, Stream::kPanel, "geqrf", k);
    on.Takes(RoomOf(k)).Writes(column_[tiles_.slot(k)]).Gives(panel_[k]);
    on.SetZero(h.count, h.count, h.t, h.ld);
    FactorColumns(on, tile, h, 0, h.count);
    ApplyWithin(on, tile, h, 0, h.count, tile.width - h.count);
    chain_.Send(on, h.block());
    chain_.Send(on, Factors(k));
  }

  // Factors `columns` columns of a tile column from `first` on, by halves: applies the reflectors
  // of the first half to the second half in products that are as large as possible. The diagonal of
  // column `first` is in row `first`.
  void FactorColumns(Step<T>& on, const TileReflectors& tile, const BlockReflector<T>& h,
                     int64_t first, int64_t columns) {
    if (columns <= kPanelColumns) return FactorPanel(on, tile, h, first, columns);
    const int64_t half = FirstHalf(columns);
    FactorColumns(on, tile, h, first, half);
    ApplyWithin(on, tile, h, first, half, columns - half);
    FactorColumns(on, tile, h, first + half, columns - half);
    CombineHalves(on, h, first, half, columns);
  }

  void FactorPanel(Step<T>& on, const TileReflectors& tile, const BlockReflector<T>& h,
                   int64_t first, int64_t columns) {
    const int64_t rows = tile.rows - first;
    T* a = Within(tile, first, first);
    T* v = h.v + first * h.ld;
    on.QrPanel(rows, columns, a, matrix_.ld(), PanelFactor(factors_, tile, first),
               int64_t{kPanelColumns});
    if (first > 0) on.SetZero(first, columns, v, h.ld);
    on.UnpackReflectors(rows, columns, a, matrix_.ld(), v + first, h.ld);
    CopyPanelFactor(on, tile, factors_, h, first, columns);
  }

  // Applies the reflectors of `columns` columns from `first` on to the next `rest` columns.
  void ApplyWithin(Step<T>& on, const TileReflectors& tile, const BlockReflector<T>& h,
                   int64_t first, int64_t columns, int64_t rest) {
    const int64_t diagonal = first + first * h.ld;
    ApplyLeft(on, Products::kExact, Op::kConjTrans, tile.rows - first, columns, rest,
              h.v + diagonal, h.ld, h.t + diagonal, h.ld, Within(tile, first, first + columns),
              matrix_.ld(), column_work_);
  }

  T* Within(const TileReflectors& tile, int64_t row, int64_t column) const {
    return matrix_.tile(tile.k, tile.begin + row) + column * matrix_.ld();
  }

  // --- Updates ---------------------------------------------------------------------------------

  // Applies the reflectors of tile column k to tile column k + 1, on the critical path.
  void UpdateNext(int64_t k) {
    const int64_t slot = tiles_.slot(k + 1), width = tiles_.width(k + 1);
    Step<T> on(flow_, Stream::kNext, "update next", k);
    on.Reads(panel_[k]).Gives(column_[slot]);
    ApplyLeft(on, Op::kConjTrans, Reflector(k), width, matrix_.tile(k + 1, Tile(k).begin),
              matrix_.ld(), next_work_, tiles_.width());
  }

  // Applies the reflectors of tile column k to all of this rank's other tile columns after k.
  void UpdateTrailing(int64_t k) {
    const int64_t begin =
        tiles_.slots_before(matrix_.rank, k + 1) + (k + 1 < count_ && Mine(k + 1) ? 1 : 0);
    const int64_t end = tiles_.slots_before(matrix_.rank, tiles_.nonempty());
    if (begin >= end) return;
    Step<T> on(flow_, Stream::kMain, "update", k);
    on.Reads(panel_[k]).Gives(column_, begin, end);
    matrix_.ForRuns(begin, end, [&](int64_t, T* first, int64_t columns) {
      ApplyLeft(on, Op::kConjTrans, Reflector(k), columns, first + Tile(k).begin, matrix_.ld(),
                work_, ColumnsAtOnce(tiles_));
    });
  }

  void UpdateFurther(int64_t k) {
    const int64_t first = FirstOf(matrix_.rank), count = FirstOf(matrix_.rank + 1) - first;
    if (count == 0) return;
    const BlockReflector<T> h = Reflector(k);
    Step<T> on(flow_, Stream::kSide, "right-hand sides", k);
    on.Reads(panel_[k]).Writes(further_data_);
    ApplyRight(on, Op::kNone, count, h.rows, h.count, h.v, h.ld, h.t, h.ld,
               further_.data + Tile(k).begin * further_.count + first, further_.count,
               further_work_);
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const Chain chain_;
  const FurtherColumns<T>& further_;
  const int64_t share_;
  T* const factors_;
  T* const tau_;
  const int64_t count_;
  std::array<T*, 2> messages_;  // by the parity of a tile column
  T *column_work_, *next_work_, *work_, *further_work_;
  std::vector<Data> panel_;   // by tile column: its block reflector and the T of its panels
  std::vector<Data> column_;  // by slot
  Data further_data_;
  std::array<Room, 2> rooms_;
};

}  // namespace

int64_t GeqrfWorkspace(const Tiles& tiles, int64_t n, int64_t further) {
  return QrFactorization<double>::Workspace(tiles, n, further);
}

template <typename T>
Status Geqrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const FurtherColumns<T>& further, T* factors, T* tau, T* workspace) {
  return QrFactorization<T>(context, precision, matrix, further, factors, tau, workspace).Run();
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template Status Geqrf(const RankContext&, Precision, const Matrix<T>&, const FurtherColumns<T>&, \
                        T*, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
