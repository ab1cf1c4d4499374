#include "xla_ffi/engine/potri.h"

#include <algorithm>
#include <array>
#include <complex>
#include <functional>
#include <numeric>
#include <vector>

namespace jaxmg {
namespace {

// Hands every rank what all ranks need in turn, each one step before it is needed: two buffers take
// turns, which `gather` fills on Stream::kCopy and sends from.
template <typename T>
class Feed {
 public:
  Feed(const RankContext& context, T* workspace, int64_t buffer_size)
      : device_(context.device),
        comm_(context.comm),
        buffers_{workspace, workspace + buffer_size} {}

  // Calls step(k, buffer) for every k of `order`, on Stream::kMain.
  Status ForEach(const std::vector<int64_t>& order,
                 const std::function<Status(int64_t, T*)>& gather,
                 const std::function<Status(int64_t, const T*)>& step) {
    for (auto* events : {&fetched_, &used_}) {
      for (auto& event : *events) JAXMG_RETURN_IF_ERROR(device_.NewEvent(&event));
    }
    JAXMG_RETURN_IF_ERROR(Order(device_, Stream::kMain, Stream::kCopy));
    auto fetch = [&](size_t i) -> Status {
      if (i >= 2) JAXMG_RETURN_IF_ERROR(AwaitBuffer(i % 2));
      JAXMG_RETURN_IF_ERROR(gather(order[i], buffers_[i % 2]));
      sent_[i % 2].resize(comm_.size());
      for (int peer = 0; peer < comm_.size(); ++peer) sent_[i % 2][peer] = comm_.Sent(peer);
      return device_.Record(Stream::kCopy, fetched_[i % 2].get());
    };
    if (!order.empty()) JAXMG_RETURN_IF_ERROR(fetch(0));
    for (size_t i = 0; i < order.size(); ++i) {
      if (i + 1 < order.size()) JAXMG_RETURN_IF_ERROR(fetch(i + 1));
      JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kMain, *fetched_[i % 2]));
      JAXMG_RETURN_IF_ERROR(step(order[i], buffers_[i % 2]));
      JAXMG_RETURN_IF_ERROR(device_.Record(Stream::kMain, used_[i % 2].get()));
    }
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, Stream::kCopy));
    return Order(device_, Stream::kCopy, Stream::kMain);
  }

 private:
  // Nobody reads the buffer any more.
  Status AwaitBuffer(int parity) {
    JAXMG_RETURN_IF_ERROR(device_.Wait(Stream::kCopy, *used_[parity]));
    for (int peer = 0; peer < comm_.size(); ++peer) {
      if (peer == comm_.rank()) continue;
      JAXMG_RETURN_IF_ERROR(comm_.WaitSent(Stream::kCopy, peer, sent_[parity][peer]));
    }
    return Status::Ok();
  }

  Device& device_;
  Communicator& comm_;
  const std::array<T*, 2> buffers_;
  // By the parity of the step.
  std::array<std::shared_ptr<Event>, 2> fetched_, used_;
  std::array<std::vector<int64_t>, 2> sent_;  // blocks to each rank when the buffer had been sent
};

// L below the diagonal to V = L^-H above it.
template <typename T>
Status Trtri(const RankContext& context, Precision precision, const Matrix<T>& matrix, T* buffers,
             T* one_tile) {
  const Tiles& tiles = matrix.tiles;
  Device& device = context.device;
  Communicator& comm = context.comm;
  Blas<T>& blas = device.blas<T>();
  Blas<T>& products = device.blas<T>(precision);
  const int rank = matrix.rank;
  const int64_t ld = matrix.ld(), count = tiles.nonempty();
  // Row k of tiles, from the first to the diagonal one: one below the other in the buffer's
  // columns.
  auto gather = [&](int64_t k, T* row) -> Status {
    const int64_t height = tiles.width(k);
    auto piece = [&](int64_t j) {
      return Block(row + tiles.offset(j) * height, height, height, tiles.width(j));
    };
    for (int64_t j = rank; j <= k; j += tiles.ranks()) {
      JAXMG_RETURN_IF_ERROR(
          device.Copy(Stream::kCopy, piece(j),
                      Block(matrix.tile(j, tiles.offset(k)), ld, height, tiles.width(j))));
      JAXMG_RETURN_IF_ERROR(Broadcast(comm, Stream::kCopy, rank, piece(j)));
    }
    for (int64_t j = 0; j <= k; ++j) {
      if (tiles.owner(j) == rank) continue;
      JAXMG_RETURN_IF_ERROR(Broadcast(comm, Stream::kCopy, tiles.owner(j), piece(j)));
    }
    return Status::Ok();
  };
  auto step = [&](int64_t k, const T* row) -> Status {
    const int64_t width = tiles.width(k), begin = tiles.offset(k);
    const T* l = row + begin * width;
    const Range range(device, Stream::kMain, "trtri", k);
    auto solve = [&](int64_t, T* run, int64_t columns) {
      return blas.Trsm(Stream::kMain, Side::kLeft, Op::kConjTrans, width, columns, l, width,
                       run + begin, ld);
    };
    auto subtract = [&](int64_t, T* run, int64_t columns) {
      return products.Gemm(Stream::kMain, Op::kConjTrans, Op::kNone, begin, columns, width, -1, row,
                           width, run + begin, ld, 1, run, ld);
    };
    const int64_t end = tiles.slots_before(rank, count);
    JAXMG_RETURN_IF_ERROR(matrix.ForRuns(tiles.slots_before(rank, k + 1), end, solve));
    if (tiles.owner(k) == rank) {
      // Its own column takes part in the product above like the others, starting from nothing.
      JAXMG_RETURN_IF_ERROR(blas.Trtri(Stream::kMain, width, l, width, one_tile, width));
      JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, width, width, one_tile, width,
                                               matrix.tile(k, begin), ld));
      JAXMG_RETURN_IF_ERROR(blas.SetZero(Stream::kMain, begin, width, matrix.tile(k), ld));
    }
    return matrix.ForRuns(tiles.slots_before(rank, k), end, subtract);
  };
  std::vector<int64_t> order(count);
  for (int64_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return Feed<T>(context, buffers, matrix.rows * tiles.width()).ForEach(order, gather, step);
}

// V above the diagonal to W = V^H below it.
template <typename T>
Status TransposeUpper(const RankContext& context, const Matrix<T>& matrix, T* one_tile) {
  const Tiles& tiles = matrix.tiles;
  Blas<T>& blas = context.device.blas<T>();
  const int rank = matrix.rank;
  const int64_t ld = matrix.ld(), count = tiles.nonempty();
  auto source = [&](int64_t i, int64_t j) {
    return Block(matrix.tile(j, tiles.offset(i)), ld, tiles.width(i), tiles.width(j));
  };
  for (int64_t j = rank; j < count; j += tiles.ranks()) {
    for (int64_t i = 0; i < j; ++i) {
      if (tiles.owner(i) == rank) continue;
      JAXMG_RETURN_IF_ERROR(context.comm.Send(Stream::kMain, tiles.owner(i), source(i, j)));
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = rank; i <= j; i += tiles.ranks()) {
      const int64_t rows = tiles.width(i), columns = tiles.width(j);
      const Bytes2D tile = Block(one_tile, rows, rows, columns);
      JAXMG_RETURN_IF_ERROR(tiles.owner(j) == rank
                                ? context.device.Copy(Stream::kMain, tile, source(i, j))
                                : context.comm.Recv(Stream::kMain, tiles.owner(j), tile));
      JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, rows, columns, one_tile, rows,
                                               matrix.tile(i, tiles.offset(j)), ld));
    }
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

// W to the lower triangle of W^H W.
template <typename T>
Status Lauum(const RankContext& context, Precision precision, const Matrix<T>& matrix, T* buffers) {
  const Tiles& tiles = matrix.tiles;
  Blas<T>& blas = context.device.blas<T>();
  Blas<T>& products = context.device.blas<T>(precision);
  const int64_t ld = matrix.ld();
  auto height = [&](int64_t k) { return tiles.columns() - tiles.offset(k); };
  // Column k from its diagonal tile down.
  auto gather = [&](int64_t k, T* column) -> Status {
    const Bytes2D buffer = Block(column, height(k), height(k), tiles.width(k));
    if (tiles.owner(k) == matrix.rank) {
      JAXMG_RETURN_IF_ERROR(context.device.Copy(
          Stream::kCopy, buffer,
          Block(matrix.tile(k, tiles.offset(k)), ld, height(k), tiles.width(k))));
    }
    return Broadcast(context.comm, Stream::kCopy, tiles.owner(k), buffer);
  };
  auto step = [&](int64_t k, const T* column) -> Status {
    const Range range(context.device, Stream::kMain, "lauum", k);
    const int64_t width = tiles.width(k), begin = tiles.offset(k), end = tiles.offset(k + 1);
    const int64_t below = tiles.columns() - end;
    auto multiply = [&](int64_t, T* run, int64_t columns) -> Status {
      JAXMG_RETURN_IF_ERROR(blas.Trmm(Stream::kMain, Side::kLeft, Op::kConjTrans, width, columns,
                                      column, height(k), run + begin, ld));
      if (below == 0) return Status::Ok();
      return products.Gemm(Stream::kMain, Op::kConjTrans, Op::kNone, width, columns, below, 1,
                           column + width, height(k), run + end, ld, 1, run + begin, ld);
    };
    return matrix.ForRuns(0, tiles.slots_before(matrix.rank, k + 1), multiply);
  };
  std::vector<int64_t> order(tiles.nonempty());
  std::iota(order.begin(), order.end(), 0);
  return Feed<T>(context, buffers, matrix.rows * tiles.width()).ForEach(order, gather, step);
}

}  // namespace

template <typename T>
Status Potri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace) {
  T* one_tile = workspace + 2 * matrix.rows * matrix.tiles.width();
  JAXMG_RETURN_IF_ERROR(Trtri(context, precision, matrix, workspace, one_tile));
  JAXMG_RETURN_IF_ERROR(TransposeUpper(context, matrix, one_tile));
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
