// The overflow tile of a factor that the caller keeps, for routines that use such a factor.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_KEPT_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_KEPT_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// Returns the operand without the caller's overflow tile, so that a routine that changes the
// overflow tile allocates its own.
template <typename T>
Operand<T> WithoutOverflow(Operand<T> factor) {
  factor.overflow = nullptr;
  return factor;
}

// Copies the caller's overflow tile to the routine's own.
template <typename T>
Status CopyOverflow(const RankContext& context, const Operand<T>& factor, const Matrix<T>& matrix) {
  if (!matrix.tiles.has_overflow()) return Status::Ok();
  return CopyIfApart(context.device, factor.overflow, matrix.overflow,
                     factor.n * matrix.tiles.width());
}

// Zeros the caller's overflow tile, because the factor fills only a part of it.
template <typename T>
Status ClearOverflow(const RankContext& context, const Matrix<T>& matrix) {
  if (!matrix.tiles.has_overflow()) return Status::Ok();
  return context.device.blas<T>().SetZero(Stream::kMain, matrix.rows, matrix.tiles.width(),
                                          matrix.overflow, matrix.rows);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_KEPT_FACTOR_H_
