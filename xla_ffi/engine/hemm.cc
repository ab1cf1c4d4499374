#include "xla_ffi/engine/hemm.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/frame.h"

namespace jaxmg {
namespace {

template <typename T>
class Hemm {
 public:
  Hemm(const RankContext& context, const HermitianProduct<T>& product)
      : device_(context.device),
        comm_(context.comm),
        p_(product),
        tuning_(device_.tuning()),
        width_(std::max<int64_t>(
            std::min(p_.tile > 0 ? p_.tile : tuning_.usual_tile, Width(comm_.rank())), 1)),
        tile_(space_.Reserve<T>(width_ * width_)),
        sums_(space_.Reserve<T>(p_.nrhs * p_.n)),
        received_(space_.Reserve<T>(p_.nrhs * Width(comm_.rank()))) {}

  Status Prepare() {
    JAXMG_RETURN_IF_ERROR(device_.ReserveHandles());
    return space_.Allocate(device_);
  }

  Status Work() {
    if (p_.nrhs == 0) return Status::Ok();
    const int64_t begin = Begin(comm_.rank()), end = Begin(comm_.rank() + 1);
    JAXMG_RETURN_IF_ERROR(
        blas().SetZero(Stream::kMain, p_.nrhs, p_.n - begin, Sums(begin), p_.nrhs));
    JAXMG_RETURN_IF_ERROR(Diagonal(begin, end - begin));
    JAXMG_RETURN_IF_ERROR(Rectangle(end, p_.n - end, begin, end - begin));
    return SumOverRanks();
  }

 private:
  Blas<T>& blas() { return device_.blas<T>(); }
  int64_t Begin(int rank) const { return std::min(rank * p_.block, p_.n); }
  int64_t Width(int rank) const { return Begin(rank + 1) - Begin(rank); }
  // Of M, where its column is this rank's.
  const T* Element(int64_t row, int64_t column) const {
    return p_.a + (column - Begin(comm_.rank())) * p_.n + row;
  }
  const T* X(int64_t column) const { return p_.x + column * p_.nrhs; }
  T* Sums(int64_t column) const { return space_.Get<T>(sums_) + column * p_.nrhs; }
  Bytes2D Columns(T* first, int rank) const { return Block(first, p_.nrhs, p_.nrhs, Width(rank)); }

  // sums[:, to...] += X[:, from...] op(B).
  Status Add(Op op, int64_t to, int64_t columns, int64_t from, int64_t depth, const T* b,
             int64_t ldb) {
    return blas().Gemm(Stream::kMain, Op::kNone, op, p_.nrhs, columns, depth, 1, X(from), p_.nrhs,
                       b, ldb, 1, Sums(to), p_.nrhs);
  }

  Status Diagonal(int64_t begin, int64_t width) {
    if (width > width_) {
      const int64_t half = width / 2, middle = begin + half;
      JAXMG_RETURN_IF_ERROR(Diagonal(begin, half));
      JAXMG_RETURN_IF_ERROR(Rectangle(middle, width - half, begin, half));
      return Diagonal(middle, width - half);
    }
    if (width == 0) return Status::Ok();
    const Range range(device_, Stream::kMain, "diagonal", begin);
    T* tile = space_.Get<T>(tile_);
    JAXMG_RETURN_IF_ERROR(device_.CopyWithin(Stream::kMain, Block(tile, width, width, width),
                                             Block(Element(begin, begin), p_.n, width, width)));
    JAXMG_RETURN_IF_ERROR(blas().MirrorLower(Stream::kMain, width, tile, width));
    return Add(Op::kNone, begin, width, begin, width, tile, width);
  }

  // Of M's rows from `row` and columns from `column` on, which lie below the diagonal.
  Status Rectangle(int64_t row, int64_t rows, int64_t column, int64_t columns) {
    if (rows == 0 || columns == 0) return Status::Ok();
    const Range range(device_, Stream::kMain, "multiply", column);
    const bool pieces = tuning_.resident_bytes > 0;
    const int64_t wide = pieces ? width_ : columns;
    const int64_t row_bytes = wide * static_cast<int64_t>(sizeof(T));
    const int64_t high = pieces ? std::max<int64_t>(tuning_.resident_bytes / row_bytes, 1) : rows;
    for (int64_t j = 0; j < columns; j += wide) {
      const int64_t n = std::min(wide, columns - j);
      for (int64_t i = 0; i < rows; i += high) {
        const int64_t k = std::min(high, rows - i);
        const T* piece = Element(row + i, column + j);
        JAXMG_RETURN_IF_ERROR(Add(Op::kNone, column + j, n, row + i, k, piece, p_.n));
        JAXMG_RETURN_IF_ERROR(Add(Op::kConjTrans, row + i, k, column + j, n, piece, p_.n));
      }
    }
    return Status::Ok();
  }

  // Only ranks up to a column's own have something to add to it.
  Status SumOverRanks() {
    const int rank = comm_.rank(), ranks = comm_.size();
    const int64_t begin = Begin(rank), width = Width(rank);
    for (int peer = rank + 1; peer < ranks && Width(peer) > 0; ++peer) {
      JAXMG_RETURN_IF_ERROR(comm_.Send(Stream::kMain, peer, Columns(Sums(Begin(peer)), peer)));
    }
    const Bytes2D mine = Columns(Sums(begin), rank);
    if (width > 0) {
      T* received = space_.Get<T>(received_);
      for (int peer = 0; peer < rank; ++peer) {
        JAXMG_RETURN_IF_ERROR(comm_.Recv(Stream::kMain, peer, Columns(received, rank)));
        JAXMG_RETURN_IF_ERROR(
            blas().Add(Stream::kMain, p_.nrhs, width, received, p_.nrhs, Sums(begin), p_.nrhs));
      }
      JAXMG_RETURN_IF_ERROR(comm_.SendToAll(Stream::kMain, mine));
      JAXMG_RETURN_IF_ERROR(
          device_.Copy(Stream::kMain, Columns(p_.y + begin * p_.nrhs, rank), mine));
    }
    for (int peer = 0; peer < ranks && Width(peer) > 0; ++peer) {
      if (peer == rank) continue;
      const Bytes2D theirs = Columns(p_.y + Begin(peer) * p_.nrhs, peer);
      JAXMG_RETURN_IF_ERROR(comm_.Recv(Stream::kMain, peer, theirs));
    }
    return WaitAllSent(comm_, Stream::kMain);
  }

  Device& device_;
  Communicator& comm_;
  const HermitianProduct<T>& p_;
  const Tuning tuning_;
  Workspace space_;
  const int64_t width_;
  const size_t tile_, sums_, received_;
};

}  // namespace

template <typename T>
Status HemmRoutine(const RankContext& context, const HermitianProduct<T>& product) {
  Hemm<T> hemm(context, product);
  return RunOnAllRanks(context.comm, [&] { return hemm.Prepare(); }, [&] { return hemm.Work(); });
}

#define JAXMG_INSTANTIATE(T) \
  template Status HemmRoutine(const RankContext&, const HermitianProduct<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
