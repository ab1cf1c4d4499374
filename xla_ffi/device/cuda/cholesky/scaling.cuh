// Kernels that scale rows and columns by powers of two, and compute these powers (equilibrate.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_SCALING_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_SCALING_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// See Blas::Scale. Uses one block per tile of a. Elements whose factor is one are neither read nor
// written.
template <typename T>
__device__ void ScaleTile(bool lower, bool divide, Index m, Index n, const float* left,
                          const float* right, T* a, Index lda) {
  const Index tiles_m = (m + kTileEdge - 1) / kTileEdge;
  const Index i = blockIdx.x % tiles_m * kTileEdge + threadIdx.x;
  const Index first = blockIdx.x / tiles_m * kTileEdge;
  if (i >= m) return;
  const float row = left != nullptr ? left[i] : 1;
  for (Index j = first + threadIdx.y; j < min(first + kTileEdge, n); j += blockDim.y) {
    if (lower && i < j) continue;
    const float column = right != nullptr ? right[j] : 1;
    if (row == 1 && column == 1) continue;
    T& entry = a[j * lda + i];
    // Applies the factors one after the other, because their product may overflow.
    entry = divide ? Scale(Scale(entry, 1 / row), 1 / column) : Scale(Scale(entry, row), column);
  }
}

// See Blas::RowLargest. A thread processes kLargestColumns columns of a row at a time.
template <typename T>
__device__ void RowLargest(Index m, Index n, const T* a, Index lda, float* largest) {
  const Index pieces = (n + kLargestColumns - 1) / kLargestColumns;
  for (Index e = blockIdx.x * Index(blockDim.x) + threadIdx.x; e < m * pieces;
       e += gridDim.x * Index(blockDim.x)) {
    const Index i = e % m, first = e / m * kLargestColumns;
    const Index end = min(min(first + kLargestColumns, n), i + 1);
    unsigned found = 0;  // nonnegative numbers have the order of their bits; NaN is the largest
    for (Index j = first; j < end; ++j) {
      const T entry = a[j * lda + i];
      found = max(found, __float_as_uint(RealPart(entry)) & 0x7fffffff);
      found = max(found, __float_as_uint(ImaginaryPart(entry)) & 0x7fffffff);
    }
    if (first < end) atomicMax(reinterpret_cast<unsigned*>(largest + i), found);
  }
}

// See Blas::PowersOfTwo.
__device__ inline float PowerOfTwo(bool root, float x) {
  const unsigned bits = __float_as_uint(x);
  if (bits < 0x800000 || bits >= 0x7f800000) return 1;
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int power = root ? (exponent - (exponent & 1)) / 2 : exponent;
  return __uint_as_float(static_cast<unsigned>(power + 127) << 23);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_SCALING_CUH_
