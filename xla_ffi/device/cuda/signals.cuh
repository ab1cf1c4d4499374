// Words in global memory by which blocks of a kernel tell each other how far they are.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_SIGNALS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_SIGNALS_CUH_

namespace jaxmg::kernels {

// What one block has written before Publish or Arrive, another one's threads see after one of them
// has read what came of that, by Read or Seen, and they have met.
__device__ inline void Publish(unsigned* word, unsigned value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}
// One more than before.
__device__ inline void Arrive(unsigned* word) {
#ifdef __CUDA_ARCH__
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(word) : "memory");
#else
  __atomic_fetch_add(word, 1u, __ATOMIC_RELEASE);
#endif
}
__device__ inline unsigned Read(const unsigned* word) {
#ifdef __CUDA_ARCH__
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}
__device__ inline bool Seen(const unsigned* word, unsigned least) { return Read(word) >= least; }

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_SIGNALS_CUH_
