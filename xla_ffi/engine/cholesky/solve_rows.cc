#include "xla_ffi/engine/cholesky/solve_rows.h"

#include <algorithm>
#include <complex>
#include <numeric>
#include <vector>

#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {

template <typename T>
Status SolveRows(const RankContext& context, const Matrix<T>& factor, Op op, int64_t rows, T* x,
                 T* workspace) {
  const Tiles& tiles = factor.tiles;
  const int64_t n = tiles.columns(), ldx = std::max<int64_t>(rows, 1);
  const bool forward = op == Op::kConjTrans;
  auto gather = [&](Step<T>& on, int64_t k, T* column) { GatherColumn(on, factor, k, column); };
  auto solve = [&](Step<T>& on, int64_t k, const T* column) {
    if (rows == 0) return;
    const int64_t width = tiles.width(k), end = tiles.offset(k + 1), ldl = n - tiles.offset(k);
    T *solved = x + tiles.offset(k) * ldx, *others = x + end * ldx;
    auto with_diagonal = [&] { on.Trsm(Side::kRight, op, rows, width, column, ldl, solved, ldx); };
    if (forward) with_diagonal();
    if (end < n && forward) {
      on.ExactGemm(Op::kNone, op, rows, n - end, width, -1, solved, ldx, column + width, ldl, 1,
                   others, ldx);
    } else if (end < n) {
      on.ExactGemm(Op::kNone, op, rows, width, n - end, -1, others, ldx, column + width, ldl, 1,
                   solved, ldx);
    }
    if (!forward) with_diagonal();
  };
  std::vector<int64_t> order(tiles.nonempty());
  std::iota(order.begin(), order.end(), 0);
  if (!forward) std::reverse(order.begin(), order.end());
  Flow flow(context);
  Stage stage(context.device, "substitute", tiles.nonempty(), SolveWork(n, n),
              forward ? kNarrows : kAlike);
  DoubleBuffer<T>(flow, workspace, n * tiles.width())
      .ForEach(order, gather, forward ? "solve forward" : "solve back", solve, &stage);
  return flow.status();
}

#define JAXMG_INSTANTIATE(T) \
  template Status SolveRows(const RankContext&, const Matrix<T>&, Op, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
