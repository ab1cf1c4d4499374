// Reflectors of stacks of matrices: the kernel of StackKernels::ApplyReflectors other than
// products.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_REFLECTOR_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_REFLECTOR_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// T of I - V T V^H for each panel of reflectors of each matrix: one block for a panel, one thread
// for a row of T. `gram` is V^H V, `tau` has n numbers for each matrix, of which the last isn't
// used. Rows of T need none of the others: element j of row i is -tau_j times the product of its
// elements before j with column j of V^H V, which is read as a row's conjugate.
template <typename T>
__device__ void FormStackedReflectors(int n, const T* gram, const T* tau, T* t) {
  constexpr int kWidth = kStackReflectors<sizeof(T)>, kLd = kWidth + 1;
  const int panels = (n - 1 + kWidth - 1) / kWidth, thread = static_cast<int>(threadIdx.x);
  const Index matrix = blockIdx.x / panels;
  const int first = static_cast<int>(blockIdx.x - matrix * panels) * kWidth;
  const int width = min(kWidth, n - 1 - first);
  gram += blockIdx.x * Index(kWidth * kWidth);
  t += blockIdx.x * Index(kWidth * kWidth);
  tau += matrix * n + first;
  T* const rows = static_cast<T*>(DynamicShared());
  T* const row = rows + thread * kLd;
  for (int j = 0; j < kWidth; ++j) {
    T x = FromReal<T>(0);
    if (j < width && thread <= j) {
      T sum = FromReal<T>(0);
#pragma unroll 4
      for (int l = 0; l < j; ++l) sum = MultiplyAdd(row[l], Conj(gram[j * kWidth + l]), sum);
      x = thread == j ? tau[j] : Scale(Times(tau[j], sum), typename RealOf<T>::type(-1));
    }
    row[j] = x;
  }
  __syncthreads();
  for (int i = 0; i < kWidth; ++i) t[i * kWidth + thread] = rows[i * kLd + thread];
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_REFLECTOR_STACKS_CUH_
