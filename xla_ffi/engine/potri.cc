#include "xla_ffi/engine/potri.h"

#include <algorithm>
#include <complex>
#include <functional>
#include <vector>

namespace jaxmg {
namespace {

// Hands every rank copies of the tile columns 0, 1, ... from their diagonal tiles down, each one
// step before it is needed.
template <typename T>
class ColumnFeed {
 public:
  ColumnFeed(const RankContext& context, const Matrix<T>& matrix, T* workspace)
      : device_(context.device),
        comm_(context.comm),
        matrix_(matrix),
        tiles_(matrix.tiles),
        workspace_(workspace) {}

  // Calls step(k, column k, its leading dimension) for all k, in order, on Stream::kMain.
  Status ForEachColumn(const std::function<Status(int64_t, const T*, int64_t)>& step) {
    for (auto* events : {&fetched_, &used_}) {
      events->resize(2);
      for (auto& event : *events) JAXMG_RETURN_IF_ERROR(device_.NewEvent(&event));
    }
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kCopy));
    const int64_t count = tiles_.nonempty();
    if (count > 0) JAXMG_RETURN_IF_ERROR(Fetch(0));
    for (int64_t k = 0; k < count; ++k) {
      if (k + 1 < count) JAXMG_RETURN_IF_ERROR(Fetch(k + 1));
      JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kMain, *fetched_[k % 2]));
      JAXMG_RETURN_IF_ERROR(step(k, Buffer(k), Height(k)));
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kMain, used_[k % 2].get()));
    }
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, Stream::kCopy));
    return Order(device_, Stream::kCopy, Stream::kMain);
  }

 private:
  int64_t Height(int64_t k) const { return tiles_.columns() - tiles_.offset(k); }
  T* Buffer(int64_t k) const { return workspace_ + (k % 2) * matrix_.rows * tiles_.width(); }

  Status Fetch(int64_t k) {
    if (k >= 2) JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kCopy, *used_[k % 2]));
    const Bytes2D buffer = Block(Buffer(k), Height(k), Height(k), tiles_.width(k));
    if (sent_ >= 0 && sent_ % 2 == k % 2) {
      JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, Stream::kCopy));
      sent_ = -1;
    }
    if (tiles_.owner(k) == matrix_.rank) {
      const T* column = matrix_.tile(k, tiles_.offset(k));
      JAXMG_RETURN_IF_ERROR(device_.Copy(Stream::kCopy, buffer,
                                         Block(column, matrix_.ld(), Height(k), tiles_.width(k))));
      sent_ = k;
    }
    JAXMG_RETURN_IF_ERROR(Broadcast(comm_, Stream::kCopy, tiles_.owner(k), buffer));
    return device_.Record(Stream::kCopy, fetched_[k % 2].get());
  }

  Device& device_;
  Communicator& comm_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  T* const workspace_;
  int64_t sent_ = -1;  // the last tile column that this rank sent and may still be read
  std::vector<std::shared_ptr<Event>> fetched_, used_;  // by the parity of k
};

// L to L^-1.
template <typename T>
Status Trtri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace) {
  const Tiles& tiles = matrix.tiles;
  Blas<T>& blas = context.device.blas<T>();
  Blas<T>& products = context.device.blas<T>(precision);
  const int64_t ld = matrix.ld();
  auto step = [&](int64_t k, const T* column, int64_t height) -> Status {
    const Range range(context.device, Stream::kMain, "trtri", k);
    const int64_t width = tiles.width(k), begin = tiles.offset(k), end = tiles.offset(k + 1);
    const int64_t below = tiles.columns() - end;
    auto solve = [&](int64_t, T* run, int64_t columns) {
      return blas.Trsm(Stream::kMain, Side::kLeft, Op::kNone, width, columns, column, height,
                       run + begin, ld);
    };
    JAXMG_RETURN_IF_ERROR(matrix.ForRuns(tiles.slots_before(matrix.rank, k), solve));
    if (tiles.owner(k) == matrix.rank) {
      // Its own column takes part in the product below like the others, starting from nothing.
      JAXMG_RETURN_IF_ERROR(blas.Trtri(Stream::kMain, width, matrix.tile(k, begin), ld));
      JAXMG_RETURN_IF_ERROR(blas.SetZero(Stream::kMain, below, width, matrix.tile(k, end), ld));
    }
    auto subtract = [&](int64_t, T* run, int64_t columns) {
      return products.Gemm(Stream::kMain, Op::kNone, Op::kNone, below, columns, width, -1,
                           column + width, height, run + begin, ld, 1, run + end, ld);
    };
    return matrix.ForRuns(tiles.slots_before(matrix.rank, k + 1), subtract);
  };
  return ColumnFeed<T>(context, matrix, workspace).ForEachColumn(step);
}

// W to the lower triangle of W^H W.
template <typename T>
Status Lauum(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace) {
  const Tiles& tiles = matrix.tiles;
  Blas<T>& blas = context.device.blas<T>();
  Blas<T>& products = context.device.blas<T>(precision);
  const int64_t ld = matrix.ld();
  auto step = [&](int64_t k, const T* column, int64_t height) -> Status {
    const Range range(context.device, Stream::kMain, "lauum", k);
    const int64_t width = tiles.width(k), begin = tiles.offset(k), end = tiles.offset(k + 1);
    const int64_t below = tiles.columns() - end;
    auto multiply = [&](int64_t, T* run, int64_t columns) -> Status {
      JAXMG_RETURN_IF_ERROR(blas.Trmm(Stream::kMain, Side::kLeft, Op::kConjTrans, width, columns,
                                      column, height, run + begin, ld));
      if (below == 0) return Status::Ok();
      return products.Gemm(Stream::kMain, Op::kConjTrans, Op::kNone, width, columns, below, 1,
                           column + width, height, run + end, ld, 1, run + begin, ld);
    };
    return matrix.ForRuns(tiles.slots_before(matrix.rank, k + 1), multiply);
  };
  return ColumnFeed<T>(context, matrix, workspace).ForEachColumn(step);
}

}  // namespace

template <typename T>
Status Potri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace) {
  JAXMG_RETURN_IF_ERROR(Trtri(context, precision, matrix, workspace));
  return Lauum(context, precision, matrix, workspace);
}

template <typename T>
Status Symmetrize(const RankContext& context, const Matrix<T>& matrix, T* workspace) {
  const Tiles& tiles = matrix.tiles;
  const int64_t ld = matrix.ld(), n = tiles.columns();
  Blas<T>& blas = context.device.blas<T>();
  auto begin = [&](int rank) { return std::min(rank * tiles.block(), n); };
  const int rank = matrix.rank, ranks = tiles.ranks();
  const int64_t first = begin(rank), width = begin(rank + 1) - first;
  // The rows of each later rank, in pieces as wide as the workspace of its receiver.
  auto for_pieces = [&](int source, const std::function<Status(int64_t, int64_t)>& f) -> Status {
    for (int64_t column = begin(source); column < begin(source + 1); column += tiles.width()) {
      JAXMG_RETURN_IF_ERROR(f(column, std::min(tiles.width(), begin(source + 1) - column)));
    }
    return Status::Ok();
  };
  for (int peer = rank + 1; peer < ranks; ++peer) {
    const int64_t rows = begin(peer + 1) - begin(peer);
    if (rows == 0) continue;
    JAXMG_RETURN_IF_ERROR(for_pieces(rank, [&](int64_t column, int64_t columns) {
      const T* piece = matrix.data + (column - first) * ld + begin(peer);
      return context.comm.Send(Stream::kMain, peer, Block(piece, ld, rows, columns));
    }));
  }
  JAXMG_RETURN_IF_ERROR(blas.MirrorLower(Stream::kMain, width, matrix.data + first, ld));
  for (int peer = rank - 1; peer >= 0 && width > 0; --peer) {
    JAXMG_RETURN_IF_ERROR(for_pieces(peer, [&](int64_t column, int64_t columns) -> Status {
      JAXMG_RETURN_IF_ERROR(
          context.comm.Recv(Stream::kMain, peer, Block(workspace, width, width, columns)));
      return blas.ConjTranspose(Stream::kMain, width, columns, workspace, width,
                                matrix.data + column, ld);
    }));
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

#define JAXMG_INSTANTIATE(T)                                                  \
  template Status Potri(const RankContext&, Precision, const Matrix<T>&, T*); \
  template Status Symmetrize(const RankContext&, const Matrix<T>&, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
