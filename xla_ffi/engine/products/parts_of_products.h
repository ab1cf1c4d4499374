// Parts that the products share.
#ifndef JAXMG_XLA_FFI_ENGINE_PRODUCTS_PARTS_OF_PRODUCTS_H_
#define JAXMG_XLA_FFI_ENGINE_PRODUCTS_PARTS_OF_PRODUCTS_H_

#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/products/row_blocks.h"

namespace jaxmg {

// C := beta C. Read as column-major, C is `columns` x `rows`.
template <typename T>
void Multiply(Step<T>& on, int64_t columns, int64_t rows, T* c, int64_t ld, Real<T> beta) {
  if (rows == 0 || columns == 0 || beta == 1) return;
  if (beta == 0) return on.SetZero(columns, rows, c, ld);
  on.ExactGemm(Op::kNone, Op::kNone, columns, rows, 0, 1, c, ld, c, ld, beta, c, ld);
}

// As above, for a rank's rows.
template <typename T>
void Multiply(Step<T>& on, const RowBlocks<T>& c, int rank, Real<T> beta) {
  Multiply(on, c.n, c.rows(rank), c.data, c.ld(), beta);
}

template <typename T>
void ClearPadding(Flow& flow, const RowBlocks<T>& c) {
  const int64_t rows = c.rows(flow.comm().rank());
  if (rows == c.block || c.n == 0) return;
  Step<T> on(flow, Stream::kMain);
  on.SetZero(c.n, c.block - rows, c.data + rows * c.n, c.ld());
}

// Rectangles, by the rank that holds their rows. All ranks know the rectangles of every rank and
// their order.
using Rectangles = std::vector<std::vector<Rectangle>>;

// `to` := the adjoint (op kTrans: the transpose) of these rectangles of `from`. One rank holds the
// rows that a rectangle becomes in `to`. The workspace has two buffers of `room` elements, the size
// of the largest rectangle; it is not used if ranks borrow. `from` may be `to` if no rectangle
// overlaps the destination of one.
template <typename T>
void Adjoints(Flow& flow, Op op, const RowBlocks<T>& from, const RowBlocks<T>& to,
              const Rectangles& rectangles, T* workspace, int64_t room);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_PRODUCTS_PARTS_OF_PRODUCTS_H_
