// Products of tall matrices that are distributed by rows, and sums over ranks of small matrices. A
// rank's rows, read as column-major, are X (n x rows). Enqueued on kMain.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_PRODUCTS_H_
#define JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_PRODUCTS_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

inline constexpr int kFirstRank = 0;

// The number of rows that RowSquares multiplies with each other at a time.
inline constexpr int64_t kRowsOfSquares = 32;

template <typename T>
class TallProducts {
 public:
  explicit TallProducts(const RankContext& context)
      : device_(context.device), comm_(context.comm), tuning_(device_.tuning()) {}

  // Returns whether this rank computes the small results that all ranks need: every rank does, or
  // only the first one.
  bool works() const { return !tuning_.qr.small_on_one || comm_.rank() == kFirstRank; }

  // Computes the lower triangle of G := X X^H + beta G, by groups of columns from their diagonal
  // block down. Doesn't use HERK, which is slow if X has many more columns than rows.
  Status Gram(int64_t n, int64_t rows, const T* x, Real<T> beta, T* g) {
    for (int64_t j = 0; j < n; j += width()) {
      JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kConjTrans, n - j,
                                        std::min(width(), n - j), rows, 1, x + j, n, x + j, n, beta,
                                        g + j * (n + 1), n));
    }
    return Status::Ok();
  }

  // Y := L X with a lower triangle L that has zeros above its diagonal. Y must not overlap X.
  Status TimesLower(int64_t n, int64_t rows, const T* l, const T* x, T* y) {
    for (int64_t i = 0; i < n; i += width()) {
      const int64_t height = std::min(width(), n - i);
      JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kNone, height, rows, i + height, 1,
                                        l + i, n, x, n, 0, y + i, n));
    }
    return Status::Ok();
  }

  // squares_i := the sum of |x_ij|^2 over j, for X m x n. `products` has kRowsOfSquares^2 elements.
  Status RowSquares(int64_t m, int64_t n, const T* x, T* products, T* squares) {
    for (int64_t i = 0; i < m; i += kRowsOfSquares) {
      const int64_t count = std::min(kRowsOfSquares, m - i);
      JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kConjTrans, count, count, n, 1, x + i,
                                        m, x + i, m, 0, products, count));
      JAXMG_RETURN_IF_ERROR(device_.CopyWithin(kMain, Block(squares + i, 1, 1, count),
                                               Block(products, count + 1, 1, count)));
    }
    return Status::Ok();
  }

  // Sums up all ranks' matrices (m x n, contiguous) on the ranks that work, which get the same
  // bits. Each rank sums up a part of the columns and sends it to all, unless only one rank works.
  // `lower`: only the lower triangle of a square matrix. `received` is as large as the matrix.
  Status SumOverRanks(int64_t m, int64_t n, T* data, bool lower, T* received) {
    const int ranks = comm_.size(), rank = comm_.rank();
    if (ranks == 1 || m == 0) return Status::Ok();
    auto part = [&](T* first, int of) {
      const int64_t width = (n + ranks - 1) / ranks, begin = std::min(of * width, n);
      const int64_t above = lower ? begin : 0;
      return Block(first + begin * m + above, m, m - above, std::min(width, n - begin));
    };
    for (int owner = 0; owner < ranks; ++owner) {
      const int adder = tuning_.qr.small_on_one ? kFirstRank : owner;
      if (adder != rank && part(data, owner).columns > 0) {
        JAXMG_RETURN_IF_ERROR(comm_.Send(kMain, adder, part(data, owner)));
      }
    }
    for (int owner = 0; owner < ranks; ++owner) {
      const int adder = tuning_.qr.small_on_one ? kFirstRank : owner;
      const Bytes2D target = part(data, owner), source = part(received, owner);
      if (adder != rank || target.columns == 0) continue;
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        JAXMG_RETURN_IF_ERROR(comm_.Recv(kMain, peer, source));
        JAXMG_RETURN_IF_ERROR(blas().Add(kMain, target.height / sizeof(T), target.columns,
                                         static_cast<T*>(source.data), m,
                                         static_cast<T*>(target.data), m));
      }
    }
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, kMain));
    if (tuning_.qr.small_on_one) return Status::Ok();
    if (part(data, rank).columns > 0) {
      JAXMG_RETURN_IF_ERROR(comm_.SendToAll(kMain, part(data, rank)));
    }
    for (int owner = 0; owner < ranks; ++owner) {
      if (owner == rank || part(data, owner).columns == 0) continue;
      JAXMG_RETURN_IF_ERROR(comm_.Recv(kMain, owner, part(data, owner)));
    }
    return WaitAllSent(comm_, kMain);
  }

  // Sends the first rank's block to all ranks.
  Status FromFirst(const Bytes2D& block) {
    if (comm_.size() == 1 || block.height * block.columns == 0) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(Broadcast(comm_, kMain, kFirstRank, block));
    return WaitAllSent(comm_, kMain);
  }
  // Sends a matrix to all ranks if only the first rank works.
  Status Spread(int64_t m, int64_t n, T* data) {
    return tuning_.qr.small_on_one ? FromFirst(Block(data, m, m, n)) : Status::Ok();
  }

 private:
  static constexpr Stream kMain = Stream::kMain;

  Blas<T>& blas() { return device_.blas<T>(); }
  // Returns the number of columns or rows of a triangle to compute at a time.
  int64_t width() const { return std::max<int64_t>(tuning_.usual_tile / 2, 1); }

  Device& device_;
  Communicator& comm_;
  const Tuning tuning_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_PRODUCTS_H_
