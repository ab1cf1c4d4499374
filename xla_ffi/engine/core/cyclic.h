// cyclic: the redistribution (redistribute.h) as a routine of its own.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_CYCLIC_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_CYCLIC_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// `block` rows of `columns` elements on each rank: contiguous to block-cyclic tiles of `tile` rows,
// or back. Needs `tile` to divide `block`. Copied from `source` first, if that is given. Workspace:
// a tile.
template <typename T>
Status CyclicRoutine(const RankContext& context, int64_t block, int64_t columns, int64_t tile,
                     bool inverse, T* a, const T* source = nullptr);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_CYCLIC_H_
