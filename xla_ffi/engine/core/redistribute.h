// In-place redistribution of a matrix between contiguous blocks and block-cyclic tiles.
//
// Moves (P - 1) / P of the matrix between ranks and all of it once within each rank; half of both
// with Region::kLower. Workspace: `staging`, one tile, and the matrix's overflow tile.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_REDISTRIBUTE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_REDISTRIBUTE_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

enum class Region {
  kFull,
  kLower,  // only the rows of each tile from its diagonal tile on; the others become undefined
};

// Enqueued on all streams, kMain last. `staging` holds rows x tiles.width() elements.
template <typename T>
Status ToBlockCyclic(const RankContext& context, const Matrix<T>& matrix, Region region,
                     T* staging);
template <typename T>
Status ToContiguous(const RankContext& context, const Matrix<T>& matrix, Region region, T* staging);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_REDISTRIBUTE_H_
