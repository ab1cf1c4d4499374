#include "xla_ffi/engine/cholesky/hemm.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/workspace.h"

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
        rows_(p_.nrhs * p_.parts),
        tile_(space_.Reserve<T>(width_ * width_)),
        sums_(space_.Reserve<T>(p_.nrhs * p_.n)),
        parts_x_(space_.Reserve<T>(p_.parts > 1 ? rows_ * p_.n : 0)),
        parts_sums_(space_.Reserve<T>(p_.parts > 1 ? rows_ * p_.n : 0)),
        received_(space_.Reserve<T>(p_.nrhs * Width(comm_.rank()))) {}

  Status Prepare() {
    JAXMG_RETURN_IF_ERROR(device_.ReserveHandles());
    return space_.Allocate(device_);
  }

  Status Work() {
    if (p_.nrhs == 0) return Status::Ok();
    const int64_t begin = Begin(comm_.rank()), end = Begin(comm_.rank() + 1);
    JAXMG_RETURN_IF_ERROR(SpreadParts());
    JAXMG_RETURN_IF_ERROR(blas().SetZero(Stream::kMain, rows_, p_.n - begin, To(begin), rows_));
    JAXMG_RETURN_IF_ERROR(Diagonal(begin, end - begin));
    JAXMG_RETURN_IF_ERROR(Rectangle(end, p_.n - end, begin, end - begin));
    JAXMG_RETURN_IF_ERROR(SumOverParts(begin));
    return SumOverRanks();
  }

 private:
  Blas<T>& blas() { return device_.blas<T>(); }
  int64_t Begin(int rank) const { return std::min(rank * p_.block, p_.n); }
  int64_t Width(int rank) const { return Begin(rank + 1) - Begin(rank); }
  // Returns an element of M, whose column must be this rank's.
  const T* Element(int64_t row, int64_t column) const {
    return p_.a + (column - Begin(comm_.rank())) * p_.n + row;
  }
  int64_t PartOf(int64_t column) const { return column * p_.parts / p_.n; }
  // Returns the first column whose PartOf is `part` or more.
  int64_t PartBegin(int64_t part) const { return (part * p_.n + p_.parts - 1) / p_.parts; }
  // Return a column of X and of the sums; with parts, both have rows for every part.
  const T* From(int64_t column) const {
    return p_.parts > 1 ? space_.Get(parts_x_) + column * rows_ : p_.x + column * rows_;
  }
  T* To(int64_t column) const {
    return p_.parts > 1 ? space_.Get(parts_sums_) + column * rows_ : Sums(column);
  }
  T* Sums(int64_t column) const { return space_.Get(sums_) + column * p_.nrhs; }
  Bytes2D Columns(T* first, int rank) const { return Block(first, p_.nrhs, p_.nrhs, Width(rank)); }

  Status SpreadParts() {
    if (p_.parts == 1) return Status::Ok();
    T* spread = space_.Get(parts_x_);
    JAXMG_RETURN_IF_ERROR(blas().SetZero(Stream::kMain, rows_, p_.n, spread, rows_));
    for (int64_t part = 0; part < p_.parts; ++part) {
      const int64_t begin = PartBegin(part), width = PartBegin(part + 1) - begin;
      if (width == 0) continue;
      const T* x = p_.x + begin * p_.nrhs;
      JAXMG_RETURN_IF_ERROR(device_.CopyWithin(
          Stream::kMain, Block(spread + begin * rows_ + part * p_.nrhs, rows_, p_.nrhs, width),
          Block(x, p_.nrhs, p_.nrhs, width)));
    }
    return Status::Ok();
  }

  // To[:, to...] += From[:, from...] op(B), only in the rows of the parts that contain the columns
  // from `from` on: X is zero there in other rows.
  Status Add(Op op, int64_t to, int64_t columns, int64_t from, int64_t depth, const T* b,
             int64_t ldb) {
    const int64_t first = PartOf(from), parts = PartOf(from + depth - 1) + 1 - first;
    const int64_t above = first * p_.nrhs;
    return blas().Gemm(Stream::kMain, Op::kNone, op, parts * p_.nrhs, columns, depth, 1,
                       From(from) + above, rows_, b, ldb, 1, To(to) + above, rows_);
  }

  // Adds the parts' products pairwise, in the columns from `begin` on.
  Status SumOverParts(int64_t begin) {
    const int64_t columns = p_.n - begin;
    if (p_.parts == 1 || columns == 0) return Status::Ok();
    for (int64_t count = p_.parts; count > 1;) {
      const int64_t left = (count + 1) / 2;
      JAXMG_RETURN_IF_ERROR(blas().Add(Stream::kMain, (count - left) * p_.nrhs, columns,
                                       To(begin) + left * p_.nrhs, rows_, To(begin), rows_));
      count = left;
    }
    return device_.CopyWithin(Stream::kMain, Block(Sums(begin), p_.nrhs, p_.nrhs, columns),
                              Block(To(begin), rows_, p_.nrhs, columns));
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
    T* tile = space_.Get(tile_);
    JAXMG_RETURN_IF_ERROR(device_.CopyWithin(Stream::kMain, Block(tile, width, width, width),
                                             Block(Element(begin, begin), p_.n, width, width)));
    JAXMG_RETURN_IF_ERROR(blas().MirrorLower(Stream::kMain, width, tile, width));
    return Add(Op::kNone, begin, width, begin, width, tile, width);
  }

  // Computes both products with a rectangle of M below the diagonal, which begins at (row, column).
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

  // A column has contributions only from its owner and the ranks before it.
  Status SumOverRanks() {
    const int rank = comm_.rank(), ranks = comm_.size();
    const int64_t begin = Begin(rank), width = Width(rank);
    for (int peer = rank + 1; peer < ranks && Width(peer) > 0; ++peer) {
      JAXMG_RETURN_IF_ERROR(comm_.Send(Stream::kMain, peer, Columns(Sums(Begin(peer)), peer)));
    }
    const Bytes2D mine = Columns(Sums(begin), rank);
    if (width > 0) {
      T* received = space_.Get(received_);
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
  const int64_t rows_;  // of X, with a row for each part of each vector
  const Piece<T> tile_, sums_, parts_x_, parts_sums_, received_;
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
