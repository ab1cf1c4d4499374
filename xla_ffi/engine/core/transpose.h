// The transposition of a distributed triangle.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_TRANSPOSE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_TRANSPOSE_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// V in the upper triangle of a block-cyclic matrix, whole diagonal tiles included, to V^H in the
// lower one: every tile goes to the rank that owns its mirror image. Tiles above the diagonal stay.
// Workspace: one tile. Enqueued on kMain.
template <typename T>
Status TransposeUpper(const RankContext& context, const Matrix<T>& matrix, T* one_tile);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_TRANSPOSE_H_
