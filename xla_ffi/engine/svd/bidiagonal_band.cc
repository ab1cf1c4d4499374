#include "xla_ffi/engine/svd/bidiagonal_band.h"

#include <algorithm>
#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/eigen/band.h"

namespace jaxmg {
namespace {

constexpr Triangle kUpper = {Uplo::kUpper};

template <typename T>
class BidiagonalBand {
 public:
  BidiagonalBand(const RankContext& context, const Matrix<T>& matrix, T* workspace)
      : flow_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        rank_(matrix.rank),
        ranks_(tiles_.ranks()),
        n_(tiles_.columns()),
        b_(tiles_.width()),
        ldb_(BandRows(tiles_)),
        columns_(tiles_.slots()) {
    const int64_t own = OwnColumns(tiles_);
    auto take = [&](int64_t elements) {
      T* piece = workspace;
      workspace += elements;
      return piece;
    };
    left_ = take(b_ * (n_ + b_));
    right_ = take(b_ * (n_ + b_));
    for (T*& triangle : triangles_) triangle = take(2 * b_ * b_);
    unpacked_ = take(b_ * n_);
    panel_ = take(b_ * n_);
    row_ = take(b_ * n_);
    own_row_ = take(b_ * own);
    product_ = take(b_ * n_);
    term_ = take(b_ * n_);
    if (ranks_ > 1) {
      terms_ = take(b_ * ShareOf(n_) * ranks_);
      y_ = take(b_ * n_);
    }
    stack_ = take(2 * b_ * n_);
    own_stack_ = take(2 * b_ * own);
    small_ = take(b_ * b_);
    own_band_ = take(2 * ldb_ * own);
  }

  static int64_t Workspace(const Tiles& tiles) {
    const int64_t n = tiles.columns(), b = tiles.width(), own = OwnColumns(tiles);
    const int64_t ranks = tiles.ranks(), sum = ranks > 1 ? (n + ranks - 1) / ranks * ranks + n : 0;
    return b * (9 * n + 3 * own + sum + 7 * b) + 2 * BandRows(tiles) * own;
  }

  // Runs the reduction. kPanel factors and sends the next tile column while kMain updates the
  // columns after it.
  Status Run(T* band) {
    Begin();
    flow_.Fork();
    if (tiles_.nonempty() > 0) Column(0);
    Stage stage(flow_.device(), "reduce to a band", tiles_.nonempty(), 2 * BandWork(n_), kShrinks);
    for (int64_t k = 0; k < tiles_.nonempty(); ++k) {
      if (Behind(k) == n_) break;
      MultiplyLeft(k);
      Row(k);
      MultiplyRight(k);
      if (Mine(k + 1)) UpdateNext(k);
      Column(k + 1);
      Update(k);
      stage.Done(Stream::kMain, k + 1);
    }
    flow_.Join();
    GatherBand(band);
    return flow_.Finish();
  }

 private:
  static int64_t OwnColumns(const Tiles& tiles) { return tiles.slots() * tiles.width(); }

  bool Mine(int64_t k) const { return tiles_.owner(k) == rank_; }
  int64_t Behind(int64_t k) const { return tiles_.offset(k) + b_; }
  int64_t Trailing(int64_t k) const { return n_ - Behind(k); }

  // Returns a message from the owner of a tile column to all ranks: V^H (or X^H), b x `rows`,
  // followed by T. FactorIn returns its T.
  Bytes2D Message(const T* message, int64_t rows) const {
    return Block(message, b_, b_, rows + b_);
  }
  T* FactorIn(T* message, int64_t rows) const { return message + b_ * rows; }

  // Returns the first of a rank's slots that hold its columns after tile column k.
  int64_t FirstSlot(int64_t k, int rank) const { return tiles_.slots_before(rank, k + 1); }
  int64_t ColumnsOf(int64_t k, int rank) const {
    return (tiles_.slots() - FirstSlot(k, rank)) * b_;
  }
  int64_t Own(int64_t k) const { return ColumnsOf(k, rank_); }
  T* OwnColumnsBehind(int64_t k) const { return matrix_.slot(FirstSlot(k, rank_)); }
  // Return blocks with b elements for each of a rank's columns after tile column k; one column of a
  // block has the b x b elements of a tile. The rank's tiles are contiguous in `packed`, and lie
  // between those of the other ranks in `all`.
  Bytes2D Packed(const T* packed, int64_t k, int rank) const {
    return Block(packed, b_ * b_, b_ * b_, tiles_.slots() - FirstSlot(k, rank));
  }
  Bytes2D Spread(const T* all, int64_t k, int rank) const {
    const int64_t slot = FirstSlot(k, rank), before = tiles_.tile_in(rank, slot) - (k + 1);
    return Block(all + before * b_ * b_, ranks_ * b_ * b_, b_ * b_, tiles_.slots() - slot);
  }

  // Share returns the share of `count` columns of b elements that a rank sums up, ShareOf its
  // width. The last shares may be narrower.
  int64_t ShareOf(int64_t count) const { return (count + ranks_ - 1) / ranks_; }
  Bytes2D Share(const T* all, int64_t count, int rank) const {
    const int64_t first = std::min(rank * ShareOf(count), count);
    return Block(all + first * b_, b_, b_, std::min(ShareOf(count), count - first));
  }

  void Begin() {
    Step<T> on(flow_, Stream::kMain);
    for (T* triangle : triangles_) on.SetZero(b_, b_, triangle, 2 * b_);
    on.SetZero(ldb_, 2 * OwnColumns(tiles_), own_band_, ldb_);
  }

  // Factors the panel `a`, rows x b, sends its message to all ranks, and stores its triangle in the
  // band: R for `side` 0, L^H for 1. A column of the band begins at the diagonal, which is zero.
  void Factor(Step<T>& on, int64_t k, int side, int64_t rows, T* a, int64_t lda, T* message) {
    on.QrPanel(rows, b_, a, lda, FactorIn(message, rows), b_);
    T* triangle = triangles_[side];
    on.Copy(Block(triangle + b_, 2 * b_, b_, b_), Block(a, lda, b_, b_));
    on.PackBand(b_, b_, b_, triangle, 2 * b_, own_band_ + (2 * tiles_.slot(k) + side) * b_ * ldb_,
                ldb_);
    T* unpacked = side == 0 ? unpacked_ : row_;
    on.UnpackReflectors(rows, b_, a, lda, unpacked, rows);
    on.ConjTranspose(rows, b_, unpacked, rows, message, b_);
    on.Broadcast(rank_, Message(message, rows));
  }

  // Sends V and T of tile column k to all ranks.
  void Column(int64_t k) {
    const int64_t rows = n_ - tiles_.offset(k);
    Step<T> on(flow_, Stream::kPanel, "column panel", k);
    on.AwaitsSent(left_room_);
    if (!Mine(k)) {
      on.Gives(reflectors_);
      return on.Broadcast(tiles_.owner(k), Message(left_, rows));
    }
    on.Writes(columns_[tiles_.slot(k)]).Gives(reflectors_);
    Factor(on, k, 0, rows, matrix_.tile(k, tiles_.offset(k)), n_, left_);
    flow_.NoteSent(left_room_);
  }

  // Computes W^H = T^H V^H A for this rank's columns, and A - V W^H for their part of the row of
  // tiles, which is sent to the owner of the tile column.
  void MultiplyLeft(int64_t k) {
    const int64_t rows = n_ - tiles_.offset(k), own = Own(k);
    Step<T> on(flow_, Stream::kMain, "multiply left", k);
    on.Reads(reflectors_).Reads(columns_, FirstSlot(k, rank_), tiles_.slots()).Writes(stacks_);
    on.AwaitsSent(row_room_);
    if (own > 0) {
      const T* a = OwnColumnsBehind(k) + tiles_.offset(k);
      // Computed as A^H V, which is faster in BLAS.
      on.Gemm(Op::kConjTrans, Op::kConjTrans, own, b_, rows, 1, a, n_, left_, b_, 0, product_, own);
      on.ConjTranspose(own, b_, product_, own, own_stack_, 2 * b_);
      on.Trmm(Side::kLeft, Op::kConjTrans, b_, own, FactorIn(left_, rows), b_, own_stack_, 2 * b_,
              kUpper);
      on.Copy(Block(own_row_, b_, b_, own), Block(a, n_, b_, own));
      on.Gemm(Op::kConjTrans, Op::kNone, b_, own, b_, -1, left_, b_, own_stack_, 2 * b_, 1,
              own_row_, b_);
    }
    const int owner = tiles_.owner(k);
    if (owner != rank_) {
      if (own > 0) on.Send(owner, Packed(own_row_, k, rank_));
      return flow_.NoteSent(row_room_);
    }
    for (int peer = 0; peer < ranks_; ++peer) {
      if (ColumnsOf(k, peer) == 0) continue;
      const Bytes2D place = Spread(row_, k, peer);
      peer == rank_ ? on.Copy(place, Packed(own_row_, k, peer)) : on.Recv(peer, place);
    }
  }

  // Sends X and T' of the row of tiles right of diagonal tile k to all ranks.
  void Row(int64_t k) {
    const int64_t rows = Trailing(k);
    Step<T> on(flow_, Stream::kMain, "row panel", k);
    on.AwaitsSent(right_room_);
    if (!Mine(k)) return on.Broadcast(tiles_.owner(k), Message(right_, rows));
    on.ConjTranspose(b_, rows, row_, b_, panel_, rows);
    Factor(on, k, 1, rows, panel_, rows, right_);
    flow_.NoteSent(right_room_);
  }

  // Computes Y^H = T'^H X^H (A - V W^H)^H, a sum of terms of all ranks' columns.
  void MultiplyRight(int64_t k) {
    const int64_t rows = Trailing(k), own = Own(k);
    Step<T> on(flow_, Stream::kMain, "multiply right", k);
    on.Reads(reflectors_).Reads(columns_, FirstSlot(k, rank_), tiles_.slots()).Gives(stacks_);
    on.AwaitsSent(term_room_).AwaitsSent(y_room_);
    const T* below = left_ + b_ * b_;  // V^H without the columns of the diagonal tile
    if (own > 0) {
      T* x = own_stack_ + b_;
      on.Copy(Packed(product_, k, rank_), Spread(right_, k, rank_));
      on.Copy(Block(x, 2 * b_, b_, own), Block(product_, b_, b_, own));
      on.Gemm(Op::kNone, Op::kConjTrans, rows, b_, own, 1, OwnColumnsBehind(k) + Behind(k), n_, x,
              2 * b_, 0, product_, rows);
      on.Gemm(Op::kNone, Op::kConjTrans, b_, b_, own, 1, own_stack_, 2 * b_, x, 2 * b_, 0, small_,
              b_);
      on.Gemm(Op::kConjTrans, Op::kNone, rows, b_, b_, -1, below, b_, small_, b_, 1, product_,
              rows);
      on.ConjTranspose(rows, b_, product_, rows, term_, b_);
      on.Trmm(Side::kLeft, Op::kConjTrans, b_, rows, FactorIn(right_, rows), b_, term_, b_, kUpper);
    } else {
      on.SetZero(b_, rows, term_, b_);
    }
    if (ranks_ > 1) AddUp(on, rows);
    on.Copy(Block(stack_, 2 * b_, b_, rows), Block(below, b_, b_, rows));
    on.Copy(Block(stack_ + b_, 2 * b_, b_, rows), Block(ranks_ > 1 ? y_ : term_, b_, b_, rows));
  }

  // y := the sum of the ranks' terms, on all ranks. Each rank sums up a share of the columns, so
  // the sum is equal on all ranks.
  void AddUp(Step<T>& on, int64_t count) {
    for (int step = 1; step < ranks_; ++step) {
      const int peer = (rank_ + step) % ranks_;
      const Bytes2D share = Share(term_, count, peer);
      if (share.columns > 0) on.Send(peer, share);
    }
    flow_.NoteSent(term_room_);
    const int64_t own = Share(y_, count, rank_).columns;
    T* sum = y_ + rank_ * ShareOf(count) * b_;
    for (int rank = 0; own > 0 && rank < ranks_; ++rank) {
      T* term = rank == rank_ ? term_ + rank * ShareOf(count) * b_ : terms_ + rank * own * b_;
      if (rank != rank_) on.Recv(rank, Block(term, b_, b_, own));
      rank == 0 ? on.Copy(Block(sum, b_, b_, own), Block(term, b_, b_, own))
                : on.Add(b_, own, term, b_, sum, b_);
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      const Bytes2D share = Share(y_, count, rank);
      if (share.columns > 0) on.Broadcast(rank, share);
    }
    flow_.NoteSent(y_room_);
  }

  // --- Updates ---------------------------------------------------------------------------------

  // A -= V W^H + Y X^H, as one product, in the next tile column.
  void UpdateNext(int64_t k) {
    Step<T> on(flow_, Stream::kPanel, "update next", k);
    on.Reads(stacks_).Writes(columns_[tiles_.slot(k + 1)]);
    on.Gemm(Op::kConjTrans, Op::kNone, Trailing(k), b_, 2 * b_, -1, stack_, 2 * b_, own_stack_,
            2 * b_, 1, matrix_.tile(k + 1, Behind(k)), n_);
  }

  // A -= V W^H + Y X^H in all of this rank's columns after tile column k + 1.
  void Update(int64_t k) {
    const int64_t skipped = Mine(k + 1) ? b_ : 0, own = Own(k) - skipped;
    if (own == 0) return;
    Step<T> on(flow_, Stream::kMain, "update", k);
    on.Writes(columns_, FirstSlot(k + 1, rank_), tiles_.slots());
    on.Gemm(Op::kConjTrans, Op::kNone, Trailing(k), own, 2 * b_, -1, stack_, 2 * b_,
            own_stack_ + skipped * 2 * b_, 2 * b_, 1,
            OwnColumnsBehind(k) + skipped * n_ + Behind(k), n_);
  }

  void GatherBand(T* band) {
    const int64_t height = 2 * b_ * ldb_, slots = tiles_.slots();
    Step<T> on(flow_, Stream::kMain);
    const Bytes2D mine = Block(own_band_, height, height, slots);
    if (rank_ != kRoot) return on.Send(kRoot, mine);
    const auto place = [&](int rank) {
      return Block(band + rank * height, ranks_ * height, height, slots);
    };
    on.Copy(place(kRoot), mine);
    for (int peer = 1; peer < ranks_; ++peer) on.Recv(peer, place(peer));
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int rank_, ranks_;
  const int64_t n_, b_, ldb_;
  T *left_, *right_;             // messages: V^H and T, X^H and T'
  std::array<T*, 2> triangles_;  // of the column's and of the row's panel, below b rows of zeros
  T *unpacked_, *panel_, *row_, *own_row_, *product_, *term_, *terms_ = nullptr, *y_ = nullptr;
  T *stack_, *own_stack_;  // [V Y]^H, and [W X]^H for this rank's columns
  T *small_, *own_band_;
  std::vector<Data> columns_;                                    // by slot
  Data reflectors_;                                              // left_
  Data stacks_;                                                  // stack_ and own_stack_
  Room left_room_, right_room_, row_room_, term_room_, y_room_;  // of the sends from left_, ...
};

}  // namespace

int64_t ReduceToBidiagonalBandWorkspace(const Tiles& tiles) {
  return BidiagonalBand<double>::Workspace(tiles);
}

template <typename T>
Status ReduceToBidiagonalBand(const RankContext& context, const Matrix<T>& matrix, T* band,
                              T* workspace) {
  return BidiagonalBand<T>(context, matrix, workspace).Run(band);
}

#define JAXMG_INSTANTIATE(T) \
  template Status ReduceToBidiagonalBand(const RankContext&, const Matrix<T>&, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
