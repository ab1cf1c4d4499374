// TransposeUpper: transposes a distributed triangle.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_TRANSPOSE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_TRANSPOSE_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Writes V^H to the lower triangle of a block-cyclic matrix whose upper triangle, with full
// diagonal tiles, is V. Sends every tile to the rank that owns its mirror image. Tiles above the
// diagonal are unchanged. Workspace: one tile. Enqueued on kMain.
template <typename T>
Status TransposeUpper(const RankContext& context, const Matrix<T>& matrix, T* one_tile);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_TRANSPOSE_H_
