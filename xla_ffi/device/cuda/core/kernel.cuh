// The declaration of kernels, and the elements that a thread processes.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_KERNEL_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_KERNEL_CUH_

#include "xla_ffi/device/cuda/core/scalars.cuh"

#ifndef KERNEL  // tests define it
#define KERNEL extern "C" __global__ void
#endif

namespace jaxmg::kernels {

__device__ inline Index FirstElement() { return blockIdx.x * Index(blockDim.x) + threadIdx.x; }
__device__ inline Index ElementStride() { return gridDim.x * Index(blockDim.x); }

template <typename T>
__device__ void Fill(Index m, Index n, T* a, Index lda, T value) {
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) a[i / m * lda + i % m] = value;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_KERNEL_CUH_
