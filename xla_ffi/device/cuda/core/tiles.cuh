// Transposition of tiles, and copies of columns.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_TILES_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_TILES_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// b := a^H through shared memory; a is m x n. Uses one block per tile.
template <typename T>
__device__ void ConjTranspose(Index m, Index n, const T* a, Index lda, T* b, Index ldb) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles_m = (m + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles_m * kTileEdge, column = blockIdx.x / tiles_m * kTileEdge;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (row + threadIdx.x < m && column + j < n) {
      tile[j][threadIdx.x] = a[(column + j) * lda + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (column + threadIdx.x < n && row + j < m) {
      b[(row + j) * ldb + column + threadIdx.x] = Conj(tile[threadIdx.x][j]);
    }
  }
}

// Copies `bytes` bytes with a block, in units of type Unit, a few of them at a time.
template <typename Unit>
__device__ void CopyInUnits(char* target, const char* source, Index bytes) {
  constexpr int kAtOnce = 4;
  Unit* to = reinterpret_cast<Unit*>(target);
  const Unit* from = reinterpret_cast<const Unit*>(source);
  const int count = static_cast<int>(bytes / sizeof(Unit));
  for (int i = threadIdx.x; i < count; i += kAtOnce * blockDim.x) {
    Unit units[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * blockDim.x < count) units[j] = from[i + j * blockDim.x];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * blockDim.x < count) to[i + j * blockDim.x] = units[j];
    }
  }
}

// Copies a block's segment of `bytes` bytes: at most kCopySegment bytes from `begin` on. The unit
// is the largest power of two, at most 16 bytes, that divides `alignment`; all addresses must be
// multiples of it.
__device__ inline void CopySegment(char* target, const char* source, Index begin, Index bytes,
                                   Index alignment) {
  if (begin >= bytes) return;
  char* const to = target + begin;
  const char* const from = source + begin;
  const Index part = min(bytes - begin, Index(kCopySegment));
  if (alignment % 16 == 0) {
    CopyInUnits<uint4>(to, from, part);
  } else if (alignment % 8 == 0) {
    CopyInUnits<uint2>(to, from, part);
  } else if (alignment % 4 == 0) {
    CopyInUnits<unsigned>(to, from, part);
  } else if (alignment % 2 == 0) {
    CopyInUnits<unsigned short>(to, from, part);
  } else {
    CopyInUnits<unsigned char>(to, from, part);
  }
}

// Uses one block per tile of the n x n block; blocks above the diagonal have no work.
template <typename T>
__device__ void MirrorLower(Index n, T* a, Index lda) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles = (n + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge, column = blockIdx.x / tiles * kTileEdge;
  if (row < column) return;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    // Elements above the diagonal may be uninitialized.
    if (row + threadIdx.x < n && row + threadIdx.x >= column + j) {
      tile[j][threadIdx.x] = a[(column + j) * lda + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index target_row = column + threadIdx.x, target_column = row + j;
    if (target_row >= n || target_column >= n || target_row > target_column) continue;
    T value = Conj(tile[threadIdx.x][j]);
    if (target_row == target_column) value = FromReal<T>(RealPart(value));
    a[target_column * lda + target_row] = value;
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_TILES_CUH_
