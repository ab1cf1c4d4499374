// Asynchronous copies to shared memory.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_COPIES_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_COPIES_CUH_

namespace jaxmg::kernels {

// Copies one element to shared memory asynchronously; AwaitCopies waits for it. On the host, where
// tests/cc/kernels_test.cc runs the kernels, it copies immediately.
template <int kBytes>
__device__ void CopyAsync(void* shared, const void* global) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "n"(kBytes)
               : "memory");
#else
  __builtin_memcpy(shared, global, kBytes);
#endif
}
__device__ inline void AwaitCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Returns the dynamic shared memory of a block.
__device__ inline void* DynamicShared() {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
#else
  static __align__(16) unsigned char dynamic_shared[1 << 18];
#endif
  return dynamic_shared;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_COPIES_CUH_
