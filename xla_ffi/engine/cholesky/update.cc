#include "xla_ffi/engine/cholesky/update.h"

#include <algorithm>
#include <array>
#include <complex>

#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

// The columns of V that are applied in one pass over L.
constexpr int64_t kColumnsAtOnce = 256;

// The number of elements of a block's reflector: C or T^H, Y, S^H and W^H.
int64_t ReflectorElements(const UpdateShape& shape) {
  return shape.block * (shape.block + 3 * shape.count);
}

// One pass over L with some columns of V. Steps of tile column k:
//
//   kPanel  "update diagonal":  the reflectors of the tile column's blocks; the diagonal tile
//   kPanel  "update next":      the rows that meet tile k + 1, which X needs there first
//   kMain   "update":           the rows below
//
// So the reflectors of tile column k + 1 are computed beside the products of tile column k.
template <typename T>
class Pass {
 public:
  Pass(const RankContext& context, const Matrix<T>& matrix, bool downdate, const UpdateShape& shape,
       int64_t count, const Frame<T>& frame, const UpdateSpace<T>& space)
      : flow_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        downdate_(downdate),
        shape_(shape),
        count_(count),
        info_(frame.outcome().info()),
        x_(frame.at(space.x)),
        reflectors_(frame.at(space.reflectors)),
        diagonal_(frame.at(space.diagonal)),
        near_(frame.at(space.near)),
        far_(frame.at(space.far)) {}

  Status Run() {
    const int64_t last = tiles_.nonempty();
    flow_.Fork();
    for (int64_t k = matrix_.rank; k < last; k += tiles_.ranks()) {
      const int64_t end = tiles_.offset(k + 1), beyond = tiles_.offset(k + 2);
      const bool receives = tiles_.ranks() > 1 && k > 0, sends = tiles_.ranks() > 1;
      {
        Step<T> on(flow_, Stream::kPanel, "update diagonal", k);
        if (receives) Receive(on, near_room_, k, tiles_.offset(k), end);
        on.Gives(ready_[Parity(k)]);
        for (int64_t i = 0; i < Blocks(k); ++i) {
          Generate(on, k, i);
          ApplyBlock(on, k, i, Begin(k, i + 1), end, near_);
        }
      }
      if (receives) {
        Step<T> on(flow_, Stream::kMain);
        on.Writes(rest_);
        Receive(on, far_room_, k, end, tiles_.columns());
      }
      {
        Step<T> on(flow_, Stream::kPanel, "update next", k);
        on.Reads(rest_);
        Apply(on, k, end, beyond, near_);
        if (sends) Send(on, near_room_, k, end, beyond);
      }
      Step<T> on(flow_, Stream::kMain, "update", k);
      on.Reads(ready_[Parity(k)]).Writes(rest_);
      Apply(on, k, beyond, tiles_.columns(), far_);
      if (sends) Send(on, far_room_, k, beyond, tiles_.columns());
    }
    return flow_.Finish();
  }

 private:
  // A block's reflector, contiguous. The leading dimension of a matrix is the number of its rows.
  struct Reflector {
    int64_t n;  // the order of the block
    T* c;       // C, n x n; T^H = I + C for an update
    T* w;       // W^H, count x n
    T* y;       // Y, count x n
    T* s;       // (T Y^H)^H, count x n
  };

  int64_t Parity(int64_t k) const { return tiles_.slot(k) % 2; }
  int64_t Blocks(int64_t k) const { return (tiles_.width(k) + shape_.block - 1) / shape_.block; }
  // The first column of block i of tile column k, which is also its first row.
  int64_t Begin(int64_t k, int64_t i) const {
    return std::min(tiles_.offset(k) + i * shape_.block, tiles_.offset(k + 1));
  }
  // Columns of a block of L from `row` on.
  T* L(int64_t k, int64_t i, int64_t row) const {
    return matrix_.tile(k, row) + (Begin(k, i) - tiles_.offset(k)) * matrix_.ld();
  }
  T* X(int64_t row) const { return x_ + row * count_; }
  Reflector ReflectorOf(int64_t k, int64_t i) const {
    T* c = reflectors_ + (Parity(k) * shape_.blocks + i) * ReflectorElements(shape_);
    T* w = c + shape_.block * shape_.block;
    T* y = w + shape_.block * count_;
    return {Begin(k, i + 1) - Begin(k, i), c, w, y, y + shape_.block * count_};
  }

  // --- Messages between ranks --------------------------------------------------------------------

  Bytes2D Rows(int64_t begin, int64_t end) const {
    return Block(X(begin), count_, count_, end - begin);
  }
  void Receive(Step<T>& on, Room& room, int64_t k, int64_t begin, int64_t end) {
    if (begin == end) return;
    on.Takes(room);
    on.Recv(tiles_.owner(k - 1), Rows(begin, end));
  }
  void Send(Step<T>& on, Room& room, int64_t k, int64_t begin, int64_t end) {
    if (begin == end) return;
    on.Send(tiles_.owner(k + 1), Rows(begin, end));
    flow_.NoteSent(room);
  }

  // --- The reflector of a block ------------------------------------------------------------------

  // Computes the reflector of a block and its diagonal block of the new L.
  void Generate(Step<T>& on, int64_t k, int64_t i) {
    const Reflector h = ReflectorOf(k, i);
    const int64_t n = h.n, row = Begin(k, i), ld = matrix_.ld();
    T* const l = L(k, i, row);
    T *const a = diagonal_, *const b = a + shape_.block * shape_.block;
    const Bytes2D rows = Rows(row, row + n), w = Block(h.w, count_, count_, n);
    on.Copy(w, rows);
    on.Copy(Block(a, n, n, n), Block(l, ld, n, n));
    on.ClearTriangle(Uplo::kUpper, n, n, a, n);
    if (downdate_) {
      on.Trsm(Side::kRight, Op::kConjTrans, count_, n, a, n, h.w, count_);
      on.SetIdentity(n, h.c, n);
      on.ExactGemm(Op::kConjTrans, Op::kNone, n, n, count_, -1, h.w, count_, h.w, count_, 1, h.c,
                   n);
      Factor(on, n, h.c, row);
      on.Trmm(Side::kRight, Op::kNone, n, n, h.c, n, a, n);
    } else {
      on.Copy(Block(h.c, n, n, n), Block(a, n, n, n));
      AddGram(on, n, h, a);
      Factor(on, n, a, row);
      Divide(on, n, a, h);
      AddGram(on, n, h, b);
      Factor(on, n, b, row);
      Divide(on, n, b, h);
      on.Trmm(Side::kRight, Op::kNone, n, n, b, n, a, n);
    }
    on.Copy(Block(l, ld, n, n), Block(a, n, n, n));
    // T^H = I + C, Y = W^H T^-1 and S^H = Y T^H.
    T* t = h.c;
    if (downdate_) {
      t = b;
      on.Copy(Block(t, n, n, n), Block(h.c, n, n, n));
    }
    on.AddToDiagonal(n, n, int64_t{0}, Real<T>(1), t, n);
    on.Copy(Block(h.y, count_, count_, n), w);
    on.Trsm(Side::kRight, Op::kConjTrans, count_, n, t, n, h.y, count_);
    on.Copy(Block(h.s, count_, count_, n), Block(h.y, count_, count_, n));
    on.Trmm(Side::kRight, Op::kNone, count_, n, t, n, h.s, count_);
  }

  // g := C C^H + W W^H, the lower triangle.
  void AddGram(Step<T>& on, int64_t n, const Reflector& h, T* g) {
    on.ExactGemm(Op::kConjTrans, Op::kNone, n, n, count_, 1, h.w, count_, h.w, count_, 0, g, n);
    on.Herk(n, n, 1, h.c, n, 1, g, n);
  }

  // g := its Cholesky factor, with zeros above its diagonal.
  void Factor(Step<T>& on, int64_t n, T* g, int64_t row) {
    on.Potrf(n, g, n, row, info_);
    on.ClearTriangle(Uplo::kUpper, n, n, g, n);
  }

  // [C W] := G^-1 [C W].
  void Divide(Step<T>& on, int64_t n, const T* g, const Reflector& h) {
    on.Trsm(Side::kLeft, Op::kNone, n, n, g, n, h.c, n);
    on.Trsm(Side::kRight, Op::kConjTrans, count_, n, g, n, h.w, count_);
  }

  // --- The rows below ----------------------------------------------------------------------------

  // Applies the reflectors of a tile column to rows [begin, end) below it.
  void Apply(Step<T>& on, int64_t k, int64_t begin, int64_t end, T* space) {
    for (int64_t i = 0; i < Blocks(k); ++i) ApplyBlock(on, k, i, begin, end, space);
  }

  // With Z = L + X^H Y: L := Z T - L for an update, X := X - S^H Z^H. A downdate solves with C for
  // the new L first, and has this Z of it.
  void ApplyBlock(Step<T>& on, int64_t k, int64_t i, int64_t begin, int64_t end, T* z) {
    const int64_t m = end - begin, ld = matrix_.ld();
    if (m <= 0) return;
    const Reflector h = ReflectorOf(k, i);
    T *const l = L(k, i, begin), *const x = X(begin);
    if (downdate_) {
      on.ExactGemm(Op::kConjTrans, Op::kNone, m, h.n, count_, -1, x, count_, h.w, count_, 1, l, ld);
      on.Trsm(Side::kRight, Op::kConjTrans, m, h.n, h.c, h.n, l, ld);
    }
    on.Copy(Block(z, m, m, h.n), Block(l, ld, m, h.n));
    on.ExactGemm(Op::kConjTrans, Op::kNone, m, h.n, count_, 1, x, count_, h.y, count_, 1, z, m);
    if (!downdate_) {
      on.ExactGemm(Op::kNone, Op::kConjTrans, m, h.n, h.n, 1, z, m, h.c, h.n, -1, l, ld);
    }
    on.ExactGemm(Op::kNone, Op::kConjTrans, count_, m, h.n, -1, h.s, count_, z, m, 1, x, count_);
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const bool downdate_;
  const UpdateShape shape_;
  const int64_t count_;
  int32_t* const info_;
  T *const x_, *const reflectors_, *const diagonal_, *const near_, *const far_;
  std::array<Data, 2> ready_;  // by the parity of a slot: the reflectors of its tile column
  Data rest_;                  // the rows of X below the next tile
  Room near_room_, far_room_;  // the rows that were sent
};

UpdateShape ShapeOf(const Tiles& tiles, int64_t k, const Tuning& tuning) {
  const int64_t block = std::min(tuning.cholesky.update_block, tiles.width());
  return {std::min(k, kColumnsAtOnce), block, (tiles.width() + block - 1) / block};
}

}  // namespace

template <typename T>
UpdateSpace<T>::UpdateSpace(const Sizes& sizes, int64_t k, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      shape(ShapeOf(this->tiles, k, ranks.tuning)) {
  const int64_t count = shape.count, block = shape.block;
  x = this->Reserve(count * sizes.n);
  reflectors = this->Reserve(2 * shape.blocks * ReflectorElements(shape));
  diagonal = this->Reserve(2 * block * block);
  near = this->Reserve(this->tiles.width() * block);
  far = this->Reserve(sizes.n * block);
  inverses.order = std::min(this->tiles.width(), ranks.tuning.cholesky.inverse_order);
  inverses.piece = this->Reserve(DiagonalSolverWorkspace(inverses.order));
}

template <typename T>
Status UpdateRoutine(const RankContext& context, const Operand<T>& factor, const T* overflow,
                     bool downdate, int64_t k, const T* v, Real<T>* log_det) {
  const UpdateSpace<T> space(factor.sizes(), k, RanksOf(context));
  Frame<T> frame(context, factor, space);
  Device& device = context.device;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(device.ReserveHandles());
    JAXMG_RETURN_IF_ERROR(device.blas<T>().ReservePotrf(
        Stream::kPanel, space.shape.block, frame.at(space.diagonal), space.shape.block));
    const Matrix<T> matrix = frame.matrix();
    if (!matrix.tiles.has_overflow()) return Status::Ok();
    return CopyIfApart(device, overflow, matrix.overflow, factor.n * matrix.tiles.width());
  };
  auto work = [&]() -> Status {
    const Matrix<T> matrix = frame.matrix();
    const Tiles& tiles = matrix.tiles;
    const Outcome<T>& outcome = frame.outcome();
    AnnounceWork(device, SolveWork(factor.n, 2 * k + space.shape.block));
    for (int64_t first = 0; first < k; first += space.shape.count) {
      const int64_t count = std::min(space.shape.count, k - first);
      JAXMG_RETURN_IF_ERROR(device.Copy(Stream::kMain,
                                        Block(frame.at(space.x), count, count, factor.n),
                                        Block(v + first, k, count, factor.n)));
      Pass<T> pass(context, matrix, downdate, space.shape, count, frame, space);
      JAXMG_RETURN_IF_ERROR(pass.Run());
    }
    for (int64_t p = matrix.rank; p < tiles.nonempty(); p += tiles.ranks()) {
      JAXMG_RETURN_IF_ERROR(device.blas<T>().AddLogDet(Stream::kMain, tiles.width(p),
                                                       matrix.tile(p, tiles.offset(p)), matrix.ld(),
                                                       outcome.log_det()));
    }
    const Inverses<T> inverses = {space.inverses.order, frame.at(space.inverses.piece)};
    JAXMG_RETURN_IF_ERROR(InvertDiagonals(context, matrix, inverses));
    JAXMG_RETURN_IF_ERROR(outcome.ConcludeOrFail(log_det, nullptr, 0));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(factor.n, factor.block, factor.a));
    if (tiles.has_overflow()) {
      JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(matrix.rows, tiles.width(), matrix.overflow));
    }
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                                    \
  template struct UpdateSpace<T>;                                                               \
  template Status UpdateRoutine(const RankContext&, const Operand<T>&, const T*, bool, int64_t, \
                                const T*, Real<T>*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
