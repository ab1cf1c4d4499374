// What routines on a factor that the caller keeps share: its overflow tile.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_KEPT_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_KEPT_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// The overflow tile in memory of the routine's own, for work that changes it.
template <typename T>
Operand<T> WithoutOverflow(Operand<T> factor) {
  factor.overflow = nullptr;
  return factor;
}

// To there from the caller's.
template <typename T>
Status CopyOverflow(const RankContext& context, const Operand<T>& factor, const Matrix<T>& matrix) {
  if (!matrix.tiles.has_overflow()) return Status::Ok();
  return CopyIfApart(context.device, factor.overflow, matrix.overflow,
                     factor.n * matrix.tiles.width());
}

// A caller keeps the overflow tile, of which the factor takes a part.
template <typename T>
Status ClearOverflow(const RankContext& context, const Matrix<T>& matrix) {
  if (!matrix.tiles.has_overflow()) return Status::Ok();
  return context.device.blas<T>().SetZero(Stream::kMain, matrix.rows, matrix.tiles.width(),
                                          matrix.overflow, matrix.rows);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_KEPT_FACTOR_H_
