// Substitution with one diagonal tile of the factor, for right-hand sides in row form (potrf.h).
#ifndef JAXMG_XLA_FFI_ENGINE_DIAGONAL_H_
#define JAXMG_XLA_FFI_ENGINE_DIAGONAL_H_

#include "xla_ffi/engine/flow.h"
#include "xla_ffi/engine/matrix.h"

namespace jaxmg {

// One diagonal tile L of order n.
template <typename T>
struct DiagonalTile {
  const T* l;
  int64_t ld;
  int64_t n;
};
template <typename T>
DiagonalTile<T> DiagonalOf(const Matrix<T>& matrix, int64_t k) {
  return {matrix.tile(k, matrix.tiles.offset(k)), matrix.ld(), matrix.tiles.width(k)};
}

// solved := x L^-H. x is count x n, used up; both have leading dimension `count`.
template <typename T>
void SolveForward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved);
// solved := x L^-1.
template <typename T>
void SolveBackward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_DIAGONAL_H_
