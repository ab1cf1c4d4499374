// HostPlan: the widths of block columns and tiles with which a matrix in host memory is factored in
// a given amount of device memory.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_PLAN_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_PLAN_H_

#include <cstdint>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/tuning.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// Returns the bytes of device memory that a factorization, a solution and an inverse need on a
// rank: two buffers, workspace and x. If the shape is whole: an LU factorization and a solution,
// with their pivots.
template <typename T>
int64_t HostBytes(const HostShape& shape, Precision products, const Tuning& tuning);

// Sets shape->width and shape->tile, given its other sizes, to the widest block columns for which
// HostBytes is at most `budget`. Tiles are narrower than usual if only few of those would fit.
// Depends on nothing but its arguments. An error says how much is needed at least.
template <typename T>
Status PlanHostMatrix(int64_t budget, Precision products, const Tuning& tuning, HostShape* shape);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_PLAN_H_
