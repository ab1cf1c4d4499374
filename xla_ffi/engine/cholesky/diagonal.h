// Substitution with one diagonal tile of the Cholesky factor, for right-hand sides in row form
// (right_hand_sides.h).
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_DIAGONAL_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_DIAGONAL_H_

#include <algorithm>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// One diagonal tile L of order n, or a block on its diagonal.
template <typename T>
struct DiagonalTile {
  const T* l;
  int64_t ld;
  int64_t n;

  DiagonalTile Block(int64_t begin, int64_t columns) const {
    return {l + begin * (ld + 1), ld, columns};
  }
};
template <typename T>
DiagonalTile<T> DiagonalOf(const Matrix<T>& matrix, int64_t k) {
  return {matrix.tile(k, matrix.tiles.offset(k)), matrix.ld(), matrix.tiles.width(k)};
}

// solved := x L^-H, `block` columns at a time: a product subtracts the contribution of the previous
// columns, then solve(block of L, x, solved) solves with the diagonal block. x is count x n and is
// overwritten; both have leading dimension `count`.
template <typename T, typename Solve>
void SolveForward(Step<T>& on, const DiagonalTile<T>& tile, int64_t block, int64_t count, T* x,
                  T* solved, const Solve& solve) {
  for (int64_t begin = 0; begin < tile.n; begin += block) {
    const int64_t columns = std::min(block, tile.n - begin);
    T* piece = x + begin * count;
    if (begin > 0) {
      on.ExactGemm(Op::kNone, Op::kConjTrans, count, columns, begin, -1, solved, count,
                   tile.l + begin, tile.ld, 1, piece, count);
    }
    solve(tile.Block(begin, columns), piece, solved + begin * count);
  }
}

// solved := x L^-1, as SolveForward, from the last columns to the first.
template <typename T, typename Solve>
void SolveBackward(Step<T>& on, const DiagonalTile<T>& tile, int64_t block, int64_t count, T* x,
                   T* solved, const Solve& solve) {
  for (int64_t begin = (tile.n - 1) / block * block; begin >= 0; begin -= block) {
    const int64_t end = std::min(begin + block, tile.n);
    T* piece = x + begin * count;
    if (end < tile.n) {
      on.ExactGemm(Op::kNone, Op::kNone, count, end - begin, tile.n - end, -1, solved + end * count,
                   count, tile.l + begin * tile.ld + end, tile.ld, 1, piece, count);
    }
    solve(tile.Block(begin, end - begin), piece, solved + begin * count);
  }
}

// As above; solve with each diagonal block by substitution.
template <typename T>
void SolveForward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved);
template <typename T>
void SolveBackward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_DIAGONAL_H_
