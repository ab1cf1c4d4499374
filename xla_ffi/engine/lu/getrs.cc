#include "xla_ffi/engine/lu/getrs.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/flow.h"

namespace jaxmg {
namespace {

template <typename T>
class TriangularSweep {
 public:
  TriangularSweep(const RankContext& context, const Matrix<T>& matrix, const Triangle& triangle,
                  const RightHandSides<T>& x)
      : flow_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        triangle_(triangle),
        x_(x),
        solved_(tiles_.nonempty()),
        local_(tiles_.slots()) {}

  Status Run() {
    const int64_t count = tiles_.nonempty();
    flow_.Fork();
    if (count > 0 && Mine(Tile(0))) Solve(0);
    for (int64_t step = 0; step < count; ++step) {
      const int64_t k = Tile(step);
      if (!Mine(k)) {
        Step<T> on(flow_, Stream::kCopy);
        on.Gives(solved_[k]);
        on.Recv(tiles_.owner(k), Columns(k));
      }
      // What is solved next comes first, the rest beside it.
      const bool next = step + 1 < count && Mine(Tile(step + 1));
      if (next) Solve(step + 1);
      SubtractFromRest(k, next);
    }
    return flow_.Finish();
  }

 private:
  bool ascends() const { return triangle_.uplo == Uplo::kUpper; }
  int64_t Tile(int64_t step) const { return ascends() ? step : tiles_.nonempty() - 1 - step; }
  bool Mine(int64_t k) const { return tiles_.owner(k) == matrix_.rank; }
  Bytes2D Columns(int64_t k) const {
    return Block(x_.column(tiles_.offset(k)), x_.count, x_.count, tiles_.width(k));
  }

  // Right-hand sides from `slot` on -= X_k R, R rows k of `columns` columns from `first` on.
  void Subtract(Step<T>& on, int64_t k, int64_t slot, const T* first, int64_t columns) {
    on.ExactGemm(Op::kNone, Op::kNone, x_.count, columns, tiles_.width(k), -1,
                 x_.column(tiles_.offset(k)), x_.count, first + tiles_.offset(k), matrix_.ld(), 1,
                 x_.of_slot(tiles_, slot), x_.count);
  }

  void Solve(int64_t step) {
    const int64_t k = Tile(step), slot = tiles_.slot(k), width = tiles_.width(k);
    Step<T> on(flow_, Stream::kPanel, "solve tile", k);
    on.Writes(local_[slot]).Gives(solved_[k]);
    if (step > 0) {
      on.Reads(solved_[Tile(step - 1)]);
      Subtract(on, Tile(step - 1), slot, matrix_.slot(slot), width);
    }
    T* local = x_.of_slot(tiles_, slot);
    on.Trsm(Side::kRight, Op::kNone, x_.count, width, matrix_.tile(k, tiles_.offset(k)),
            matrix_.ld(), local, x_.count, triangle_);
    on.Copy(Columns(k), Block(local, x_.count, x_.count, width));
    if (tiles_.ranks() > 1) on.Broadcast(matrix_.rank, Columns(k));
  }

  // From all tiles that come later than the one after k, or than k where that is another rank's.
  void SubtractFromRest(int64_t k, bool next_is_mine) {
    int64_t begin = 0, end = tiles_.slots_before(matrix_.rank, tiles_.nonempty());
    if (ascends()) {
      begin = tiles_.slots_before(matrix_.rank, k + 1) + (next_is_mine ? 1 : 0);
    } else {
      end = tiles_.slots_before(matrix_.rank, k) - (next_is_mine ? 1 : 0);
    }
    if (begin >= end) return;
    Step<T> on(flow_, Stream::kMain, "substitute", k);
    on.Reads(solved_[k]).Gives(local_, begin, end);
    matrix_.ForRuns(begin, end, [&](int64_t slot, const T* first, int64_t columns) {
      Subtract(on, k, slot, first, columns);
    });
  }

  Flow flow_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const Triangle triangle_;
  const RightHandSides<T>& x_;
  std::vector<Data> solved_;  // by tile
  std::vector<Data> local_;   // by slot: what is solved from
};

}  // namespace

template <typename T>
Status SolveWithTriangle(const RankContext& context, const Matrix<T>& matrix,
                         const Triangle& triangle, const RightHandSides<T>& x) {
  if (x.count == 0) return Status::Ok();
  return TriangularSweep<T>(context, matrix, triangle, x).Run();
}

template <typename T>
Status FinishGesv(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
                  const RightHandSides<T>& x) {
  if (x.count == 0) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(SolveWithTriangle(context, matrix, {Uplo::kLower, Diag::kUnit}, x));
  return context.device.lu<T>().SwapColumns(Stream::kMain, Order::kBackward, x.count, x.data,
                                            x.count, matrix.rows, pivots);
}

template <typename T>
Status Getrs(const RankContext& context, const Matrix<T>& matrix, const int32_t* pivots,
             const RightHandSides<T>& x) {
  JAXMG_RETURN_IF_ERROR(TakeLocal(context, matrix, x));
  JAXMG_RETURN_IF_ERROR(SolveWithTriangle(context, matrix, {Uplo::kUpper, Diag::kNonUnit}, x));
  JAXMG_RETURN_IF_ERROR(TakeLocal(context, matrix, x));
  return FinishGesv(context, matrix, pivots, x);
}

#define JAXMG_INSTANTIATE(T)                                                               \
  template Status SolveWithTriangle(const RankContext&, const Matrix<T>&, const Triangle&, \
                                    const RightHandSides<T>&);                             \
  template Status FinishGesv(const RankContext&, const Matrix<T>&, const int32_t*,         \
                             const RightHandSides<T>&);                                    \
  template Status Getrs(const RankContext&, const Matrix<T>&, const int32_t*,              \
                        const RightHandSides<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
