// What the lanes of a warp find together.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_WARPS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_WARPS_CUH_

#include "xla_ffi/device/cuda/scalars.cuh"

namespace jaxmg::kernels {

// All lanes call these, and get the same.

// The lanes whose number is the largest.
__device__ inline unsigned LanesOfLargest(unsigned x) {
  return __ballot_sync(~0u, x == __reduce_max_sync(~0u, x));
}
__device__ inline unsigned LanesOfLargest(unsigned long long x) {
  const unsigned lanes = LanesOfLargest(static_cast<unsigned>(x >> 32));
  if (__popc(lanes) == 1) return lanes;
  const bool among = lanes >> (threadIdx.x % 32) & 1;
  return lanes & LanesOfLargest(among ? static_cast<unsigned>(x) : 0u);
}
// What lane `lane` has.
template <typename T>
__device__ T OfLane(T x, int lane) {
  return __shfl_sync(~0u, x, lane);
}
template <>
__device__ inline cuComplex OfLane(cuComplex x, int lane) {
  return make_cuComplex(OfLane(x.x, lane), OfLane(x.y, lane));
}
template <>
__device__ inline cuDoubleComplex OfLane(cuDoubleComplex x, int lane) {
  return make_cuDoubleComplex(OfLane(x.x, lane), OfLane(x.y, lane));
}
// Orders what the lanes have written before as well.
__device__ inline bool AnyOfWarp(bool x) {
  const bool any = __reduce_max_sync(~0u, x ? 1u : 0u) != 0;
  __syncwarp();
  return any;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_WARPS_CUH_
