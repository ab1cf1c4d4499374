#include "xla_ffi/engine/lu/getrs.h"

#include <algorithm>
#include <complex>
#include <numeric>
#include <vector>

#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/core/sweep.h"

namespace jaxmg {
namespace {

bool IsUpper(const Triangle& triangle) { return triangle.uplo == Uplo::kUpper; }

// Returns whether a single rank solves with all of R in one launch, which is faster than tile by
// tile for a few right-hand sides. For more right-hand sides the launch would read R several times.
template <typename T>
bool SolvesAtOnce(const RankContext& context, const Matrix<T>& matrix, int64_t count) {
  const int64_t most = context.device.tuning().lu.right_hand_sides_at_once;
  return matrix.IsOneTile() || (matrix.tiles.ranks() == 1 && matrix.rows > 0 && count <= most);
}

// solved := x op(R)^-1 in one launch. x is overwritten; `solved` may be x.
template <typename T>
Status SolveAtOnce(const RankContext& context, const Matrix<T>& matrix, const Triangle& triangle,
                   Op op, int64_t count, T* x, T* solved) {
  Flow flow(context);
  {
    Step<T> on(flow, Stream::kMain, "solve");
    const int64_t n = matrix.tiles.columns();
    on.Trsm(Side::kRight, op, count, n, matrix.data, matrix.ld(), x, count, triangle);
    if (solved != x) on.Copy(Block(solved, count, count, n), Block(x, count, count, n));
  }
  return flow.Finish();
}

// z := op(R)^-1 z, where each rank has its own columns.
template <typename T>
class ColumnsSweep {
 public:
  ColumnsSweep(const Matrix<T>& matrix, const Triangle& triangle, Op op, int64_t columns, T* z)
      : matrix_(matrix),
        tiles_(matrix.tiles),
        n_(matrix.rows),
        triangle_(triangle),
        op_(op),
        columns_(columns),
        z_(z) {}

  Status Run(const RankContext& context, T* workspace) {
    const bool ascends = IsUpper(triangle_) != (op_ == Op::kNone);
    std::vector<int64_t> order(tiles_.nonempty());
    std::iota(order.begin(), order.end(), 0);
    if (!ascends) std::reverse(order.begin(), order.end());
    Flow flow(context);
    Stage stage(context.device, "substitute", tiles_.nonempty(), SolveWork(n_, n_));
    DoubleBuffer<T>(flow, workspace, n_ * tiles_.width())
        .ForEach(
            order, [&](Step<T>& on, int64_t k, T* column) { Gather(on, k, column); },
            "solve columns", [&](Step<T>& on, int64_t k, const T* column) { Solve(on, k, column); },
            &stage);
    return flow.status();
  }

 private:
  // Return the first row and the number of rows of R in tile column k: an upper triangle ends with
  // the diagonal tile, a lower one begins with it.
  int64_t Begin(int64_t k) const { return IsUpper(triangle_) ? 0 : tiles_.offset(k); }
  int64_t Height(int64_t k) const {
    return IsUpper(triangle_) ? tiles_.offset(k + 1) : n_ - tiles_.offset(k);
  }

  void Gather(Step<T>& on, int64_t k, T* column) {
    const int64_t height = Height(k), width = tiles_.width(k);
    const Bytes2D buffer = Block(column, height, height, width);
    if (tiles_.owner(k) == matrix_.rank) {
      on.Copy(buffer, Block(matrix_.tile(k, Begin(k)), matrix_.ld(), height, width));
    }
    on.Broadcast(tiles_.owner(k), buffer);
  }

  void Solve(Step<T>& on, int64_t k, const T* column) {
    if (columns_ == 0) return;
    const int64_t width = tiles_.width(k), ld = Height(k), others = ld - width;
    const int64_t first = IsUpper(triangle_) ? 0 : tiles_.offset(k + 1);
    const T* diagonal = column + (tiles_.offset(k) - Begin(k));
    const T* rest = column + (first - Begin(k));
    T *solved = z_ + tiles_.offset(k), *z = z_ + first;
    auto with_diagonal = [&] {
      on.Trsm(Side::kLeft, op_, width, columns_, diagonal, ld, solved, n_, triangle_);
    };
    if (op_ == Op::kNone) {
      with_diagonal();
      if (others == 0) return;
      on.ExactGemm(Op::kNone, Op::kNone, others, columns_, width, -1, rest, ld, solved, n_, 1, z,
                   n_);
    } else {
      if (others > 0) {
        on.ExactGemm(op_, Op::kNone, width, columns_, others, -1, rest, ld, z, n_, 1, solved, n_);
      }
      with_diagonal();
    }
  }

  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int64_t n_;
  const Triangle triangle_;
  const Op op_;
  const int64_t columns_;
  T* const z_;
};

}  // namespace

template <typename T>
Status SolveWith(const RankContext& context, const Matrix<T>& matrix, const Triangle& triangle,
                 const RightHandSides<T>& x) {
  if (SolvesAtOnce(context, matrix, x.count)) {
    return SolveAtOnce(context, matrix, triangle, Op::kNone, x.count, x.local, x.data);
  }
  Flow flow(context);
  flow.Fork();
  TrsmSolver<T> diagonal(matrix, triangle, Op::kNone);
  return SweepByRows(flow, matrix, /*ascends=*/IsUpper(triangle), x, diagonal);
}

template <typename T>
Status SolveWithTransposed(const RankContext& context, const Matrix<T>& matrix,
                           const Triangle& triangle, Op op, const RightHandSides<T>& x, T* sums) {
  if (SolvesAtOnce(context, matrix, x.count)) {
    JAXMG_RETURN_IF_ERROR(SolveAtOnce(context, matrix, triangle, op, x.count, x.data, x.local));
    return GatherLocal(context, matrix, x);
  }
  Flow flow(context);
  ClearSums(flow, matrix.tiles, x, sums);
  flow.Fork();
  TrsmSolver<T> diagonal(matrix, triangle, op);
  JAXMG_RETURN_IF_ERROR(
      SweepByColumns(flow, matrix, op, /*ascends=*/!IsUpper(triangle), x, sums, diagonal));
  return GatherLocal(context, matrix, x);
}

template <typename T>
Status FinishGesv(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                  const RightHandSides<T>& x) {
  if (x.count == 0) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(SolveWith(context, matrix, kUnitLower, x));
  return context.device.lu<T>().SwapColumns(Stream::kMain, Order::kBackward, x.count, x.data,
                                            x.count, matrix.rows, pivots);
}

template <typename T>
Status Getrs(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots, Op op,
             const RightHandSides<T>& x, T* sums) {
  if (x.count == 0) return Status::Ok();
  AnnounceWork(context.device, 2 * SolveWork(matrix.rows, x.count));
  if (op != Op::kNone) {
    JAXMG_RETURN_IF_ERROR(context.device.lu<T>().SwapColumns(
        Stream::kMain, Order::kForward, x.count, x.data, x.count, matrix.rows, pivots));
    JAXMG_RETURN_IF_ERROR(SolveWithTransposed(context, matrix, kUnitLower, op, x, sums));
    return SolveWithTransposed(context, matrix, kUpper, op, x, sums);
  }
  JAXMG_RETURN_IF_ERROR(TakeLocal(context, matrix, x));
  JAXMG_RETURN_IF_ERROR(SolveWith(context, matrix, kUpper, x));
  JAXMG_RETURN_IF_ERROR(TakeLocal(context, matrix, x));
  return FinishGesv(context, matrix, pivots, x);
}

template <typename T>
Status GetrsColumns(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                    Op op, int64_t columns, T* z, T* workspace) {
  const int64_t n = matrix.rows;
  auto solve = [&](const Triangle& triangle) {
    return ColumnsSweep<T>(matrix, triangle, op, columns, z).Run(context, workspace);
  };
  auto swap = [&](Order order) {
    return context.device.lu<T>().SwapRows(Stream::kMain, order, columns, z, n, 0, n, pivots);
  };
  AnnounceWork(context.device, 2 * SolveWork(n, n));
  if (op == Op::kNone) {
    JAXMG_RETURN_IF_ERROR(swap(Order::kForward));
    JAXMG_RETURN_IF_ERROR(solve(kUnitLower));
    return solve(kUpper);
  }
  JAXMG_RETURN_IF_ERROR(solve(kUpper));
  JAXMG_RETURN_IF_ERROR(solve(kUnitLower));
  return swap(Order::kBackward);
}

#define JAXMG_INSTANTIATE(T)                                                                      \
  template Status SolveWith(const RankContext&, const Matrix<T>&, const Triangle&,                \
                            const RightHandSides<T>&);                                            \
  template Status SolveWithTransposed(const RankContext&, const Matrix<T>&, const Triangle&, Op,  \
                                      const RightHandSides<T>&, T*);                              \
  template Status FinishGesv(const RankContext&, const Matrix<T>&, const int32_t*,                \
                             const RightHandSides<T>&);                                           \
  template Status Getrs(const RankContext&, const Matrix<T>&, const int32_t*, Op,                 \
                        const RightHandSides<T>&, T*);                                            \
  template Status GetrsColumns(const RankContext&, const Matrix<T>&, const int32_t*, Op, int64_t, \
                               T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
