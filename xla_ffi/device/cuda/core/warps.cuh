// Operations of a warp. All lanes must call them together.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_WARPS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_WARPS_CUH_

#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

__device__ inline unsigned LargestOfWarp(unsigned x) { return __reduce_max_sync(~0u, x); }

// Returns the mask of the lanes that have the largest number.
__device__ inline unsigned LanesOfLargest(unsigned x) {
  return __ballot_sync(~0u, x == LargestOfWarp(x));
}
__device__ inline unsigned LanesOfLargest(unsigned long long x) {
  const unsigned lanes = LanesOfLargest(static_cast<unsigned>(x >> 32));
  if (__popc(lanes) == 1) return lanes;
  const bool among = lanes >> (threadIdx.x % 32) & 1;
  return lanes & LanesOfLargest(among ? static_cast<unsigned>(x) : 0u);
}
// Returns whether x is true in any lane. Also a memory barrier for the warp.
__device__ inline bool AnyOfWarp(bool x) {
  const bool any = __ballot_sync(~0u, x) != 0;
  __syncwarp();
  return any;
}

// Returns the value of lane `lane`.
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

// Returns the value of the lane whose index is this lane's XOR `lanes`.
template <typename T>
__device__ T AcrossLanes(T x, int lanes) {
  return __shfl_xor_sync(~0u, x, lanes);
}
template <>
__device__ inline cuComplex AcrossLanes(cuComplex x, int lanes) {
  return make_cuComplex(AcrossLanes(x.x, lanes), AcrossLanes(x.y, lanes));
}
template <>
__device__ inline cuDoubleComplex AcrossLanes(cuDoubleComplex x, int lanes) {
  return make_cuDoubleComplex(AcrossLanes(x.x, lanes), AcrossLanes(x.y, lanes));
}

// Returns the sum over all lanes, in the same order in every lane.
template <typename T>
__device__ T SumOfWarp(T x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x = Plus(x, AcrossLanes(x, lanes));
  return x;
}

// Sums four numbers of each lane over the warp: lane l gets the sum of number l / 8. Terms are
// added in the order of SumOfWarp.
template <typename T>
__device__ T SumsOfWarp(const T (&x)[4], int lane) {
  const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
  T pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pair[i] = Plus(upper ? x[2 + i] : x[i], AcrossLanes(upper ? x[i] : x[2 + i], 16));
  }
  T sum = Plus(odd ? pair[1] : pair[0], AcrossLanes(odd ? pair[0] : pair[1], 8));
  for (int lanes = 4; lanes > 0; lanes /= 2) sum = Plus(sum, AcrossLanes(sum, lanes));
  return sum;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_WARPS_CUH_
