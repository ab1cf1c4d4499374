// CyclicRoutine: the redistribution (redistribute.h) as a routine.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_CYCLIC_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_CYCLIC_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Redistributes `block` rows of `columns` elements on each rank from contiguous blocks to
// block-cyclic tiles of `tile` rows, or back if `inverse`. `tile` must divide `block`. First copies
// `source` to `a`, unless `source` is null. Workspace: one tile.
template <typename T>
Status CyclicRoutine(const RankContext& context, int64_t block, int64_t columns, int64_t tile,
                     bool inverse, T* a, const T* source = nullptr);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_CYCLIC_H_
