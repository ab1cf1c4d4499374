// Loads of several elements at once from shared memory.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_PACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_PACKS_CUH_

#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

template <typename T>
__device__ T MinusTimes(T x, T y, T sum) {
  return MultiplyAdd(Scale(x, -1), y, sum);
}

// The elements of one load from shared memory.
template <typename T>
struct __align__(16) Pack {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  T values[kSize];
};

// x[k] -= factor y[k], or factor conj(y[k]) if kConjugate, for first <= k < kCount. y is aligned
// like a Pack.
template <int kCount, bool kConjugate, typename T>
__device__ void SubtractPacks(T factor, const T* y, int first, T* x) {
  constexpr int kSize = Pack<T>::kSize;
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kSize) {
    if (begin + kSize <= first) continue;
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(y + begin);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const T value = kConjugate ? Conj(pack.values[i]) : pack.values[i];
      if (begin + i >= first) x[begin + i] = MinusTimes(factor, value, x[begin + i]);
    }
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_PACKS_CUH_
