// Symmetrize: completes a distributed Hermitian matrix from its lower triangle.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_SYMMETRIZE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_SYMMETRIZE_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Fills the upper triangle of a Hermitian matrix in contiguous blocks from its lower triangle.
// Sends every block below the diagonal to the rank that owns its mirror image. Workspace: one tile
// column. Enqueued on kMain.
template <typename T>
Status Symmetrize(const RankContext& context, const Matrix<T>& matrix, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_SYMMETRIZE_H_
