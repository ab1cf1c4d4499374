#include "xla_ffi/engine/potrf.h"

#include <complex>
#include <vector>

namespace jaxmg {
namespace {

// Where a rank finds panel k: the rows below diagonal tile k.
template <typename T>
struct Panel {
  const T* data;
  int64_t ld;
};

template <typename T>
class Factorization {
 public:
  Factorization(const RankContext& context, const Matrix<T>& matrix, const RightHandSides<T>& x,
                T* workspace, int32_t* info, Real<T>* log_det)
      : device_(context.device),
        comm_(context.comm),
        blas_(context.device.blas<T>()),
        matrix_(matrix),
        tiles_(matrix.tiles),
        x_(x),
        workspace_(workspace),
        info_(info),
        log_det_(log_det) {}

  Status Run() {
    const int64_t count = tiles_.nonempty();
    for (auto* events : {&panel_used_, &received_, &factored_}) {
      events->resize(2);
      for (auto& event : *events) JAXMG_RETURN_IF_ERROR(device_.NewEvent(&event));
    }
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kPanel));
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kCopy));
    if (count > 0 && Mine(0)) JAXMG_RETURN_IF_ERROR(FactorAndSend(0));
    for (int64_t k = 0; k + 1 < count; ++k) {
      Panel<T> panel;
      JAXMG_RETURN_IF_ERROR(ReceivePanel(k, &panel));
      if (Mine(k + 1)) {
        // Updates of tile column k + 1 with earlier panels are on kMain.
        JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kPanel));
        JAXMG_RETURN_IF_ERROR(AwaitPanel(Stream::kPanel, k));
        JAXMG_RETURN_IF_ERROR(Update(Stream::kPanel, k + 1, k, panel));
        JAXMG_RETURN_IF_ERROR(FactorAndSend(k + 1));
      }
      JAXMG_RETURN_IF_ERROR(AwaitPanel(Stream::kMain, k));
      for (int64_t slot = tiles_.slots_before(matrix_.rank, k + 2); slot < tiles_.slots();
           ++slot) {
        const int64_t j = tiles_.tile_in(matrix_.rank, slot);
        if (j >= count) break;
        JAXMG_RETURN_IF_ERROR(Update(Stream::kMain, j, k, panel));
      }
      JAXMG_RETURN_IF_ERROR(PanelUsed(k));
    }
    if (count > 0) {
      // What the owner of the last tile solved, which no update needed.
      JAXMG_RETURN_IF_ERROR(ReceiveRightHandSides(count - 1));
    }
    for (Stream stream : {Stream::kPanel, Stream::kCopy}) {
      JAXMG_RETURN_IF_ERROR(Order(device_, stream, Stream::kMain));
    }
    return WaitAllSent(comm_, Stream::kMain);
  }

 private:
  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  int64_t Below(int64_t k) const { return tiles_.columns() - tiles_.offset(k + 1); }

  Bytes2D RightHandSidesOf(int64_t k) const {
    return Block(x_.column(tiles_.offset(k)), x_.count, x_.count, tiles_.width(k));
  }

  Status FactorAndSend(int64_t k) {
    const int64_t width = tiles_.width(k), begin = tiles_.offset(k), end = tiles_.offset(k + 1);
    T* diagonal = matrix_.tile(k, begin);
    JAXMG_RETURN_IF_ERROR(
        blas_.Potrf(Stream::kPanel, width, diagonal, matrix_.ld(), begin, info_));
    T* below = matrix_.tile(k, end);
    JAXMG_RETURN_IF_ERROR(blas_.Trsm(Stream::kPanel, Side::kRight, Op::kConjTrans, Below(k), width,
                                     diagonal, matrix_.ld(), below, matrix_.ld()));
    if (x_.count > 0) {
      JAXMG_RETURN_IF_ERROR(blas_.Trsm(Stream::kPanel, Side::kRight, Op::kConjTrans, x_.count,
                                       width, diagonal, matrix_.ld(), x_.column(begin), x_.count));
    }
    if (Below(k) > 0) {
      JAXMG_RETURN_IF_ERROR(Broadcast(comm_, Stream::kPanel, matrix_.rank,
                                      Block(below, matrix_.ld(), Below(k), width)));
    }
    if (x_.count > 0) {
      JAXMG_RETURN_IF_ERROR(
          Broadcast(comm_, Stream::kPanel, matrix_.rank, RightHandSidesOf(k)));
    }
    if (log_det_ != nullptr) {
      JAXMG_RETURN_IF_ERROR(
          blas_.AddLogDet(Stream::kPanel, width, diagonal, matrix_.ld(), log_det_));
    }
    return device_.Record(Stream::kPanel, factored_[k % 2].get());
  }

  Status ReceivePanel(int64_t k, Panel<T>* panel) {
    if (Mine(k)) {
      *panel = {matrix_.tile(k, tiles_.offset(k + 1)), matrix_.ld()};
      return Status::Ok();
    }
    T* buffer = workspace_ + (k % 2) * matrix_.rows * tiles_.width();
    *panel = {buffer, Below(k)};
    if (k >= 2) JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kCopy, *panel_used_[k % 2]));
    JAXMG_RETURN_IF_ERROR(comm_.Recv(Stream::kCopy, tiles_.owner(k),
                                     Block(buffer, Below(k), Below(k), tiles_.width(k))));
    JAXMG_RETURN_IF_ERROR(ReceiveRightHandSides(k));
    return device_.Record(Stream::kCopy, received_[k % 2].get());
  }

  Status ReceiveRightHandSides(int64_t k) {
    if (Mine(k) || x_.count == 0) return Status::Ok();
    return comm_.Recv(Stream::kCopy, tiles_.owner(k), RightHandSidesOf(k));
  }

  Status AwaitPanel(Stream stream, int64_t k) {
    return device_.Wait(stream, Mine(k) ? *factored_[k % 2] : *received_[k % 2]);
  }

  // Everything enqueued so far that reads panel k is on kMain or kPanel.
  Status PanelUsed(int64_t k) {
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kPanel, Stream::kMain));
    return device_.Record(Stream::kMain, panel_used_[k % 2].get());
  }

  // Tile column j and right-hand sides j, less the product of panel k with its own rows j.
  Status Update(Stream stream, int64_t j, int64_t k, const Panel<T>& panel) {
    const int64_t begin = tiles_.offset(j), end = tiles_.offset(j + 1);
    const int64_t first_row = tiles_.offset(k + 1);
    const int64_t width = tiles_.width(j), depth = tiles_.width(k);
    const T* rows_j = panel.data + (begin - first_row);
    JAXMG_RETURN_IF_ERROR(blas_.Herk(stream, width, depth, -1, rows_j, panel.ld, 1,
                                     matrix_.tile(j, begin), matrix_.ld()));
    JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kNone, Op::kConjTrans, Below(j), width, depth, -1,
                                     panel.data + (end - first_row), panel.ld, rows_j, panel.ld, 1,
                                     matrix_.tile(j, end), matrix_.ld()));
    if (x_.count == 0) return Status::Ok();
    return blas_.Gemm(stream, Op::kNone, Op::kConjTrans, x_.count, width, depth, -1,
                      x_.column(tiles_.offset(k)), x_.count, rows_j, panel.ld, 1, x_.column(begin),
                      x_.count);
  }

  Device& device_;
  Communicator& comm_;
  Blas<T>& blas_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const RightHandSides<T>& x_;
  T* const workspace_;
  int32_t* const info_;
  Real<T>* const log_det_;
  // By the parity of k.
  std::vector<std::shared_ptr<Event>> panel_used_, received_, factored_;
};

}  // namespace

template <typename T>
int64_t PotrfWorkspace(const Tiles& tiles, int64_t rows) {
  return tiles.ranks() > 1 ? 2 * rows * tiles.width() : 0;
}

template <typename T>
Status Potrf(const RankContext& context, const Matrix<T>& matrix, const RightHandSides<T>& x,
             T* workspace, int32_t* info, Real<T>* log_det) {
  return Factorization<T>(context, matrix, x, workspace, info, log_det).Run();
}

#define JAXMG_INSTANTIATE(T)                                                                    \
  template int64_t PotrfWorkspace<T>(const Tiles&, int64_t);                                    \
  template Status Potrf(const RankContext&, const Matrix<T>&, const RightHandSides<T>&, T*,     \
                        int32_t*, Real<T>*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
