#include "xla_ffi/engine/lu/getrf.h"

#include <algorithm>
#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/chain.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

bool NeedsBuffers(const Tiles& tiles, const Tuning& tuning) {
  return tiles.ranks() > 1 && !tuning.borrow_panels;
}

template <typename T>
class LuFactorization {
 public:
  LuFactorization(const RankContext& context, Precision precision, const Matrix<T>& matrix,
                  const RightHandSides<T>& x, T* workspace, int32_t* pivots, int32_t* info,
                  const Determinant<T>& determinant, int64_t rows)
      : flow_(context, precision),
        matrix_(matrix),
        rows_(rows),
        tiles_(matrix.tiles),
        tuning_(flow_.tuning()),
        chain_(matrix.rank, tiles_.ranks(), tuning_),
        x_(x),
        workspace_(workspace),
        pivots_(pivots),
        info_(info),
        determinant_(determinant),
        panels_(CountPanels()),
        panel_(panels_),
        solved_(panels_),
        column_(tiles_.slots()),
        above_(tiles_.slots()),
        local_(tiles_.slots()) {}

  Status Run() {
    if (matrix_.IsOneTile()) return RunAlone();
    TakeLocal();
    flow_.Fork();
    if (panels_ > 0 && Mine(0)) FactorAndSend(0);
    Stage stage(flow_.device(), "factor", panels_, Work(), kShrinks);
    for (int64_t k = 0; k < panels_; ++k) {
      if (!Mine(k)) Receive(k);
      if (NeedsBuffers(tiles_, tuning_)) flow_.NoteSent(RoomOf(k));
      if (k + 1 < panels_ && Mine(k + 1)) {
        UpdateNext(k);
        FactorAndSend(k + 1);
      }
      UpdateTrailing(k);
      Release(k);
      stage.Done(Stream::kMain, k + 1);
    }
    return flow_.Finish();
  }

 private:
  // Returns the operations of the stage.
  double Work() const { return LuWork(rows_, tiles_.columns()) + SolveWork(rows_, x_.count); }

  // Returns the number of tile columns that have a panel: those that begin above the last row.
  int64_t CountPanels() const {
    int64_t count = tiles_.nonempty();
    while (count > 0 && tiles_.offset(count - 1) >= rows_) --count;
    return count;
  }

  // Factors a single tile. All work is on kMain, so no stream waits for another.
  Status RunAlone() {
    TakeLocal();
    Stage stage(flow_.device(), "factor", 1, Work());
    {
      Step<T> on(flow_, Stream::kMain, "getrf");
      on.FactorPanel(rows_, tiles_.width(0), matrix_.data, matrix_.ld(), 0, pivots_, info_);
      if (x_.count > 0) SolveTile(on, 0);
      if (determinant_.sign != nullptr) AddDeterminant(on, 0);
    }
    stage.Done(Stream::kMain, 1);
    return flow_.Finish();
  }

  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  int64_t Begin(int64_t k) const { return tiles_.offset(k); }
  // RowsFrom returns the number of rows of panel k, Depth the number of its pivots.
  int64_t RowsFrom(int64_t k) const { return rows_ - Begin(k); }
  int64_t Depth(int64_t k) const { return std::min(tiles_.width(k), RowsFrom(k)); }
  Room& RoomOf(int64_t k) { return rooms_[k % 2]; }

  // Returns panel k where this rank reads it: in the matrix, in its owner's memory or in a buffer.
  Bytes2D PanelBlock(int64_t k) const {
    const int64_t rows = RowsFrom(k), width = tiles_.width(k);
    if (Mine(k)) return Block(matrix_.tile(k, Begin(k)), matrix_.ld(), rows, width);
    if (tuning_.borrow_panels) return borrowed_;
    T* buffer = workspace_ + k % 2 * rows_ * tiles_.width();
    return Block(buffer, rows, rows, width);
  }
  const T* PanelData(int64_t k) const { return static_cast<const T*>(PanelBlock(k).data); }
  int64_t PanelLd(int64_t k) const { return static_cast<int64_t>(PanelBlock(k).pitch / sizeof(T)); }
  Bytes2D PivotBlock(int64_t k) const { return Block(pivots_ + Begin(k), Depth(k), Depth(k), 1); }
  Bytes2D Solved(int64_t k) const {
    return Block(x_.column(Begin(k)), x_.count, x_.count, tiles_.width(k));
  }

  void TakeLocal() {
    Step<T> on(flow_, Stream::kMain);
    if (x_.in_place()) return;
    for (int64_t p = matrix_.rank; x_.count > 0 && p < tiles_.nonempty(); p += tiles_.ranks()) {
      on.Copy(Block(x_.of_slot(tiles_, tiles_.slot(p)), x_.count, x_.count, tiles_.width(p)),
              Solved(p));
    }
  }

  // --- Messages between ranks ------------------------------------------------------------------

  void Receive(int64_t k) {
    {
      Step<T> on(flow_, Stream::kCopy, "receive panel", k);
      if (!tuning_.borrow_panels) on.Takes(RoomOf(k));
      on.Gives(panel_[k]);
      if (tuning_.borrow_panels) {
        borrowed_ = on.Borrow(tiles_.owner(k));
      } else {
        chain_.Receive(on, tiles_.owner(k), PanelBlock(k));
      }
      chain_.Receive(on, tiles_.owner(k), PivotBlock(k));
    }
    if (x_.count == 0) return;
    Step<T> on(flow_, Stream::kSide);
    on.Gives(solved_[k]);
    chain_.Receive(on, tiles_.owner(k), Solved(k));
  }

  // Releases panel k, which is not needed any more.
  void Release(int64_t k) {
    if (tiles_.ranks() == 1) return;
    Step<T> on(flow_, Stream::kMain);
    on.Writes(panel_[k]);
    if (tuning_.borrow_panels) {
      if (!Mine(k)) on.Return(tiles_.owner(k));
      return;
    }
    on.AwaitsSent(RoomOf(k)).Frees(RoomOf(k));
  }

  // --- The panel -------------------------------------------------------------------------------

  void FactorAndSend(int64_t k) {
    const int64_t slot = tiles_.slot(k);
    T* panel = matrix_.tile(k, Begin(k));
    {
      Step<T> on(flow_, Stream::kPanel, "getrf", k);
      on.Writes(column_[slot]).Gives(panel_[k]);
      on.FactorPanel(RowsFrom(k), tiles_.width(k), panel, matrix_.ld(), Begin(k),
                     pivots_ + Begin(k), info_);
      chain_.Send(on, PanelBlock(k));
      chain_.Send(on, PivotBlock(k));
    }
    if (x_.count > 0) SolveLocal(k);
    if (determinant_.sign == nullptr) return;
    Step<T> on(flow_, Stream::kPanel);
    on.Reads(panel_[k]);
    AddDeterminant(on, k);
  }

  void AddDeterminant(Step<T>& on, int64_t k) {
    on.AddDeterminant(Depth(k), matrix_.tile(k, Begin(k)), matrix_.ld(), Begin(k),
                      pivots_ + Begin(k), determinant_.log_abs, determinant_.sign);
  }

  // Solves for the right-hand sides of tile k with its diagonal tile, and sends them. All earlier
  // panels have updated them.
  void SolveLocal(int64_t k) {
    Step<T> on(flow_, Stream::kSide, "right-hand sides", k);
    on.Reads(panel_[k]).Writes(local_[tiles_.slot(k)]).Gives(solved_[k]);
    SolveTile(on, k);
    chain_.Send(on, Solved(k));
  }

  void SolveTile(Step<T>& on, int64_t k) {
    const int64_t width = tiles_.width(k);
    T* local = x_.of_slot(tiles_, tiles_.slot(k));
    on.Trsm(Side::kRight, Op::kNone, x_.count, width, matrix_.tile(k, Begin(k)), matrix_.ld(),
            local, x_.count, kUpper);
    if (!x_.in_place()) on.Copy(Solved(k), Block(local, x_.count, x_.count, width));
  }

  // --- Updates ---------------------------------------------------------------------------------

  // Updates `columns` columns with panel k. `first` points to their first entry, in row 0.
  void UpdateColumns(Step<T>& on, int64_t k, int64_t columns, T* first) {
    const int64_t depth = Depth(k), ld = matrix_.ld(), rest = RowsFrom(k) - depth;
    const T* panel = PanelData(k);
    T* top = first + Begin(k);
    on.SwapRows(Order::kForward, columns, top, ld, Begin(k), depth, pivots_ + Begin(k));
    on.Trsm(Side::kLeft, Op::kNone, depth, columns, panel, PanelLd(k), top, ld, kUnitLower);
    on.Gemm(Op::kNone, Op::kNone, rest, columns, depth, -1, panel + depth, PanelLd(k), top, ld, 1,
            top + depth, ld);
  }

  // Updates the right-hand sides of these columns, from `slot` on: X -= Y U, where Y is the
  // solution for tile k.
  void UpdateLocal(Step<T>& on, int64_t k, int64_t columns, const T* first, int64_t slot) {
    on.ExactGemm(Op::kNone, Op::kNone, x_.count, columns, Depth(k), -1, x_.column(Begin(k)),
                 x_.count, first + Begin(k), matrix_.ld(), 1, x_.of_slot(tiles_, slot), x_.count);
  }

  // Updates tile column k + 1 with panel k, on the critical path.
  void UpdateNext(int64_t k) {
    const int64_t slot = tiles_.slot(k + 1), width = tiles_.width(k + 1);
    T* first = matrix_.tile(k + 1);
    {
      Step<T> on(flow_, Stream::kNext, "update next", k);
      on.Reads(panel_[k]).Writes(above_[slot]).Gives(column_[slot]);
      UpdateColumns(on, k, width, first);
    }
    if (x_.count == 0) return;
    Step<T> on(flow_, Stream::kSide);
    on.Reads(above_[slot], solved_[k]).Writes(local_[slot]);
    UpdateLocal(on, k, width, first, slot);
  }

  // Updates all of this rank's other tile columns after k with panel k.
  void UpdateTrailing(int64_t k) {
    const int64_t begin =
        tiles_.slots_before(matrix_.rank, k + 1) + (k + 1 < panels_ && Mine(k + 1) ? 1 : 0);
    const int64_t end = tiles_.slots_before(matrix_.rank, tiles_.nonempty());
    if (begin >= end) return;
    {
      Step<T> on(flow_, Stream::kMain, "update", k);
      on.Reads(panel_[k]).Writes(above_, begin, end).Gives(column_, begin, end);
      matrix_.ForRuns(begin, end, [&](int64_t, T* first, int64_t columns) {
        UpdateColumns(on, k, columns, first);
      });
    }
    if (x_.count == 0) return;
    Step<T> on(flow_, Stream::kMain);
    on.Reads(above_, begin, end).Reads(solved_[k]).Gives(local_, begin, end);
    matrix_.ForRuns(begin, end, [&](int64_t slot, const T* first, int64_t columns) {
      UpdateLocal(on, k, columns, first, slot);
    });
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const int64_t rows_;
  const Tiles& tiles_;
  const Tuning& tuning_;
  const Chain chain_;
  const RightHandSides<T>& x_;
  T* const workspace_;
  int32_t* const pivots_;
  int32_t* const info_;
  const Determinant<T> determinant_;
  const int64_t panels_;
  Bytes2D borrowed_ = {};
  // By panel: the panel and its pivots; the solved right-hand sides.
  std::vector<Data> panel_, solved_;
  // By slot: the tile column from the next panel's first row on; its rows of U above that; its
  // right-hand sides.
  std::vector<Data> column_, above_, local_;
  std::array<Room, 2> rooms_;  // by the parity of a panel
};

// Returns the number of elements of workspace of SwapLower.
template <typename T>
int64_t SwapRoom(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  if (tuning.lu.swap_bytes == 0 || tiles.nonempty() < 2) return 0;
  return std::max(rows, std::min<int64_t>(tuning.lu.swap_bytes / sizeof(T), rows * tiles.width()));
}

// Applies the interchanges of all later panels to each tile column of L.
template <typename T>
Status SwapLower(const RankContext& context, const Matrix<T>& matrix, int64_t rows,
                 const int32_t* pivots, T* workspace) {
  const Tiles& tiles = matrix.tiles;
  const int64_t count = std::min(rows, tiles.columns());
  std::vector<MovedColumns<T>> all;
  for (int64_t k = tiles.nonempty() - 1; k >= 0; --k) {
    const int64_t behind = tiles.offset(k) + tiles.width(k);
    if (tiles.owner(k) != matrix.rank || behind >= count) continue;
    all.push_back({matrix.tile(k), tiles.width(k), behind});
  }
  if (all.empty()) return Status::Ok();
  return context.device.lu<T>().SwapAllRows(Stream::kMain, all, rows, matrix.ld(), count, pivots,
                                            workspace,
                                            SwapRoom<T>(tiles, rows, context.device.tuning()));
}

}  // namespace

template <typename T>
int64_t GetrfWorkspace(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  const int64_t panels = NeedsBuffers(tiles, tuning) ? 2 * rows * tiles.width() : 0;
  return std::max(panels, SwapRoom<T>(tiles, rows, tuning));
}

template <typename T>
Status Getrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const RightHandSides<T>& x, T* workspace, int32_t* pivots, int32_t* info,
             const Determinant<T>& determinant, int64_t rows) {
  if (rows == 0) rows = matrix.rows;
  JAXMG_RETURN_IF_ERROR(
      LuFactorization<T>(context, precision, matrix, x, workspace, pivots, info, determinant, rows)
          .Run());
  return SwapLower(context, matrix, rows, pivots, workspace);
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template int64_t GetrfWorkspace<T>(const Tiles&, int64_t, const Tuning&);                        \
  template Status Getrf(const RankContext&, Precision, const Matrix<T>&, const RightHandSides<T>&, \
                        T*, int32_t*, int32_t*, const Determinant<T>&, int64_t);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
