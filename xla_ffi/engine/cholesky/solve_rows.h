// Right-hand sides in row form (potrf.h) of which each rank has rows of its own, as many as a
// matrix has: every rank substitutes for its rows with all of L, whose tile columns pass from their
// owners to all. Where right-hand sides are few, substitution.h leaves L where it is.
//
// n^2 / 2 multiply-adds a row, and n^2 / 2 elements that every rank sends or receives.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_SOLVE_ROWS_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_SOLVE_ROWS_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Elements of workspace: two tile columns.
inline int64_t SolveRowsWorkspace(const Tiles& tiles) {
  return 2 * tiles.width() * tiles.columns();
}

// x := x L^-H (kConjTrans) or x L^-1 (kNone), x `rows` x n, side by side; `rows` may differ from
// rank to rank. Needs L block-cyclic, as Potrf leaves it. Enqueued on all streams, kMain last.
template <typename T>
Status SolveRows(const RankContext& context, const Matrix<T>& factor, Op op, int64_t rows, T* x,
                 T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_SOLVE_ROWS_H_
