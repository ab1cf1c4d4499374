#include "xla_ffi/engine/potrf.h"

#include <algorithm>
#include <array>
#include <complex>
#include <memory>
#include <vector>

#include "xla_ffi/engine/batches.h"
#include "xla_ffi/engine/panels.h"

namespace jaxmg {
namespace {

template <typename T>
class Factorization {
 public:
  Factorization(const RankContext& context, Precision precision, const Matrix<T>& matrix,
                const RightHandSides<T>& x, T* workspace, int32_t* info, Real<T>* log_det)
      : device_(context.device),
        comm_(context.comm),
        blas_(context.device.blas<T>()),
        products_(context.device.blas<T>(precision)),
        matrix_(matrix),
        tiles_(matrix.tiles),
        tuning_(context.device.tuning()),
        x_(x),
        info_(info),
        log_det_(log_det),
        batches_(tiles_, matrix.rank, PanelRegions::PanelsPerUpdate(tiles_, tuning_)),
        panels_(matrix, batches_, tuning_, products_.StoredFactor(), workspace) {}

  Status Run() {
    const int64_t count = Count();
    for (auto* event : {&updated_, &prepared_, &substituted_})
      JAXMG_RETURN_IF_ERROR(device_.NewEvent(event));
    for (auto* events : {&used_, &shared_}) {
      for (auto& event : *events) JAXMG_RETURN_IF_ERROR(device_.NewEvent(&event));
    }
    for (auto* events : {&arrived_, &ready_, &solved_, &stored_}) {
      events->resize(std::max<int64_t>(count, 1));
      for (auto& event : *events) JAXMG_RETURN_IF_ERROR(device_.NewEvent(&event));
    }
    JAXMG_RETURN_IF_ERROR(TakeShare());
    for (Stream stream : kOthers) JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, stream));
    if (count > 0 && Mine(0)) JAXMG_RETURN_IF_ERROR(FactorAndSend(0));
    for (const Batch& batch : batches_.all()) {
      for (int64_t k = batch.first; k <= batch.last; ++k) {
        if (!Mine(k)) JAXMG_RETURN_IF_ERROR(Receive(k));
        if (k == batch.last) NoteSent();
        if (Mine(k + 1)) {
          JAXMG_RETURN_IF_ERROR(UpdateNext(k));
          JAXMG_RETURN_IF_ERROR(FactorAndSend(k + 1));
        }
        JAXMG_RETURN_IF_ERROR(UpdateWindow(k));
      }
      JAXMG_RETURN_IF_ERROR(UpdateTrailing(batch));
      JAXMG_RETURN_IF_ERROR(Release(batch));
    }
    for (Stream stream : kOthers) JAXMG_RETURN_IF_ERROR(Order(device_, stream, Stream::kMain));
    return WaitAllSent(comm_, Stream::kMain);
  }

 private:
  static constexpr std::array<Stream, 4> kOthers = {Stream::kPanel, Stream::kNext, Stream::kCopy,
                                                    Stream::kSide};

  int64_t Count() const { return tiles_.nonempty(); }
  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  int64_t WidthIn(int64_t slot) const { return tiles_.width(tiles_.tile_in(matrix_.rank, slot)); }

  // What goes along with panel k: the solved right-hand sides of tile k.
  Bytes2D Solved(int64_t k) const {
    return Block(x_.column(tiles_.offset(k)), x_.count, x_.count, tiles_.width(k));
  }

  Status TakeShare() {
    for (int64_t slot = 0; x_.count > 0 && slot < tiles_.slots(); ++slot) {
      const int64_t p = tiles_.tile_in(matrix_.rank, slot);
      JAXMG_RETURN_IF_ERROR(device_.Copy(
          Stream::kMain, Block(x_.of_slot(tiles_, slot), x_.count, x_.count, tiles_.width(p)),
          Solved(p)));
    }
    return Status::Ok();
  }

  // --- What waits for what ---------------------------------------------------------------------

  // For panel k, and for its gathered rows too.
  Status AwaitPanel(Stream stream, int64_t k) { return device_.Wait(stream, *arrived_[k]); }
  Status Await(Stream stream, int64_t k) { return device_.Wait(stream, *ready_[k]); }

  // `stream` may overwrite what the batch before the last one was in.
  Status AwaitBuffer(Stream stream, int64_t k) {
    const int64_t index = batches_.of(k).index;
    if (index < 2) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(device_.Wait(stream, *used_[index % 2]));
    return x_.count == 0 ? Status::Ok() : device_.Wait(stream, *shared_[index % 2]);
  }

  void NoteSent() {
    sent_.resize(tiles_.ranks());
    for (int peer = 0; peer < tiles_.ranks(); ++peer) sent_[peer] = comm_.Sent(peer);
  }

  // All that reads the panels of a batch is on kMain, or kMain waits for it here, on kNext before a
  // panel that kMain has waited for; but for right-hand sides on kSide.
  Status Release(const Batch& batch) {
    for (int64_t k = batch.first; k <= batch.last; ++k) {
      if (Mine(k)) JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kMain, *stored_[k]));
    }
    if (Mine(batch.last + 1)) JAXMG_RETURN_IF_ERROR(Await(Stream::kMain, batch.last + 1));
    if (tuning_.borrow_panels) {
      if (Mine(batch.last)) return Status::Ok();
      JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kSide, Stream::kMain));
      return comm_.Return(Stream::kMain, tiles_.owner(batch.last));
    }
    for (int peer = 0; peer < tiles_.ranks(); ++peer) {
      if (peer == matrix_.rank) continue;
      JAXMG_RETURN_IF_ERROR(comm_.WaitSent(Stream::kMain, peer, sent_[peer]));
    }
    JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kSide, shared_[batch.index % 2].get()));
    return device_.Record(Stream::kMain, used_[batch.index % 2].get());
  }

  // --- What passes between ranks ---------------------------------------------------------------

  // Where a panel goes first, and on from a rank that has received it; -1: nowhere.
  int Next(int64_t root) const {
    const int next = (matrix_.rank + 1) % tiles_.ranks();
    return tuning_.chain && next != root ? next : -1;
  }

  Status Send(Stream stream, int64_t k, const Bytes2D& block) {
    if (tiles_.ranks() == 1) return Status::Ok();
    if (!tuning_.chain) return Broadcast(comm_, stream, matrix_.rank, block);
    return comm_.Send(stream, Next(tiles_.owner(k)), block);
  }

  Status ReceiveBlock(Stream stream, int64_t k, const Bytes2D& block) {
    const int root = tiles_.owner(k);
    const int previous =
        tuning_.chain ? (matrix_.rank + tiles_.ranks() - 1) % tiles_.ranks() : root;
    JAXMG_RETURN_IF_ERROR(comm_.Recv(stream, previous, block));
    return Next(root) < 0 ? Status::Ok() : comm_.Send(stream, Next(root), block);
  }

  Status Receive(int64_t k) {
    const int64_t width = tiles_.width(k);
    JAXMG_RETURN_IF_ERROR(AwaitBuffer(Stream::kCopy, k));
    if (tuning_.borrow_panels) {
      Bytes2D block;
      JAXMG_RETURN_IF_ERROR(comm_.Borrow(Stream::kCopy, tiles_.owner(k), &block));
      panels_.Borrow(block);
    }
    const int64_t step = panels_.in_place() ? width : tuning_.panel_block;
    for (int64_t column = 0; column < width && !tuning_.borrow_panels; column += step) {
      JAXMG_RETURN_IF_ERROR(
          ReceiveBlock(Stream::kCopy, k, panels_.Piece(k, column, std::min(step, width - column))));
    }
    JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kCopy, arrived_[k].get()));
    JAXMG_RETURN_IF_ERROR(GatherRows(Stream::kCopy, k));
    JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kCopy, ready_[k].get()));
    if (x_.count == 0) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(ReceiveBlock(Stream::kSide, k, Solved(k)));
    return device_.Record(Stream::kSide, solved_[k].get());
  }

  // --- The panel -------------------------------------------------------------------------------

  Status FactorAndSend(int64_t k) {
    const int64_t begin = tiles_.offset(k);
    const DiagonalTile<T> tile = DiagonalOf(matrix_, k);
    {
      const Range range(device_, Stream::kPanel, "potrf", k);
      JAXMG_RETURN_IF_ERROR(
          blas_.Potrf(Stream::kPanel, tile.n, matrix_.tile(k, begin), tile.ld, begin, info_));
    }
    const bool last = panels_.Below(k) == 0;
    if (!last) {
      JAXMG_RETURN_IF_ERROR(AwaitBuffer(Stream::kPanel, k));
      if (k > 0) JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kPanel, *updated_));
      {
        const Range range(device_, Stream::kPanel, "panel", k);
        JAXMG_RETURN_IF_ERROR(panels_.in_place() ? SolveInPlace(k, tile) : SolveInPieces(k, tile));
      }
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kPanel, arrived_[k].get()));
      JAXMG_RETURN_IF_ERROR(GatherRows(Stream::kPanel, k));
    }
    JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kPanel, ready_[k].get()));
    if (x_.count > 0) {
      JAXMG_RETURN_IF_ERROR(SolveShare(k, tile));
      if (!last) JAXMG_RETURN_IF_ERROR(Send(Stream::kSide, k, Solved(k)));
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kSide, solved_[k].get()));
    }
    if (!last) JAXMG_RETURN_IF_ERROR(StorePanel(k));
    if (log_det_ != nullptr) {
      JAXMG_RETURN_IF_ERROR(blas_.AddLogDet(Stream::kPanel, tile.n, tile.l, tile.ld, log_det_));
    }
    return device_.Record(Stream::kPanel, stored_[k].get());
  }

  // The right-hand sides of tile k: the updates by the panels of its batch, those of earlier ones
  // being kMain's, and the forward substitution.
  Status SolveShare(int64_t k, const DiagonalTile<T>& tile) {
    const int64_t slot = tiles_.slot(k), width = tiles_.width(k);
    JAXMG_RETURN_IF_ERROR(Await(Stream::kSide, k));  // for the tile
    if (k > 0) {
      const Batch& batch = batches_.of(k - 1);
      if (batch.index > 0) {
        JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kSide, *substituted_));
      }
      const Factor<T> rows = panels_.FactorFrom(batch.first, tiles_.offset(k));
      JAXMG_RETURN_IF_ERROR(UpdateShare(Stream::kSide, slot, width, batch.first, k - 1, rows));
    }
    const Range range(device_, Stream::kSide, "right-hand sides", k);
    T* share = x_.of_slot(tiles_, slot);
    T* solved = x_.column(tiles_.offset(k));
    JAXMG_RETURN_IF_ERROR(SolveForward(device_, Stream::kSide, tile, x_.count, share, solved));
    return device_.Copy(Stream::kSide, Block(share, x_.count, x_.count, width), Solved(k));
  }

  Status SolveInPlace(int64_t k, const DiagonalTile<T>& tile) {
    const Panel<T> panel = panels_.Of(k);
    JAXMG_RETURN_IF_ERROR(blas_.Trsm(Stream::kPanel, Side::kRight, Op::kConjTrans, panels_.Below(k),
                                     tile.n, tile.l, tile.ld, panel.data, panel.ld));
    return Send(Stream::kPanel, k, panels_.Piece(k, 0, tile.n));
  }

  // Piece by piece: X_c = (B_c - X_<c L_c,<c^H) L_cc^-H, sent as soon as it is there.
  Status SolveInPieces(int64_t k, const DiagonalTile<T>& tile) {
    const Panel<T> panel = panels_.Of(k);
    const int64_t m = panels_.Below(k), ld = tile.ld, block = tuning_.panel_block;
    T* below = matrix_.tile(k, tiles_.offset(k + 1));
    for (int64_t column = 0; column < tile.n; column += block) {
      const int64_t columns = std::min(block, tile.n - column);
      T* right_side = below + column * ld;
      if (column > 0) {
        JAXMG_RETURN_IF_ERROR(products_.Gemm(Stream::kPanel, Op::kNone, Op::kConjTrans, m, columns,
                                             column, -1, panel.data, panel.ld, tile.l + column, ld,
                                             1, right_side, ld));
      }
      JAXMG_RETURN_IF_ERROR(blas_.SolveRight(Stream::kPanel, Op::kConjTrans, m, columns,
                                             tile.l + column * ld + column, ld, right_side, ld,
                                             panel.data + column * panel.ld, panel.ld));
      JAXMG_RETURN_IF_ERROR(Send(Stream::kPanel, k, panels_.Piece(k, column, columns)));
    }
    return Status::Ok();
  }

  // A panel that was solved out of place goes where it belongs.
  Status StorePanel(int64_t k) {
    if (panels_.in_place()) return Status::Ok();
    const Range range(device_, Stream::kPanel, "store panel", k);
    const T* target = matrix_.tile(k, tiles_.offset(k + 1));
    return device_.Copy(Stream::kPanel,
                        Block(target, matrix_.ld(), panels_.Below(k), tiles_.width(k)),
                        panels_.Piece(k, 0, tiles_.width(k)));
  }

  // The rows of panel k that meet this rank's trailing tile columns.
  Status GatherRows(Stream stream, int64_t k) {
    if (!panels_.gathers()) return Status::Ok();
    const Range range(device_, stream, "gather rows", k);
    const Batch& batch = batches_.of(k);
    const Panel<T> panel = panels_.Of(k);
    const int64_t before = tiles_.offset(k) - tiles_.offset(batch.first);
    for (int64_t slot = batches_.FirstTrailing(batch); slot < batches_.EndTrailing(); ++slot) {
      const int64_t j = tiles_.tile_in(matrix_.rank, slot), rows = WidthIn(slot);
      const int64_t columns = tiles_.width(k);
      const T* source = panel.data + (tiles_.offset(j) - tiles_.offset(k + 1));
      const Factor<T> target = panels_.Gathered(batch, slot);
      if (target.op == Op::kNone) {
        JAXMG_RETURN_IF_ERROR(blas_.ConjTranspose(stream, rows, columns, source, panel.ld,
                                                  target.data + before, target.ld));
      } else {
        T* data = target.data + before * target.ld;
        JAXMG_RETURN_IF_ERROR(device_.Copy(stream, Block(data, target.ld, rows, columns),
                                           Block(source, panel.ld, rows, columns)));
      }
    }
    return Status::Ok();
  }

  // --- Updates ---------------------------------------------------------------------------------

  // Diagonal tile j by panels [first, k]: C -= B B^H, B their rows j.
  Status UpdateDiagonal(Stream stream, int64_t j, int64_t first, int64_t k) {
    const int64_t begin = tiles_.offset(j);
    const Panel<T> b = panels_.From(first, begin);
    return products_.Herk(stream, tiles_.width(j), panels_.Depth(first, k), -1, b.data, b.ld, 1,
                          matrix_.tile(j, begin), matrix_.ld());
  }

  // Rows [begin, end) of tile column j: C -= A B^H, A those rows of the panels, B their rows j.
  Status UpdateRows(Stream stream, int64_t j, int64_t begin, int64_t end, int64_t first, int64_t k,
                    const Factor<T>& b) {
    const Panel<T> a = panels_.From(first, begin);
    return products_.Gemm(stream, Op::kNone, b.op, end - begin, tiles_.width(j),
                          panels_.Depth(first, k), -1, a.data, a.ld, b.data, b.ld, 1,
                          matrix_.tile(j, begin), matrix_.ld());
  }

  // Tile column j, from its diagonal tile to row `end`.
  Status UpdateTile(Stream stream, int64_t j, int64_t end, int64_t first, int64_t k,
                    const Factor<T>& b) {
    JAXMG_RETURN_IF_ERROR(UpdateDiagonal(stream, j, first, k));
    return UpdateRows(stream, j, tiles_.offset(j + 1), end, first, k, b);
  }

  // This rank's right-hand sides from `slot` on by panels [first, k]: X -= Y B^H.
  Status UpdateShare(Stream stream, int64_t slot, int64_t columns, int64_t first, int64_t k,
                     const Factor<T>& b) {
    JAXMG_RETURN_IF_ERROR(device_.Wait(stream, *solved_[k]));
    return blas_.Gemm(stream, Op::kNone, b.op, x_.count, columns, panels_.Depth(first, k), -1,
                      x_.column(tiles_.offset(first)), x_.count, b.data, b.ld, 1,
                      x_.of_slot(tiles_, slot), x_.count);
  }

  // Tile column k + 1 by panel k, on the critical path: the diagonal tile on kPanel, what is below
  // it on kNext while that tile is factored, which leaves the hardware almost idle. Both follow the
  // updates by earlier panels: of the batch, on kNext, and of earlier batches, on kMain.
  Status UpdateNext(int64_t k) {
    const int64_t j = k + 1;
    JAXMG_RETURN_IF_ERROR(AwaitWindow(k));
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kNext, Stream::kPanel));
    {
      JAXMG_RETURN_IF_ERROR(AwaitPanel(Stream::kPanel, k));
      const Range range(device_, Stream::kPanel, "update next tile", k);
      JAXMG_RETURN_IF_ERROR(UpdateDiagonal(Stream::kPanel, j, k, k));
    }
    JAXMG_RETURN_IF_ERROR(AwaitPanel(Stream::kNext, k));
    const Range range(device_, Stream::kNext, "update next", k);
    JAXMG_RETURN_IF_ERROR(UpdateRows(Stream::kNext, j, tiles_.offset(j + 1), tiles_.columns(), k, k,
                                     panels_.FactorFrom(k, tiles_.offset(j))));
    return device_.Record(Stream::kNext, updated_.get());
  }

  // The other tile columns that are factored with this batch or next after it, by panel k.
  Status UpdateWindow(int64_t k) {
    for (int64_t j = k + 2; j <= batches_.of(k).last + 1; ++j) {
      if (!Mine(j)) continue;
      JAXMG_RETURN_IF_ERROR(AwaitWindow(k));
      JAXMG_RETURN_IF_ERROR(AwaitPanel(Stream::kNext, k));
      const Range range(device_, Stream::kNext, "update window", k);
      JAXMG_RETURN_IF_ERROR(UpdateTile(Stream::kNext, j, tiles_.columns(), k, k,
                                       panels_.FactorFrom(k, tiles_.offset(j))));
    }
    return Status::Ok();
  }

  // kNext goes on when kMain has updated the window of panel k's batch by the batch before.
  Status AwaitWindow(int64_t k) {
    return batches_.of(k).index == 0 ? Status::Ok() : device_.Wait(Stream::kNext, *prepared_);
  }

  // All of this rank's tile columns behind a batch and the tile that follows it: first those that
  // the next batch factors.
  Status UpdateTrailing(const Batch& batch) {
    for (int64_t k = batch.first; k <= batch.last; ++k) {
      JAXMG_RETURN_IF_ERROR(Await(Stream::kMain, k));
    }
    {
      const Range range(device_, Stream::kMain, "update", batch.last);
      const int64_t first = batches_.FirstTrailing(batch), window = batches_.EndOfWindow(batch);
      JAXMG_RETURN_IF_ERROR(UpdateSlots(Stream::kMain, batch, first, window));
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kMain, prepared_.get()));
      // What is too small to fill the device goes beside what does.
      JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kSide));
      JAXMG_RETURN_IF_ERROR(UpdateSlots(Stream::kSide, batch, window, batches_.EndTrailing()));
      JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kSide, Stream::kMain));
    }
    if (x_.count == 0) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(UpdateShares(batch));
    return device_.Record(Stream::kMain, substituted_.get());
  }

  // Slots in [slot, end): those side by side share one product below the last of them, on kMain;
  // what lies above that is `beside`'s.
  Status UpdateSlots(Stream beside, const Batch& batch, int64_t slot, int64_t end) {
    while (slot < end) {
      int64_t after = slot, columns = 0;
      do {
        columns += WidthIn(after++);
      } while (after < end && columns + WidthIn(after) <= tuning_.group_columns &&
               matrix_.slot(after) == matrix_.slot(slot) + columns * matrix_.ld());
      JAXMG_RETURN_IF_ERROR(UpdateGroup(beside, batch, slot, after, columns));
      slot = after;
    }
    return Status::Ok();
  }

  // Slots in [slot, end), `columns` columns side by side.
  Status UpdateGroup(Stream beside, const Batch& batch, int64_t slot, int64_t end,
                     int64_t columns) {
    const int64_t bottom = tiles_.offset(tiles_.tile_in(matrix_.rank, end - 1) + 1);
    for (int64_t s = slot; s < end; ++s) {
      JAXMG_RETURN_IF_ERROR(UpdateTile(beside, tiles_.tile_in(matrix_.rank, s), bottom, batch.first,
                                       batch.last, panels_.FactorOfSlot(batch, s)));
    }
    const Panel<T> a = panels_.From(batch.first, bottom);
    const Factor<T> b = panels_.FactorOfSlot(batch, slot);
    return products_.Gemm(Stream::kMain, Op::kNone, b.op, tiles_.columns() - bottom, columns,
                          panels_.Depth(batch.first, batch.last), -1, a.data, a.ld, b.data, b.ld, 1,
                          matrix_.slot(slot) + bottom, matrix_.ld());
  }

  // This rank's right-hand sides of its trailing tiles. Rows that were gathered lie side by side,
  // as shares do except behind a narrow tile, and are multiplied at once.
  Status UpdateShares(const Batch& batch) {
    auto is_last = [&](int64_t slot) {
      return !panels_.gathers() || WidthIn(slot) < tiles_.width() ||
             slot + 1 == batches_.EndTrailing();
    };
    for (int64_t slot = batches_.FirstTrailing(batch), end; slot < batches_.EndTrailing();
         slot = end) {
      for (end = slot + 1; !is_last(end - 1);) ++end;
      JAXMG_RETURN_IF_ERROR(UpdateShare(Stream::kMain, slot, batches_.Columns(slot, end),
                                        batch.first, batch.last,
                                        panels_.FactorOfSlot(batch, slot)));
    }
    return Status::Ok();
  }

  Device& device_;
  Communicator& comm_;
  Blas<T>& blas_;
  Blas<T>& products_;  // in the precision that the caller wants
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const Tuning tuning_;
  const RightHandSides<T>& x_;
  int32_t* const info_;
  Real<T>* const log_det_;
  const Batches batches_;
  Panels<T> panels_;
  // By panel: it is there; so are its gathered rows; its right-hand sides; it is where it belongs.
  std::vector<std::shared_ptr<Event>> arrived_, ready_, solved_, stored_;
  // By the parity of a batch: kMain, and kSide, are through with it.
  std::array<std::shared_ptr<Event>, 2> used_, shared_;
  std::shared_ptr<Event> updated_;      // below the diagonal tile that is factored next
  std::shared_ptr<Event> prepared_;     // kMain has updated the next window
  std::shared_ptr<Event> substituted_;  // and right-hand sides, by the last batch
  std::vector<int64_t> sent_;           // blocks sent to each rank with the batch and before
};

}  // namespace

int64_t PotrfWorkspace(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  return PanelRegions(tiles, rows, tuning).size;
}

template <typename T>
Status Potrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const RightHandSides<T>& x, T* workspace, int32_t* info, Real<T>* log_det) {
  return Factorization<T>(context, precision, matrix, x, workspace, info, log_det).Run();
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template Status Potrf(const RankContext&, Precision, const Matrix<T>&, const RightHandSides<T>&, \
                        T*, int32_t*, Real<T>*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
