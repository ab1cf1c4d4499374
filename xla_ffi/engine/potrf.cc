#include "xla_ffi/engine/potrf.h"

#include <algorithm>
#include <array>
#include <complex>
#include <memory>
#include <vector>

namespace jaxmg {
namespace {

// The workspace, in elements from its begin.
struct Regions {
  Regions(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
    const int64_t width = tiles.width();
    const bool received = tiles.ranks() > 1 && !tuning.borrow_panels;
    const bool buffers = received || tuning.inverted_block > 0;
    panel = buffers ? rows * width : 0;
    gathered = tuning.group_columns > 0 ? tiles.slots() * width * width : 0;
    size = 2 * panel + 2 * gathered;
  }
  int64_t panel;     // size of each of two panel buffers
  int64_t gathered;  // size of each of two sets of the rows of a panel that meet this rank's tiles
  int64_t size;
};

// Panel k as a rank has it: the rows below diagonal tile k.
template <typename T>
struct Panel {
  T* data;
  int64_t ld;
};

template <typename T>
class Factorization {
 public:
  Factorization(const RankContext& context, Precision precision, const Matrix<T>& matrix,
                const InvertedDiagonals<T>& inverses, const RightHandSides<T>& x, T* workspace,
                int32_t* info, Real<T>* log_det)
      : device_(context.device),
        comm_(context.comm),
        blas_(context.device.blas<T>()),
        products_(context.device.blas<T>(precision)),
        matrix_(matrix),
        tiles_(matrix.tiles),
        tuning_(context.device.tuning()),
        regions_(matrix.tiles, matrix.rows, tuning_),
        inverses_(inverses),
        x_(x),
        workspace_(workspace),
        info_(info),
        log_det_(log_det) {}

  Status Run() {
    const int64_t count = tiles_.nonempty();
    JAXMG_RETURN_IF_ERROR(device_.NewEvent(&updated_));
    for (auto* events : {&used_, &received_, &factored_, &solved_, &stored_}) {
      for (auto& event : *events) JAXMG_RETURN_IF_ERROR(device_.NewEvent(&event));
    }
    JAXMG_RETURN_IF_ERROR(TakeShare());
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kPanel));
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kCopy));
    if (count > 0 && Mine(0)) JAXMG_RETURN_IF_ERROR(FactorAndSend(0));
    for (int64_t k = 0; k + 1 < count; ++k) {
      if (!Mine(k)) JAXMG_RETURN_IF_ERROR(Receive(k));
      if (Mine(k + 1)) {
        // Updates of tile column k + 1 with earlier panels are on kMain.
        JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kPanel));
        JAXMG_RETURN_IF_ERROR(Await(Stream::kPanel, k));
        JAXMG_RETURN_IF_ERROR(UpdateNextDiagonal(k));
      }
      JAXMG_RETURN_IF_ERROR(Await(Stream::kMain, k));
      if (Mine(k + 1)) {
        // While its diagonal tile is factored, which leaves the hardware almost idle.
        JAXMG_RETURN_IF_ERROR(UpdateNextBelow(k));
        JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kMain, updated_.get()));
        JAXMG_RETURN_IF_ERROR(FactorAndSend(k + 1));
      }
      JAXMG_RETURN_IF_ERROR(UpdateTrailing(k));
      // All that reads panel k is on kMain, or on kPanel and done when it is stored or panel k + 1
      // is there, or the right-hand sides of tile k + 1 (AwaitBuffer).
      if (Mine(k)) JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kMain, *stored_[k % 2]));
      if (Mine(k + 1)) JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kMain, *factored_[(k + 1) % 2]));
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kMain, used_[k % 2].get()));
      if (!Mine(k) && tuning_.borrow_panels) {
        if (Mine(k + 1)) JAXMG_RETURN_IF_ERROR(AwaitSolved(Stream::kMain, k + 1));
        JAXMG_RETURN_IF_ERROR(comm_.Return(Stream::kMain, tiles_.owner(k)));
      }
    }
    for (Stream stream : {Stream::kPanel, Stream::kCopy}) {
      JAXMG_RETURN_IF_ERROR(Order(device_, stream, Stream::kMain));
    }
    return WaitAllSent(comm_, Stream::kMain);
  }

 private:
  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  bool InPlace() const { return tuning_.inverted_block == 0; }
  int64_t Below(int64_t k) const { return tiles_.columns() - tiles_.offset(k + 1); }
  T* Inverses(int64_t k) const {
    return InPlace() ? nullptr : inverses_.of_slot(tiles_, tiles_.slot(k));
  }
  T* Buffer(int64_t k) const { return workspace_ + (k % 2) * regions_.panel; }
  T* Gathered(int64_t k) const {
    return workspace_ + 2 * regions_.panel + (k % 2) * regions_.gathered;
  }
  // This rank's tile columns that panel k updates on kMain: all beyond k + 1.
  int64_t FirstTrailing(int64_t k) const { return tiles_.slots_before(matrix_.rank, k + 2); }
  int64_t EndTrailing() const { return tiles_.slots_before(matrix_.rank, tiles_.nonempty()); }
  int64_t TrailingColumns(int64_t k) const {
    int64_t columns = 0;
    for (int64_t slot = FirstTrailing(k); slot < EndTrailing(); ++slot) columns += WidthIn(slot);
    return columns;
  }

  Panel<T> PanelOf(int64_t k) const {
    if (Mine(k) && InPlace()) return {matrix_.tile(k, tiles_.offset(k + 1)), matrix_.ld()};
    if (tuning_.borrow_panels) return borrowed_;
    return {Buffer(k), Below(k)};
  }

  Bytes2D Piece(int64_t k, int64_t column, int64_t columns) const {
    const Panel<T> panel = PanelOf(k);
    return Block(panel.data + column * panel.ld, panel.ld, Below(k), columns);
  }

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

  Status ReceiveBlock(int64_t k, const Bytes2D& block) {
    const int root = tiles_.owner(k);
    const int previous =
        tuning_.chain ? (matrix_.rank + tiles_.ranks() - 1) % tiles_.ranks() : root;
    JAXMG_RETURN_IF_ERROR(comm_.Recv(Stream::kCopy, previous, block));
    return Next(root) < 0 ? Status::Ok() : comm_.Send(Stream::kCopy, Next(root), block);
  }

  // `stream` may overwrite the buffer that panel k - 2 was in.
  Status AwaitBuffer(Stream stream, int64_t k) {
    if (k >= 2) {
      JAXMG_RETURN_IF_ERROR(device_.Wait(stream, *used_[k % 2]));
      if (Mine(k - 1)) JAXMG_RETURN_IF_ERROR(AwaitSolved(stream, k - 1));
    }
    for (size_t peer = 0; peer < sent_[k % 2].size(); ++peer) {
      if (static_cast<int>(peer) == matrix_.rank) continue;
      JAXMG_RETURN_IF_ERROR(comm_.WaitSent(stream, static_cast<int>(peer), sent_[k % 2][peer]));
    }
    return Status::Ok();
  }

  void NoteSent(int64_t k) {
    sent_[k % 2].resize(tiles_.ranks());
    for (int peer = 0; peer < tiles_.ranks(); ++peer) sent_[k % 2][peer] = comm_.Sent(peer);
  }

  Status Receive(int64_t k) {
    const int64_t width = tiles_.width(k);
    JAXMG_RETURN_IF_ERROR(AwaitBuffer(Stream::kCopy, k));
    if (tuning_.borrow_panels) {
      Bytes2D block;
      JAXMG_RETURN_IF_ERROR(comm_.Borrow(Stream::kCopy, tiles_.owner(k), &block));
      borrowed_ = {static_cast<T*>(block.data), static_cast<int64_t>(block.pitch / sizeof(T))};
    }
    const int64_t step = InPlace() ? width : tuning_.inverted_block;
    for (int64_t column = 0; column < width && !tuning_.borrow_panels; column += step) {
      JAXMG_RETURN_IF_ERROR(ReceiveBlock(k, Piece(k, column, std::min(step, width - column))));
    }
    JAXMG_RETURN_IF_ERROR(GatherRows(Stream::kCopy, k));
    JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kCopy, received_[k % 2].get()));
    if (x_.count > 0) {
      JAXMG_RETURN_IF_ERROR(ReceiveBlock(k, Solved(k)));
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kCopy, solved_[k % 2].get()));
    }
    NoteSent(k);
    return Status::Ok();
  }

  Status Await(Stream stream, int64_t k) {
    return device_.Wait(stream, Mine(k) ? *factored_[k % 2] : *received_[k % 2]);
  }

  // For the solved right-hand sides of tile k, which come after the panel.
  Status AwaitSolved(Stream stream, int64_t k) {
    return x_.count == 0 ? Status::Ok() : device_.Wait(stream, *solved_[k % 2]);
  }

  // --- The panel -------------------------------------------------------------------------------

  Status FactorAndSend(int64_t k) {
    const int64_t width = tiles_.width(k), begin = tiles_.offset(k), ld = matrix_.ld();
    T* diagonal = matrix_.tile(k, begin);
    {
      const Range range(device_, Stream::kPanel, "potrf", k);
      JAXMG_RETURN_IF_ERROR(blas_.Potrf(Stream::kPanel, width, diagonal, ld, begin, info_));
    }
    const bool last = Below(k) == 0;
    const DiagonalTile<T> tile = {diagonal, ld, width, Inverses(k), tuning_.inverted_block};
    if (!InPlace()) {
      const Range range(device_, Stream::kPanel, "invert blocks", k);
      JAXMG_RETURN_IF_ERROR(blas_.InvertDiagonalBlocks(
          Stream::kPanel, width, tuning_.inverted_block, diagonal, ld, Inverses(k)));
    }
    if (!last) {
      JAXMG_RETURN_IF_ERROR(AwaitBuffer(Stream::kPanel, k));
      if (k > 0) JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kPanel, *updated_));
      const Range range(device_, Stream::kPanel, "panel", k);
      JAXMG_RETURN_IF_ERROR(InPlace() ? SolveInPlace(k, diagonal) : SolveInPieces(k, tile));
    }
    JAXMG_RETURN_IF_ERROR(GatherRows(Stream::kPanel, k));
    JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kPanel, factored_[k % 2].get()));
    // After the panel, for which others wait more.
    if (x_.count > 0) {
      JAXMG_RETURN_IF_ERROR(SolveShare(k, tile));
      if (!last) JAXMG_RETURN_IF_ERROR(Send(Stream::kPanel, k, Solved(k)));
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kPanel, solved_[k % 2].get()));
    }
    NoteSent(k);
    if (log_det_ != nullptr) {
      JAXMG_RETURN_IF_ERROR(blas_.AddLogDet(Stream::kPanel, width, diagonal, ld, log_det_));
    }
    if (!last) JAXMG_RETURN_IF_ERROR(StorePanel(k));
    return device_.Record(Stream::kPanel, stored_[k % 2].get());
  }

  // The right-hand sides of tile k: the last update, by panel k - 1, and the forward substitution.
  Status SolveShare(int64_t k, const DiagonalTile<T>& tile) {
    const int64_t slot = tiles_.slot(k), width = tiles_.width(k);
    if (k > 0) {
      JAXMG_RETURN_IF_ERROR(AwaitSolved(Stream::kPanel, k - 1));
      const Panel<T> panel = PanelOf(k - 1);
      JAXMG_RETURN_IF_ERROR(UpdateShare(Stream::kPanel, slot, width, k - 1, panel.data, panel.ld));
    }
    const Range range(device_, Stream::kPanel, "right-hand sides", k);
    T* share = x_.of_slot(tiles_, slot);
    T* solved = x_.column(tiles_.offset(k));
    JAXMG_RETURN_IF_ERROR(SolveForward(device_, Stream::kPanel, tile, x_.count, share, solved));
    return device_.Copy(Stream::kPanel, Block(share, x_.count, x_.count, width), Solved(k));
  }

  Status SolveInPlace(int64_t k, const T* diagonal) {
    const Panel<T> panel = PanelOf(k);
    JAXMG_RETURN_IF_ERROR(blas_.Trsm(Stream::kPanel, Side::kRight, Op::kConjTrans, Below(k),
                                     tiles_.width(k), diagonal, matrix_.ld(), panel.data,
                                     panel.ld));
    return Send(Stream::kPanel, k, Piece(k, 0, tiles_.width(k)));
  }

  // Piece by piece: X_c = (B_c - X_<c L_c,<c^H) L_cc^-H, sent as soon as it is there.
  Status SolveInPieces(int64_t k, const DiagonalTile<T>& tile) {
    const Panel<T> panel = PanelOf(k);
    const int64_t m = Below(k), ld = matrix_.ld(), block = tile.block;
    T* below = matrix_.tile(k, tiles_.offset(k + 1));
    for (int64_t column = 0; column < tiles_.width(k); column += block) {
      const int64_t columns = std::min(block, tiles_.width(k) - column);
      T* right_side = below + column * ld;
      if (column > 0) {
        JAXMG_RETURN_IF_ERROR(products_.Gemm(Stream::kPanel, Op::kNone, Op::kConjTrans, m, columns,
                                             column, -1, panel.data, panel.ld, tile.l + column, ld,
                                             1, right_side, ld));
      }
      const T* inverse = tile.inverses + column * block;
      JAXMG_RETURN_IF_ERROR(products_.Gemm(Stream::kPanel, Op::kNone, Op::kConjTrans, m, columns,
                                           columns, 1, right_side, ld, inverse, block, 0,
                                           panel.data + column * panel.ld, panel.ld));
      JAXMG_RETURN_IF_ERROR(Send(Stream::kPanel, k, Piece(k, column, columns)));
    }
    return Status::Ok();
  }

  // A panel that was solved out of place goes where it belongs.
  Status StorePanel(int64_t k) {
    if (InPlace()) return Status::Ok();
    const Range range(device_, Stream::kPanel, "store panel", k);
    const T* target = matrix_.tile(k, tiles_.offset(k + 1));
    return device_.Copy(Stream::kPanel, Block(target, matrix_.ld(), Below(k), tiles_.width(k)),
                        Piece(k, 0, tiles_.width(k)));
  }

  // The rows of panel k that meet this rank's trailing tile columns, one below the other, so that
  // tile columns that lie side by side can share one large product.
  Status GatherRows(Stream stream, int64_t k) {
    if (tuning_.group_columns == 0) return Status::Ok();
    const Range range(device_, stream, "gather rows", k);
    const Panel<T> panel = PanelOf(k);
    const int64_t total = TrailingColumns(k);
    T* target = Gathered(k);
    for (int64_t slot = FirstTrailing(k); slot < EndTrailing(); ++slot) {
      const int64_t j = tiles_.tile_in(matrix_.rank, slot);
      const T* source = panel.data + (tiles_.offset(j) - tiles_.offset(k + 1));
      JAXMG_RETURN_IF_ERROR(device_.Copy(stream,
                                         Block(target, total, WidthIn(slot), tiles_.width(k)),
                                         Block(source, panel.ld, WidthIn(slot), tiles_.width(k))));
      target += WidthIn(slot);
    }
    return Status::Ok();
  }

  // --- Updates ---------------------------------------------------------------------------------

  // Diagonal tile j: C -= B B^H, B rows j of the panel.
  Status UpdateDiagonal(Stream stream, int64_t j, int64_t k) {
    const Panel<T> panel = PanelOf(k);
    const int64_t begin = tiles_.offset(j);
    return products_.Herk(stream, tiles_.width(j), tiles_.width(k), -1,
                          panel.data + (begin - tiles_.offset(k + 1)), panel.ld, 1,
                          matrix_.tile(j, begin), matrix_.ld());
  }

  // Rows [begin, end) of tile column j: C -= A B^H, A those rows of the panel, B its rows j.
  Status UpdateRows(Stream stream, int64_t j, int64_t begin, int64_t end, int64_t k, const T* b,
                    int64_t ldb) {
    const Panel<T> panel = PanelOf(k);
    return products_.Gemm(stream, Op::kNone, Op::kConjTrans, end - begin, tiles_.width(j),
                          tiles_.width(k), -1, panel.data + (begin - tiles_.offset(k + 1)),
                          panel.ld, b, ldb, 1, matrix_.tile(j, begin), matrix_.ld());
  }

  // Tile column j, from its diagonal tile to row `end`.
  Status UpdateTile(Stream stream, int64_t j, int64_t end, int64_t k, const T* b, int64_t ldb) {
    if (!tuning_.separate_diagonal) {
      return UpdateRows(stream, j, tiles_.offset(j), end, k, b, ldb);
    }
    JAXMG_RETURN_IF_ERROR(UpdateDiagonal(stream, j, k));
    return UpdateRows(stream, j, tiles_.offset(j + 1), end, k, b, ldb);
  }

  // This rank's right-hand sides from `slot` on: X -= Y_k B^H.
  Status UpdateShare(Stream stream, int64_t slot, int64_t columns, int64_t k, const T* b,
                     int64_t ldb) {
    return blas_.Gemm(stream, Op::kNone, Op::kConjTrans, x_.count, columns, tiles_.width(k), -1,
                      x_.column(tiles_.offset(k)), x_.count, b, ldb, 1, x_.of_slot(tiles_, slot),
                      x_.count);
  }

  // Tile column k + 1, on the critical path.
  Status UpdateNextDiagonal(int64_t k) {
    const Range range(device_, Stream::kPanel, "update next tile", k);
    return UpdateDiagonal(Stream::kPanel, k + 1, k);
  }
  Status UpdateNextBelow(int64_t k) {
    const Range range(device_, Stream::kMain, "update next", k);
    const Panel<T> panel = PanelOf(k);
    return UpdateRows(Stream::kMain, k + 1, tiles_.offset(k + 2), tiles_.columns(), k, panel.data,
                      panel.ld);
  }

  // All tile columns of this rank beyond k + 1; those side by side share one product below the last
  // of them.
  Status UpdateTrailing(int64_t k) {
    {
      const Range range(device_, Stream::kMain, "update", k);
      JAXMG_RETURN_IF_ERROR(tuning_.group_columns == 0 ? UpdateOneByOne(k) : UpdateGroups(k));
    }
    return UpdateShares(k);
  }

  Status UpdateGroups(int64_t k) {
    const int64_t last = EndTrailing(), total = TrailingColumns(k);
    const T* rows = Gathered(k);
    for (int64_t slot = FirstTrailing(k); slot < last;) {
      int64_t end = slot, columns = 0;
      do {
        columns += WidthIn(end++);
      } while (end < last && columns + WidthIn(end) <= tuning_.group_columns &&
               matrix_.slot(end) == matrix_.slot(slot) + columns * matrix_.ld());
      JAXMG_RETURN_IF_ERROR(UpdateGroup(k, slot, end, columns, rows, total));
      rows += columns;
      slot = end;
    }
    return Status::Ok();
  }

  Status UpdateOneByOne(int64_t k) {
    const Panel<T> panel = PanelOf(k);
    for (int64_t slot = FirstTrailing(k); slot < EndTrailing(); ++slot) {
      const int64_t j = tiles_.tile_in(matrix_.rank, slot);
      const T* rows = panel.data + (tiles_.offset(j) - tiles_.offset(k + 1));
      JAXMG_RETURN_IF_ERROR(UpdateTile(Stream::kMain, j, tiles_.columns(), k, rows, panel.ld));
    }
    return Status::Ok();
  }

  // This rank's right-hand sides beyond tile k + 1. Rows that were gathered lie side by side, as
  // shares do except behind a narrow tile, and are multiplied at once.
  Status UpdateShares(int64_t k) {
    if (x_.count == 0) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(AwaitSolved(Stream::kMain, k));
    const bool gathered = tuning_.group_columns > 0;
    const Panel<T> panel = gathered ? Panel<T>{Gathered(k), TrailingColumns(k)} : PanelOf(k);
    auto is_last = [&](int64_t slot) {
      return !gathered || WidthIn(slot) < tiles_.width() || slot + 1 == EndTrailing();
    };
    int64_t before = 0, end = 0;
    for (int64_t slot = FirstTrailing(k); slot < EndTrailing(); slot = end) {
      int64_t columns = WidthIn(slot);
      for (end = slot + 1; !is_last(end - 1); ++end) columns += WidthIn(end);
      const int64_t j = tiles_.tile_in(matrix_.rank, slot);
      const T* rows = panel.data + (gathered ? before : tiles_.offset(j) - tiles_.offset(k + 1));
      JAXMG_RETURN_IF_ERROR(UpdateShare(Stream::kMain, slot, columns, k, rows, panel.ld));
      before += columns;
    }
    return Status::Ok();
  }

  int64_t WidthIn(int64_t slot) const { return tiles_.width(tiles_.tile_in(matrix_.rank, slot)); }

  // Tile columns in [slot, end), `columns` columns side by side; `b` is their rows of the panel.
  Status UpdateGroup(int64_t k, int64_t slot, int64_t end, int64_t columns, const T* b,
                     int64_t ldb) {
    const Panel<T> panel = PanelOf(k);
    const int64_t bottom = tiles_.offset(tiles_.tile_in(matrix_.rank, end - 1) + 1);
    const T* rows = b;
    for (int64_t s = slot; s < end; ++s) {
      const int64_t j = tiles_.tile_in(matrix_.rank, s);
      JAXMG_RETURN_IF_ERROR(UpdateTile(Stream::kMain, j, bottom, k, rows, ldb));
      rows += WidthIn(s);
    }
    return products_.Gemm(Stream::kMain, Op::kNone, Op::kConjTrans, tiles_.columns() - bottom,
                          columns, tiles_.width(k), -1,
                          panel.data + (bottom - tiles_.offset(k + 1)), panel.ld, b, ldb, 1,
                          matrix_.slot(slot) + bottom, matrix_.ld());
  }

  Device& device_;
  Communicator& comm_;
  Blas<T>& blas_;
  Blas<T>& products_;  // in the precision that the caller wants
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const Tuning tuning_;
  const Regions regions_;
  const InvertedDiagonals<T>& inverses_;
  const RightHandSides<T>& x_;
  T* const workspace_;
  int32_t* const info_;
  Real<T>* const log_det_;
  // By the parity of k. used_: nothing reads panel k any more; solved_: its right-hand sides are
  // there; sent_: blocks sent to each rank when panel k had gone on.
  std::array<std::shared_ptr<Event>, 2> used_, received_, factored_, solved_, stored_;
  std::shared_ptr<Event> updated_;  // the tile column that is factored next
  std::array<std::vector<int64_t>, 2> sent_;
  Panel<T> borrowed_ = {};  // of another rank, while this one updates with it
};

}  // namespace

int64_t PotrfWorkspace(const Tiles& tiles, int64_t rows, const Tuning& tuning) {
  return Regions(tiles, rows, tuning).size;
}

template <typename T>
Status Potrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const InvertedDiagonals<T>& inverses, const RightHandSides<T>& x, T* workspace,
             int32_t* info, Real<T>* log_det) {
  return Factorization<T>(context, precision, matrix, inverses, x, workspace, info, log_det).Run();
}

#define JAXMG_INSTANTIATE(T)                                                                 \
  template Status Potrf(const RankContext&, Precision, const Matrix<T>&,                     \
                        const InvertedDiagonals<T>&, const RightHandSides<T>&, T*, int32_t*, \
                        Real<T>*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
