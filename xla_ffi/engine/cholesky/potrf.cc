#include "xla_ffi/engine/cholesky/potrf.h"

#include <algorithm>
#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/cholesky/equilibrate.h"
#include "xla_ffi/engine/core/batches.h"
#include "xla_ffi/engine/core/chain.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/panels.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

template <typename T>
class Factorization {
 public:
  Factorization(const RankContext& context, Precision precision, const Matrix<T>& matrix,
                const RightHandSides<T>& x, T* workspace, int32_t* info, Real<T>* log_det,
                const PartOfMatrix& part)
      : flow_(context, precision),
        matrix_(matrix),
        tiles_(matrix.tiles),
        tuning_(flow_.tuning()),
        part_(part),
        height_(tiles_.columns() + part.rows_below),
        chain_(matrix.rank, tiles_.ranks(), tuning_),
        x_(x),
        info_(info),
        log_det_(log_det),
        batches_(tiles_, matrix.rank, PanelRegions<T>::PanelsPerUpdate(tiles_, tuning_)),
        panels_(matrix, height_, batches_, tuning_, context.device.blas<T>(precision), workspace),
        panel_(tiles_.nonempty()),
        rows_(tiles_.nonempty()),
        parts_(tiles_.nonempty()),
        solved_(tiles_.nonempty()),
        diagonal_(tiles_.slots()),
        below_(tiles_.slots()),
        share_(tiles_.slots()) {}

  Status Run(bool spoils) {
    if (matrix_.IsOneTile()) return RunAlone(spoils);
    TakeLocal();
    flow_.Fork();
    if (tiles_.nonempty() > 0 && Mine(0)) FactorAndSend(0);
    const int64_t n = tiles_.columns();
    Stage stage(flow_.device(), "factor", tiles_.nonempty(),
                FactorWork(n) + SolveWork(n, x_.count + part_.rows_below), kShrinks);
    for (const Batch& batch : batches_.all()) {
      for (int64_t k = batch.first; k <= batch.last; ++k) {
        if (!Mine(k)) Receive(k);
        if (k == batch.last && !tuning_.borrow_panels) flow_.NoteSent(RoomOf(k));
        if (Mine(k + 1)) {
          UpdateNext(k);
          FactorAndSend(k + 1);
        }
        UpdateWindow(k);
      }
      UpdateTrailing(batch);
      UpdateShares(batch);
      Release(batch);
      stage.Done(Stream::kMain, batch.last + 1);
    }
    return flow_.Finish();
  }

 private:
  // Factors a single tile. All work is on kMain, so no stream waits for another.
  Status RunAlone(bool spoils) {
    const DiagonalTile<T> tile = DiagonalOf(matrix_, 0);
    T* const a = matrix_.tile(0);
    Stage stage(flow_.device(), "factor", 1,
                FactorWork(tile.n) + SolveWork(tile.n, x_.count + part_.rows_below));
    {
      Step<T> on(flow_, Stream::kMain, "potrf");
      if (part_.stores) on.Writes(Diagonal(0), BelowTile(0));
      if (spoils && height_ == tile.n) {
        on.PotrfOfWhole(tile.n, a, tile.ld, info_, log_det_);
      } else {
        on.Potrf(tile.n, a, tile.ld, part_.order, info_);
        if (log_det_ != nullptr) on.AddLogDet(tile.n, tile.l, tile.ld, log_det_);
      }
      if (height_ > tile.n) SolveBelow(on, 0, tile);
      if (x_.count > 0) SolveAlone(on, tile);
    }
    Store(0);
    stage.Done(Stream::kMain, 1);
    return flow_.Finish();
  }

  void SolveAlone(Step<T>& on, const DiagonalTile<T>& tile) {
    const int64_t count = x_.count;
    if (x_.source != nullptr) {
      return on.SolveRight(Op::kConjTrans, count, tile.n, tile.l, tile.ld, x_.source, count,
                           x_.data, count);
    }
    if (x_.in_place()) {
      return on.Trsm(Side::kRight, Op::kConjTrans, count, tile.n, tile.l, tile.ld, x_.data, count);
    }
    const Bytes2D local = Block(x_.local, count, count, tile.n);
    on.Copy(local, Solved(0));
    SolveForward(on, tile, count, x_.local, x_.data);
    on.Copy(local, Solved(0));
  }

  bool IsLast(int64_t k) const { return k + 1 == tiles_.nonempty(); }
  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  int64_t WidthIn(int64_t slot) const { return tiles_.width(tiles_.tile_in(matrix_.rank, slot)); }

  // Return the data of tile column k: its diagonal tile, and the elements below it.
  Data& Diagonal(int64_t k) { return diagonal_[tiles_.slot(k)]; }
  Data& BelowTile(int64_t k) { return below_[tiles_.slot(k)]; }
  // Returns the buffer of panel k's batch. The batch before the previous one used it last.
  Room& RoomOf(int64_t k) { return rooms_[batches_.of(k).index % 2]; }

  // Returns the solved right-hand sides of tile k, which are sent together with panel k.
  Bytes2D Solved(int64_t k) const {
    return Block(x_.column(tiles_.offset(k)), x_.count, x_.count, tiles_.width(k));
  }

  void TakeLocal() {
    Step<T> on(flow_, Stream::kMain);
    for (int64_t slot = 0; x_.count > 0 && slot < tiles_.slots(); ++slot) {
      const int64_t p = tiles_.tile_in(matrix_.rank, slot);
      on.Copy(Block(x_.of_slot(tiles_, slot), x_.count, x_.count, tiles_.width(p)), Solved(p));
    }
  }

  // --- Messages between ranks ------------------------------------------------------------------

  void Receive(int64_t k) {
    ReceivePanel(k);
    SplitPanel(Stream::kCopy, k);
    GatherRows(Stream::kCopy, k);
    if (x_.count == 0) return;
    Step<T> on(flow_, Stream::kSide);
    on.Gives(solved_[k]);
    chain_.Receive(on, tiles_.owner(k), Solved(k));
  }

  void ReceivePanel(int64_t k) {
    Step<T> on(flow_, Stream::kCopy);
    on.Takes(RoomOf(k)).Gives(panel_[k]);
    if (tuning_.borrow_panels) return panels_.Borrow(on.Borrow(tiles_.owner(k)));
    const int64_t width = tiles_.width(k);
    const int64_t step = panels_.in_place() ? width : tuning_.cholesky.panel_block;
    for (int64_t column = 0; column < width; column += step) {
      chain_.Receive(on, tiles_.owner(k), panels_.Piece(k, column, std::min(step, width - column)));
    }
  }

  // Releases the panels of a batch, which are not needed any more.
  void Release(const Batch& batch) {
    Step<T> on(flow_, Stream::kMain);
    on.Writes(panel_, batch.first, batch.last + 1);
    on.Writes(parts_, batch.first, batch.last + 1);
    if (tuning_.borrow_panels) {
      if (!Mine(batch.last)) on.Return(tiles_.owner(batch.last));
      return;
    }
    on.AwaitsSent(RoomOf(batch.last)).Frees(RoomOf(batch.last));
  }

  // --- The panel -------------------------------------------------------------------------------

  void FactorAndSend(int64_t k) {
    const DiagonalTile<T> tile = DiagonalOf(matrix_, k);
    const bool last = IsLast(k);
    FactorTile(k, tile);
    if (!last) {
      SolvePanel(k, tile);
      SplitPanel(Stream::kPanel, k);
      GatherRows(Stream::kPanel, k);
    } else if (panels_.Below(k) > 0) {
      Step<T> on(flow_, Stream::kPanel, "panel", k);
      on.Reads(Diagonal(k)).Writes(BelowTile(k));
      SolveBelow(on, k, tile);
    }
    if (x_.count > 0) SolveShare(k, tile);
    if (!last) StorePanel(k);
    Store(k);
    if (log_det_ == nullptr) return;
    Step<T> on(flow_, Stream::kPanel);
    on.Reads(Diagonal(k));
    on.AddLogDet(tile.n, tile.l, tile.ld, log_det_);
  }

  void FactorTile(int64_t k, const DiagonalTile<T>& tile) {
    const int64_t begin = tiles_.offset(k);
    Step<T> on(flow_, Stream::kPanel, "potrf", k);
    on.Writes(Diagonal(k));
    on.Potrf(tile.n, matrix_.tile(k, begin), tile.ld, part_.order + begin, info_);
  }

  void SolvePanel(int64_t k, const DiagonalTile<T>& tile) {
    Step<T> on(flow_, Stream::kPanel, "panel", k);
    on.Reads(Diagonal(k)).Takes(RoomOf(k)).Writes(BelowTile(k)).Gives(panel_[k]);
    return panels_.in_place() ? SolveInPlace(on, k, tile) : SolveInPieces(on, k, tile);
  }

  void SolveInPlace(Step<T>& on, int64_t k, const DiagonalTile<T>& tile) {
    const Panel<T> panel = panels_.Of(k);
    on.Trsm(Side::kRight, Op::kConjTrans, panels_.Below(k), tile.n, tile.l, tile.ld, panel.data,
            panel.ld);
    chain_.Send(on, panels_.Piece(k, 0, tile.n));
  }

  // Solves the panel by pieces of columns, X_c = (B_c - X_<c L_c,<c^H) L_cc^-H, and sends each
  // piece at once.
  void SolveInPieces(Step<T>& on, int64_t k, const DiagonalTile<T>& tile) {
    const Panel<T> panel = panels_.Of(k);
    const int64_t m = panels_.Below(k), ld = tile.ld, block = tuning_.cholesky.panel_block;
    T* below = matrix_.tile(k, tiles_.offset(k + 1));
    for (int64_t column = 0; column < tile.n; column += block) {
      const int64_t columns = std::min(block, tile.n - column);
      T* right_side = below + column * ld;
      if (column > 0) {
        on.Gemm(Op::kNone, Op::kConjTrans, m, columns, column, -1, panel.data, panel.ld,
                tile.l + column, ld, 1, right_side, ld);
      }
      on.SolveRight(Op::kConjTrans, m, columns, tile.l + column * ld + column, ld, right_side, ld,
                    panel.data + column * panel.ld, panel.ld);
      chain_.Send(on, panels_.Piece(k, column, columns));
    }
  }

  // Copies a panel that was solved out of place to its tile column.
  void StorePanel(int64_t k) {
    if (panels_.in_place()) return;
    Step<T> on(flow_, Stream::kPanel, "store panel", k);
    on.Reads(panel_[k]).Writes(BelowTile(k));
    const T* target = matrix_.tile(k, tiles_.offset(k + 1));
    on.Copy(Block(target, matrix_.ld(), panels_.Below(k), tiles_.width(k)),
            panels_.Piece(k, 0, tiles_.width(k)));
  }

  // Solves the rows below a tile, which no update needs, in place.
  void SolveBelow(Step<T>& on, int64_t k, const DiagonalTile<T>& tile) {
    on.Trsm(Side::kRight, Op::kConjTrans, panels_.Below(k), tile.n, tile.l, tile.ld,
            matrix_.tile(k, tiles_.offset(k + 1)), matrix_.ld());
  }

  // Has the caller store tile column k.
  void Store(int64_t k) {
    if (part_.stores) part_.stores(flow_, k, Diagonal(k), BelowTile(k));
  }

  // Splits panel k into parts (parts.h) if updates multiply parts.
  void SplitPanel(Stream stream, int64_t k) {
    if (!panels_.splits()) return;
    Step<T> on(flow_, stream, "split", k);
    on.Reads(panel_[k]).Gives(parts_[k]);
    const Panel<T> panel = panels_.Of(k);
    const int64_t first = tiles_.offset(k + 1), columns = tiles_.width(k);
    auto split = [&](Side side, int64_t row, int64_t rows, const PartsOfPanel& target) {
      on.Split(side, false, rows, columns, panel.data + (row - first), panel.ld, target.data,
               target.ld);
    };
    for (int64_t slot = tiles_.slots_before(matrix_.rank, k + 1); slot < batches_.EndTrailing();
         ++slot) {
      const int64_t j = tiles_.tile_in(matrix_.rank, slot);
      split(Side::kRight, tiles_.offset(j), tiles_.width(j), panels_.Right(k, slot));
    }
    split(Side::kLeft, first, panels_.Below(k), panels_.Left(k, first));
  }

  // Gathers the rows of panel k that match this rank's trailing tile columns.
  void GatherRows(Stream stream, int64_t k) {
    if (!panels_.gathers()) return;
    Step<T> on(flow_, stream, "gather rows", k);
    on.Reads(panel_[k]).Gives(rows_[k]);
    const Batch& batch = batches_.of(k);
    const Panel<T> panel = panels_.Of(k);
    const int64_t before = tiles_.offset(k) - tiles_.offset(batch.first);
    for (int64_t slot = batches_.FirstTrailing(batch); slot < batches_.EndTrailing(); ++slot) {
      const int64_t j = tiles_.tile_in(matrix_.rank, slot), rows = WidthIn(slot);
      const int64_t columns = tiles_.width(k);
      const T* source = panel.data + (tiles_.offset(j) - tiles_.offset(k + 1));
      const Factor<T> target = panels_.Gathered(batch, slot);
      if (target.op == Op::kNone) {
        on.ConjTranspose(rows, columns, source, panel.ld, target.data + before, target.ld);
      } else {
        T* data = target.data + before * target.ld;
        on.Copy(Block(data, target.ld, rows, columns), Block(source, panel.ld, rows, columns));
      }
    }
  }

  // Solves for the right-hand sides of tile k: updates them with the earlier panels of its batch
  // (kMain has updated them with earlier batches), then solves with the diagonal tile. Enqueued
  // after the panel, because other ranks wait for the panel more urgently.
  void SolveShare(int64_t k, const DiagonalTile<T>& tile) {
    const int64_t slot = tiles_.slot(k), width = tiles_.width(k);
    if (k > 0) {
      const Batch& batch = batches_.of(k - 1);
      Step<T> on(flow_, Stream::kSide);
      on.Reads(Diagonal(k)).Reads(panel_, batch.first, k).Reads(solved_, batch.first, k);
      on.Writes(share_[slot]);
      UpdateShare(on, slot, width, batch.first, k - 1,
                  panels_.FactorFrom(batch.first, tiles_.offset(k)));
    }
    Step<T> on(flow_, Stream::kSide, "right-hand sides", k);
    on.Reads(Diagonal(k)).Writes(share_[slot]).Gives(solved_[k]);
    T* local = x_.of_slot(tiles_, slot);
    SolveForward(on, tile, x_.count, local, x_.column(tiles_.offset(k)));
    on.Copy(Block(local, x_.count, x_.count, width), Solved(k));
    if (!IsLast(k)) chain_.Send(on, Solved(k));
  }

  // --- Updates ---------------------------------------------------------------------------------

  // Returns the data of panel k that updates read: its parts or the panel itself.
  Data& Ready(int64_t k) { return panels_.splits() ? parts_[k] : panel_[k]; }

  // C -= A B^H by parts. A: rows [begin, end) of panels [first, k]. B: their rows that match
  // `columns` columns from `slot` on.
  void SubtractParts(Step<T>& on, int64_t slot, int64_t columns, int64_t begin, int64_t end,
                     int64_t first, int64_t k) {
    const PartsOfPanel a = panels_.Left(first, begin), b = panels_.Right(first, slot);
    on.GemmOfParts(end - begin, columns, panels_.PartsDepth(first, k), -1, a.data, a.ld, b.data,
                   b.ld, 1, matrix_.slot(slot) + begin, matrix_.ld());
  }

  // Updates diagonal tile j with panels [first, k]: C -= B B^H, where B is row j of the panels.
  void UpdateDiagonal(Step<T>& on, int64_t j, int64_t first, int64_t k) {
    const int64_t begin = tiles_.offset(j);
    if (panels_.splits()) {
      return SubtractParts(on, tiles_.slot(j), tiles_.width(j), begin, tiles_.offset(j + 1), first,
                           k);
    }
    const Panel<T> b = panels_.From(first, begin);
    on.Herk(tiles_.width(j), panels_.Depth(first, k), -1, b.data, b.ld, 1, matrix_.tile(j, begin),
            matrix_.ld());
  }

  // Updates rows [begin, end) of tile column j: C -= A B^H, where A is these rows of the panels,
  // and B is their row j.
  void UpdateRows(Step<T>& on, int64_t j, int64_t begin, int64_t end, int64_t first, int64_t k,
                  const Factor<T>& b) {
    if (panels_.splits()) {
      return SubtractParts(on, tiles_.slot(j), tiles_.width(j), begin, end, first, k);
    }
    const Panel<T> a = panels_.From(first, begin);
    on.Gemm(Op::kNone, b.op, end - begin, tiles_.width(j), panels_.Depth(first, k), -1, a.data,
            a.ld, b.data, b.ld, 1, matrix_.tile(j, begin), matrix_.ld());
  }

  // Updates tile column j, from its diagonal tile to row `end`.
  void UpdateTile(Step<T>& on, int64_t j, int64_t end, int64_t first, int64_t k,
                  const Factor<T>& b) {
    UpdateDiagonal(on, j, first, k);
    UpdateRows(on, j, tiles_.offset(j + 1), end, first, k, b);
  }

  // Updates this rank's right-hand sides from `slot` on with panels [first, k]: X -= Y B^H.
  void UpdateShare(Step<T>& on, int64_t slot, int64_t columns, int64_t first, int64_t k,
                   const Factor<T>& b) {
    on.ExactGemm(Op::kNone, b.op, x_.count, columns, panels_.Depth(first, k), -1,
                 x_.column(tiles_.offset(first)), x_.count, b.data, b.ld, 1,
                 x_.of_slot(tiles_, slot), x_.count);
  }

  // Updates tile column k + 1 with panel k, on the critical path: the diagonal tile on kPanel, the
  // rows below it on kNext during the factorization of the tile, which leaves the hardware almost
  // idle.
  void UpdateNext(int64_t k) {
    const int64_t j = k + 1;
    {
      Step<T> on(flow_, Stream::kPanel, "update next tile", k);
      on.Reads(Ready(k)).Writes(Diagonal(j));
      UpdateDiagonal(on, j, k, k);
    }
    Step<T> on(flow_, Stream::kNext, "update next", k);
    on.Reads(Ready(k)).Gives(BelowTile(j));
    UpdateRows(on, j, tiles_.offset(j + 1), height_, k, k, panels_.FactorFrom(k, tiles_.offset(j)));
  }

  // Updates with panel k the later tile columns of its batch, except tile column k + 1, and the
  // first tile column after the batch.
  void UpdateWindow(int64_t k) {
    for (int64_t j = k + 2; j <= batches_.of(k).last + 1; ++j) {
      if (!Mine(j)) continue;
      Step<T> on(flow_, Stream::kNext, "update window", k);
      on.Reads(Ready(k)).Writes(Diagonal(j), BelowTile(j));
      UpdateTile(on, j, height_, k, k, panels_.FactorFrom(k, tiles_.offset(j)));
    }
  }

  // Updates all of this rank's tile columns after the batch, except the first one (UpdateWindow).
  // Those that the next batch factors come first.
  void UpdateTrailing(const Batch& batch) {
    const int64_t first = batches_.FirstTrailing(batch), window = batches_.EndOfWindow(batch);
    Step<T> on(flow_, Stream::kMain, "update", batch.last);
    ReadsPanels(on, batch);
    on.Writes(trailing_).Gives(diagonal_, first, window).Gives(below_, first, window);
    UpdateSlots(on, on, batch, first, window);
    on.GivesNow();
    // Products that are too small to fill the device run concurrently with large ones.
    Step<T> beside(flow_, Stream::kSide);
    beside.Follows(Stream::kMain);
    ReadsPanels(beside, batch);
    UpdateSlots(beside, on, batch, window, batches_.EndTrailing());
    on.Follows(Stream::kSide);
  }

  // Waits for the gathered rows first: when they exist, the panels exist too.
  void ReadsPanels(Step<T>& on, const Batch& batch) {
    on.Reads(rows_, batch.first, batch.last + 1).Reads(panel_, batch.first, batch.last + 1);
    on.Reads(parts_, batch.first, batch.last + 1);
  }

  // Updates slots [slot, end) by groups of contiguous tile columns. A group shares one product
  // below its last diagonal tile; the rows above that are updated in the step `beside`.
  void UpdateSlots(Step<T>& beside, Step<T>& on, const Batch& batch, int64_t slot, int64_t end) {
    while (slot < end) {
      int64_t after = slot, columns = 0;
      do {
        columns += WidthIn(after++);
      } while (after < end && columns + WidthIn(after) <= tuning_.cholesky.group_columns &&
               matrix_.slot(after) == matrix_.slot(slot) + columns * matrix_.ld());
      UpdateGroup(beside, on, batch, slot, after, columns);
      slot = after;
    }
  }

  // Updates the group of slots [slot, end), which have `columns` contiguous columns.
  void UpdateGroup(Step<T>& beside, Step<T>& on, const Batch& batch, int64_t slot, int64_t end,
                   int64_t columns) {
    const int64_t bottom = tiles_.offset(tiles_.tile_in(matrix_.rank, end - 1) + 1);
    for (int64_t s = slot; s < end; ++s) {
      UpdateTile(beside, tiles_.tile_in(matrix_.rank, s), bottom, batch.first, batch.last,
                 panels_.FactorOfSlot(batch, s));
    }
    if (panels_.splits()) {
      return SubtractParts(on, slot, columns, bottom, height_, batch.first, batch.last);
    }
    const Panel<T> a = panels_.From(batch.first, bottom);
    const Factor<T> b = panels_.FactorOfSlot(batch, slot);
    on.Gemm(Op::kNone, b.op, height_ - bottom, columns, panels_.Depth(batch.first, batch.last), -1,
            a.data, a.ld, b.data, b.ld, 1, matrix_.slot(slot) + bottom, matrix_.ld());
  }

  // Updates the right-hand sides of this rank's trailing tiles. Gathered rows are contiguous. So
  // are right-hand sides, except after a narrow tile. One product updates each contiguous range.
  void UpdateShares(const Batch& batch) {
    const int64_t first = batches_.FirstTrailing(batch), last = batches_.EndTrailing();
    if (x_.count == 0 || first >= last) return;
    Step<T> on(flow_, Stream::kMain);
    ReadsPanels(on, batch);
    on.Reads(solved_, batch.first, batch.last + 1).Gives(share_, first, last);
    auto is_last = [&](int64_t slot) {
      return !panels_.gathers() || WidthIn(slot) < tiles_.width() || slot + 1 == last;
    };
    for (int64_t slot = first, end; slot < last; slot = end) {
      for (end = slot + 1; !is_last(end - 1);) ++end;
      UpdateShare(on, slot, batches_.Columns(slot, end), batch.first, batch.last,
                  panels_.FactorOfSlot(batch, slot));
    }
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const Tuning& tuning_;
  const PartOfMatrix& part_;
  const int64_t height_;  // rows of the tile columns
  const Chain chain_;
  const RightHandSides<T>& x_;
  int32_t* const info_;
  Real<T>* const log_det_;
  const Batches batches_;
  Panels<T> panels_;
  // By tile: its panel; the panel's gathered rows; the panel's parts; the solved right-hand sides.
  std::vector<Data> panel_, rows_, parts_, solved_;
  // By slot: the diagonal tile; the elements below it; the right-hand sides.
  std::vector<Data> diagonal_, below_, share_;
  Data trailing_;              // tile columns after the next batch
  std::array<Room, 2> rooms_;  // by the parity of a batch
};

// Returns the number of elements of workspace for panels. The workspace of Equilibration follows.
template <typename T>
int64_t PanelsSize(const Tiles& tiles, int64_t rows, Precision precision, const Tuning& tuning) {
  return PanelRegions<T>(tiles, rows, tuning, PartsOf<T>(precision)).size;
}

}  // namespace

template <typename T>
int64_t PotrfWorkspace(const Tiles& tiles, int64_t rows, Precision precision,
                       const Tuning& tuning) {
  return PanelsSize<T>(tiles, rows, precision, tuning) +
         Equilibration<T>::Workspace(tiles, precision);
}

template <typename T>
Status Potrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const RightHandSides<T>& x, T* workspace, int32_t* info, Real<T>* log_det, bool spoils,
             const PartOfMatrix& part) {
  Factorization<T> factorization(context, precision, matrix, x, workspace, info, log_det, part);
  if (!Equilibration<T>::Needed(precision)) return factorization.Run(spoils);
  if (part.rows_below > 0 || part.stores) {
    return Status::Fixed(Code::kInternal, "potrf: a part of a matrix can't be equilibrated");
  }
  // If L' is the factor of S M S, the factor of M is L = S^-1 L', and X S L'^-H = X L^-H.
  const int64_t panels =
      PanelsSize<T>(matrix.tiles, matrix.rows, precision, context.device.tuning());
  Equilibration<T> equilibration(context, matrix, workspace + panels);
  JAXMG_RETURN_IF_ERROR(equilibration.FindForMatrix());
  JAXMG_RETURN_IF_ERROR(equilibration.ScaleMatrix(false));
  if (x.count > 0) JAXMG_RETURN_IF_ERROR(equilibration.ScaleRightHandSides(x.count, x.data));
  JAXMG_RETURN_IF_ERROR(factorization.Run(spoils));
  JAXMG_RETURN_IF_ERROR(equilibration.AddLogDet(log_det));
  return equilibration.ScaleFactor(true);
}

template <typename T>
Status ReservePotrf(Device& device, const Matrix<T>& matrix) {
  JAXMG_RETURN_IF_ERROR(device.ReserveHandles());
  const Stream stream = matrix.IsOneTile() ? Stream::kMain : Stream::kPanel;
  return device.blas<T>().ReservePotrf(stream, std::min(matrix.tiles.width(), matrix.rows),
                                       matrix.data, matrix.rows);
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template int64_t PotrfWorkspace<T>(const Tiles&, int64_t, Precision, const Tuning&);             \
  template Status Potrf(const RankContext&, Precision, const Matrix<T>&, const RightHandSides<T>&, \
                        T*, int32_t*, Real<T>*, bool, const PartOfMatrix&);                        \
  template Status ReservePotrf(Device&, const Matrix<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
