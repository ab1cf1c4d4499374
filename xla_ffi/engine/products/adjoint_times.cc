// Products X^H Y: each rank's rows of X and Y contribute a term to every row of C, so ranks
// exchange terms.
#include <array>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/products/parts_of_products.h"
#include "xla_ffi/engine/products/products.h"

namespace jaxmg {
namespace {

// How the terms of a rank's rows of C are summed up.
enum class Way {
  kBorrow,   // the rank computes them from all ranks' rows of X and Y
  kWhole,    // each rank computes all of its terms at once
  kStripes,  // each rank computes its terms of a few of C's rows at a time
};

// On the host, ranks read rows unless reading them takes longer than adding up terms.
template <typename T>
Way WayOf(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c, bool half) {
  if (ranks.size == 1 || (ranks.tuning.borrow_panels && x.m <= 4 * c.m)) return Way::kBorrow;
  return !half && c.m <= RowsAtOnce<T>(ranks.tuning, c.n) ? Way::kWhole : Way::kStripes;
}

template <typename T>
int64_t StripeRows(const Tuning& tuning, const RowBlocks<T>& c) {
  return std::min(RowsAtOnce<T>(tuning, c.n), c.block);
}

// Returns the number of elements of the largest rectangle whose terms are sent at once. `half`: for
// Gram, whose rectangles each lie in the columns of one rank.
template <typename T>
int64_t RoomOf(const Tuning& tuning, const RowBlocks<T>& c, bool half) {
  return StripeRows(tuning, c) * (half ? std::min(c.block, c.n) : c.n);
}

bool IsHalf(const Tuning& tuning, int64_t n) { return n > tuning.usual_tile; }

template <typename T>
int64_t Space(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c, bool half) {
  switch (WayOf(ranks, x, c, half)) {
    case Way::kBorrow:
      return 0;
    case Way::kWhole:
      return c.m * c.n + 2 * c.block * c.n;
    default:
      return 4 * RoomOf(ranks.tuning, c, half);
  }
}

template <typename T>
class Terms {
 public:
  Terms(Flow& flow, const ProductTerms<T>& terms, const RowBlocks<T>& x, const RowBlocks<T>& y,
        const RowBlocks<T>& c, const Rectangles& rectangles, double operations, T* workspace,
        int64_t room)
      : flow_(flow),
        operations_(operations),
        terms_(terms),
        x_(x),
        y_(y),
        c_(c),
        rectangles_(rectangles),
        workspace_(workspace),
        room_(room),
        rank_(flow.comm().rank()),
        ranks_(flow.comm().size()) {}

  void Add(Way way) {
    if (c_.empty()) return;
    if (x_.m == 0) {
      Step<T> on(flow_, Stream::kMain);
      return Multiply(on, c_, rank_, terms_.beta);
    }
    switch (way) {
      case Way::kBorrow:
        return Borrow();
      case Way::kWhole:
        return Whole();
      default:
        return InStripes();
    }
  }

 private:
  // `target` := alpha op(X)[rectangle.rows] Y[rectangle.columns] + beta target, for `count` rows of
  // X and Y.
  void Gemm(Step<T>& on, const Rectangle& r, int64_t count, const T* x, int64_t ldx, const T* y,
            int64_t ldy, Real<T> beta, T* target, int64_t ld) {
    on.Gemm(Op::kNone, terms_.adjoint, r.columns, r.rows, count, terms_.alpha, y + r.column, ldy,
            x + r.row, ldx, beta, target, ld);
  }
  // As Gemm, for this rank's rows, of which there may be none.
  void GemmOfMine(Step<T>& on, const Rectangle& r, Real<T> beta, T* target, int64_t ld) {
    if (x_.rows(rank_) == 0) return Multiply(on, r.columns, r.rows, target, ld, beta);
    Gemm(on, r, x_.rows(rank_), x_.data, x_.ld(), y_.data, y_.ld(), beta, target, ld);
  }
  T* InC(const Rectangle& r) const { return c_.at(rank_, r.row, r.column); }

  void Borrow() {
    const int64_t mine = x_.rows(rank_);
    const bool same = x_.data == y_.data;
    auto view = [](const Bytes2D& block) { return static_cast<const T*>(block.data); };
    auto ld = [](const Bytes2D& block) { return static_cast<int64_t>(block.pitch / sizeof(T)); };
    Step<T> on(flow_, Stream::kMain, "multiply");
    const Bytes2D my_x = Block(x_.data, x_.ld(), x_.n, mine);
    const Bytes2D my_y = Block(y_.data, y_.ld(), y_.n, mine);
    if (mine > 0) on.Broadcast(rank_, my_x);
    if (mine > 0 && !same) on.Broadcast(rank_, my_y);
    Real<T> beta = terms_.beta;
    Stage stage(flow_.device(), "multiply", ranks_, operations_);
    for (int step = 0; step < ranks_; ++step) {
      const int peer = (rank_ + step) % ranks_;
      stage.Done(Stream::kMain, step);
      if (x_.rows(peer) == 0) continue;
      const Bytes2D x = peer == rank_ ? my_x : on.Borrow(peer);
      const Bytes2D y = same ? x : peer == rank_ ? my_y : on.Borrow(peer);
      for (const Rectangle& r : rectangles_[rank_]) {
        Gemm(on, r, x_.rows(peer), view(x), ld(x), view(y), ld(y), beta, InC(r), c_.ld());
      }
      beta = 1;
      if (peer == rank_) continue;
      on.Return(peer);
      if (!same) on.Return(peer);
    }
  }

  void Whole() {
    T *terms = workspace_, *received = terms + c_.m * c_.n;
    const int64_t rows = c_.rows(rank_), mine = x_.rows(rank_);
    {
      Step<T> on(flow_, Stream::kMain, "multiply");
      if (mine > 0) {
        GemmOfMine(on, {0, c_.m, 0, c_.n}, 0, terms, c_.ld());
        for (int step = 1; step < ranks_; ++step) {
          const int peer = (rank_ + step) % ranks_;
          if (c_.rows(peer) > 0) on.Send(peer, RowsOf(peer, terms + c_.begin(peer) * c_.n));
        }
      }
      Multiply(on, c_, rank_, terms_.beta);
      if (mine > 0 && rows > 0) {
        on.Add(c_.n, rows, terms + c_.begin(rank_) * c_.n, c_.ld(), c_.data, c_.ld());
      }
    }
    std::vector<int> peers;
    for (int step = 1; step < ranks_; ++step) {
      const int peer = (rank_ + ranks_ - step) % ranks_;
      if (rows > 0 && x_.rows(peer) > 0) peers.push_back(peer);
    }
    DoubleBuffer<T>(flow_, received, c_.block * c_.n)
        .ForEachReceived(
            static_cast<int64_t>(peers.size()),
            [&](Step<T>& on, int64_t i, T* buffer) { on.Recv(peers[i], RowsOf(rank_, buffer)); },
            "add",
            [&](Step<T>& on, int64_t, const T* buffer) {
              on.Add(c_.n, rows, buffer, c_.ld(), c_.data, c_.ld());
            });
  }
  Bytes2D RowsOf(int rank, const T* data) const {
    return Block(data, c_.ld(), c_.n, c_.rows(rank));
  }

  // In step (i, s) each rank sends its terms of the i-th rectangle of the rank s places after it.
  // It then receives what was sent to it in the previous step, so no two ranks wait for each other.
  void InStripes() {
    size_t most = 0;
    for (const auto& rectangles : rectangles_) most = std::max(most, rectangles.size());
    complete_.resize(most);
    Stage stage(flow_.device(), "multiply", static_cast<int64_t>(most), operations_);
    flow_.Fork();
    Turn before = {};
    int64_t turns = 0;
    for (size_t i = 0; i < most; ++i) {
      if (i < rectangles_[rank_].size()) {
        const Rectangle& r = rectangles_[rank_][i];
        Step<T> on(flow_, Stream::kMain, "multiply", static_cast<int64_t>(i));
        on.Writes(complete_[i]);
        GemmOfMine(on, r, terms_.beta, InC(r), c_.ld());
      }
      for (int step = 1; step < ranks_; ++step) {
        const Turn turn = {i, step, static_cast<int>(turns++ % 2)};
        SendTerms(turn);
        if (turns > 1) ReceiveTerms(before);
        before = turn;
      }
      stage.Done(Stream::kMain, static_cast<int64_t>(i) + 1);
    }
    if (turns > 0) ReceiveTerms(before);
    flow_.Join();
  }

  struct Turn {
    size_t rectangle;
    int step;
    int parity;
  };

  void SendTerms(const Turn& turn) {
    const int peer = (rank_ + turn.step) % ranks_;
    if (turn.rectangle >= rectangles_[peer].size() || x_.rows(rank_) == 0) return;
    const Rectangle& r = rectangles_[peer][turn.rectangle];
    T* terms = workspace_ + turn.parity * room_;
    Step<T> on(flow_, Stream::kMain, "multiply", static_cast<int64_t>(turn.rectangle));
    on.AwaitsSent(rooms_[turn.parity]);
    GemmOfMine(on, r, 0, terms, r.columns);
    on.Send(peer, Block(terms, r.columns, r.columns, r.rows));
    flow_.NoteSent(rooms_[turn.parity]);
  }

  void ReceiveTerms(const Turn& turn) {
    const int peer = (rank_ + ranks_ - turn.step) % ranks_;
    if (turn.rectangle >= rectangles_[rank_].size() || x_.rows(peer) == 0) return;
    const Rectangle& r = rectangles_[rank_][turn.rectangle];
    T* terms = workspace_ + (2 + turn.parity) * room_;
    {
      Step<T> on(flow_, Stream::kCopy);
      on.Gives(received_[turn.parity]);
      on.Recv(peer, Block(terms, r.columns, r.columns, r.rows));
    }
    Step<T> on(flow_, Stream::kSide, "add", static_cast<int64_t>(turn.rectangle));
    on.Reads(received_[turn.parity]).Writes(complete_[turn.rectangle]);
    on.Add(r.columns, r.rows, terms, r.columns, InC(r), c_.ld());
  }

  Flow& flow_;
  const double operations_;
  const ProductTerms<T>& terms_;
  const RowBlocks<T>&x_, &y_, &c_;
  const Rectangles& rectangles_;
  T* const workspace_;
  const int64_t room_;
  const int rank_, ranks_;
  // By parity of the turn: sent terms, and received terms.
  std::array<Room, 2> rooms_;
  std::array<Data, 2> received_;
  std::vector<Data> complete_;  // by rectangle of this rank
};

// Adds the rectangles that Gram computes of a diagonal block, whose rows and columns begin at
// `begin`.
void AddDiagonal(int64_t begin, int64_t width, int64_t whole, std::vector<Rectangle>* all) {
  if (width == 0) return;
  if (width <= whole) return all->push_back({begin, width, begin, width});
  const int64_t half = width / 2, middle = begin + half;
  AddDiagonal(begin, half, whole, all);
  all->push_back({begin, half, middle, width - half});
  AddDiagonal(middle, width - half, whole, all);
}

// Returns the rectangles that Gram computes of a rank's rows. With P ranks these are the columns of
// the next P / 2 ranks or so, and if P is even, half of the block of the opposite rank. The rest
// are adjoints of rectangles of other ranks.
template <typename T>
std::vector<Rectangle> HalfOf(const RowBlocks<T>& c, int rank, int ranks, int64_t whole) {
  std::vector<Rectangle> all;
  auto add = [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    if (rows > 0 && columns > 0) all.push_back({row, rows, column, columns});
  };
  const int64_t row = c.begin(rank), rows = c.rows(rank);
  AddDiagonal(row, rows, whole, &all);
  for (int step = 1; 2 * step <= ranks; ++step) {
    const int peer = (rank + step) % ranks;
    const int64_t column = c.begin(peer), columns = c.rows(peer);
    if (2 * step < ranks) {
      add(row, rows, column, columns);
    } else if (rank < peer) {
      add(row, (rows + 1) / 2, column, columns);
    } else {
      const int64_t first = (columns + 1) / 2;
      add(row, rows, column + first, columns - first);
    }
  }
  return all;
}

Rectangles InStripes(const Rectangles& rectangles, int64_t rows) {
  Rectangles all(rectangles.size());
  for (size_t rank = 0; rank < rectangles.size(); ++rank) {
    for (const Rectangle& r : rectangles[rank]) {
      ForRows(r.row, r.rows, rows, [&](int64_t begin, int64_t count) {
        all[rank].push_back({begin, count, r.column, r.columns});
      });
    }
  }
  return all;
}

}  // namespace

template <typename T>
Status AdjointTimesRows(const RankContext& context, const ProductTerms<T>& terms,
                        const RowBlocks<T>& x, const RowBlocks<T>& y, const RowBlocks<T>& c,
                        T* workspace) {
  const Ranks ranks = RanksOf(context);
  const Way way = WayOf(ranks, x, c, false);
  Rectangles rectangles(ranks.size);
  for (int rank = 0; rank < ranks.size; ++rank) {
    if (c.rows(rank) > 0) rectangles[rank].push_back({c.begin(rank), c.rows(rank), 0, c.n});
  }
  if (way == Way::kStripes) {
    rectangles = InStripes(rectangles, StripeRows(ranks.tuning, c));
  }
  Flow flow(context, terms.precision);
  const double operations = ProductWork(c.m, c.n, x.m);
  Terms<T>(flow, terms, x, y, c, rectangles, operations, workspace, RoomOf(ranks.tuning, c, false))
      .Add(way);
  ClearPadding(flow, c);
  return flow.Finish();
}

template <typename T>
Status Gram(const RankContext& context, const ProductTerms<T>& terms, const RowBlocks<T>& x,
            const RowBlocks<T>& c, T* workspace) {
  const Ranks ranks = RanksOf(context);
  if (!IsHalf(ranks.tuning, c.n)) return AdjointTimesRows(context, terms, x, x, c, workspace);
  Rectangles half(ranks.size), mirrored(ranks.size);
  for (int rank = 0; rank < ranks.size; ++rank) {
    half[rank] = HalfOf(c, rank, ranks.size, ranks.tuning.usual_tile);
  }
  const Rectangles stripes = InStripes(half, StripeRows(ranks.tuning, c));
  const Way way = WayOf(ranks, x, c, true);
  const int64_t room = RoomOf(ranks.tuning, c, true);
  Flow flow(context, terms.precision);
  const double operations = ProductWork(c.m, c.n, x.m) / 2;
  Terms<T>(flow, terms, x, x, c, way == Way::kBorrow ? half : stripes, operations, workspace, room)
      .Add(way);
  flow.Join();
  for (int rank = 0; rank < ranks.size; ++rank) {
    for (const Rectangle& r : stripes[rank]) {
      // A block on the diagonal is no higher than a stripe, so it was not divided.
      if (r.row != r.column) mirrored[rank].push_back(r);
    }
  }
  // Terms in the first half of the workspace may still be in transfer to other ranks.
  T* buffers = way == Way::kStripes ? workspace + 2 * room : workspace;
  Adjoints(flow, terms.adjoint, c, c, mirrored, buffers, room);
  ClearPadding(flow, c);
  return flow.Finish();
}

template <typename T>
int64_t AdjointTimesRowsSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>&,
                              const RowBlocks<T>& c) {
  return Space(ranks, x, c, false);
}

template <typename T>
int64_t GramSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c) {
  return Space(ranks, x, c, IsHalf(ranks.tuning, c.n));
}

#define JAXMG_INSTANTIATE(T)                                                                      \
  template Status AdjointTimesRows(const RankContext&, const ProductTerms<T>&,                    \
                                   const RowBlocks<T>&, const RowBlocks<T>&, const RowBlocks<T>&, \
                                   T*);                                                           \
  template Status Gram(const RankContext&, const ProductTerms<T>&, const RowBlocks<T>&,           \
                       const RowBlocks<T>&, T*);                                                  \
  template int64_t AdjointTimesRowsSpace(const Ranks&, const RowBlocks<T>&, const RowBlocks<T>&,  \
                                         const RowBlocks<T>&);                                    \
  template int64_t GramSpace(const Ranks&, const RowBlocks<T>&, const RowBlocks<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
