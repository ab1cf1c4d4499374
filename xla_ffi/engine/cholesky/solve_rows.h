// Substitution with the Cholesky factor for many right-hand sides in row form (right_hand_sides.h),
// about as many as a matrix has rows. Each rank has its own rows: the tile columns of L go to all
// ranks, and every rank substitutes for its rows. For few right-hand sides, substitution.h leaves L
// in place.
//
// n^2 flops per row. Every rank sends or receives n^2 / 2 elements.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_SOLVE_ROWS_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_SOLVE_ROWS_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Returns the number of elements of workspace: two tile columns.
inline int64_t SolveRowsWorkspace(const Tiles& tiles) {
  return 2 * tiles.width() * tiles.columns();
}

// x := x L^-H (kConjTrans) or x L^-1 (kNone), where x is `rows` x n, column-major and contiguous.
// `rows` may differ between ranks. L must be block-cyclic, as Potrf leaves it. Enqueued on all
// streams, kMain last.
template <typename T>
Status SolveRows(const RankContext& context, const Matrix<T>& factor, Op op, int64_t rows, T* x,
                 T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_SOLVE_ROWS_H_
