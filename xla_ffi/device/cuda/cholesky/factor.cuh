// Tiles of a Cholesky factor: their check and determinant, and inverses that are stored above the
// diagonal.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_FACTOR_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_FACTOR_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// Uses one block. Adds 2 log of the product of the diagonal, in a deterministic order and in double
// precision, because sums in float32 would lose digits.
template <typename T>
__device__ void AddLogDet(Index n, const T* l, Index ldl, typename RealOf<T>::type* sum) {
  __shared__ double partial[kThreads];
  double mine = 0;
  for (Index j = threadIdx.x; j < n; j += blockDim.x) {
    mine += log(static_cast<double>(RealPart(l[j * ldl + j])));
  }
  partial[threadIdx.x] = mine;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum += static_cast<typename RealOf<T>::type>(2 * partial[0]);
}

// Uses one block. *failed := the order of the tile's first leading minor that is not positive
// definite, or 0. Checks the diagonal, because the solver may not stop if it is not finite.
// Blas::Potrf describes *info.
template <typename T>
__device__ void CheckFactor(Index n, const T* a, Index lda, Index offset, const int* solver_info,
                            int* failed, int* info) {
  __shared__ int first;
  if (threadIdx.x == 0) first = *solver_info > 0 ? *solver_info : kNoInfo;
  __syncthreads();
  for (Index j = threadIdx.x; j < n; j += blockDim.x) {
    if (!Finite(a[j * lda + j])) atomicMin(&first, static_cast<int>(j + 1));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  *failed = first == kNoInfo ? 0 : first;
  if (first != kNoInfo) *info = min(*info, static_cast<int>(offset + first));
}

// Uses one block per tile of the n x n block. l := the lower triangle of a, v := the inverse that
// StoreInverse has stored above its diagonal, both n x n and zero above their diagonals; or l^H and
// v^H.
template <typename T>
__device__ void LoadInverse(Index n, int transposed, const T* a, Index lda, T* l, T* v) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles = (n + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge, column = blockIdx.x / tiles * kTileEdge;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (row + j < n && column + threadIdx.x < n) {
      tile[j][threadIdx.x] = a[(row + j) * lda + column + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index i = row + threadIdx.x, k = column + j;
    if (i >= n || k >= n) continue;
    const T here = a[k * lda + i], across = Conj(tile[threadIdx.x][j]);
    T lower = FromReal<T>(0), inverse = lower;
    if (i == k) {
      lower = transposed ? Conj(here) : here;
      inverse = Divide(FromReal<T>(1), lower);
    } else if ((i > k) != (transposed != 0)) {
      lower = transposed ? across : here;
      inverse = transposed ? here : across;
    }
    l[k * n + i] = lower;
    v[k * n + i] = inverse;
  }
}

// Uses one block per tile of the n x n block. Writes v^H above the diagonal of a.
template <typename T>
__device__ void StoreInverse(Index n, const T* v, Index ldv, T* a, Index lda) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles = (n + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge, column = blockIdx.x / tiles * kTileEdge;
  if (row < column) return;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (row + threadIdx.x < n && column + j < row + threadIdx.x) {
      tile[j][threadIdx.x] = v[(column + j) * ldv + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index target_row = column + threadIdx.x, target_column = row + j;
    if (target_column >= n || target_row >= target_column) continue;
    a[target_column * lda + target_row] = Conj(tile[threadIdx.x][j]);
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_FACTOR_CUH_
