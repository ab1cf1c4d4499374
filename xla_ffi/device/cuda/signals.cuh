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

// 8 bytes of a message, in halves that each bring the message's tag, so that a reader sees which
// halves are there. Needs no order among the words of a message.
struct __align__(16) TaggedWord {
  unsigned long long halves[2];
  __device__ bool Has(unsigned tag) const {
    return (halves[0] >> 32) == tag && (halves[1] >> 32) == tag;
  }
  __device__ unsigned First() const { return static_cast<unsigned>(halves[0]); }
  __device__ unsigned Second() const { return static_cast<unsigned>(halves[1]); }
};
__device__ inline void StoreWord(TaggedWord* word, unsigned first, unsigned second, unsigned tag) {
  const unsigned long long high = static_cast<unsigned long long>(tag) << 32;
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(word), "l"(high | first),
               "l"(high | second)
               : "memory");
#else
  __atomic_store_n(&word->halves[0], high | first, __ATOMIC_RELAXED);
  __atomic_store_n(&word->halves[1], high | second, __ATOMIC_RELAXED);
#endif
}
__device__ inline TaggedWord LoadWord(const TaggedWord* word) {
  TaggedWord value;
#ifdef __CUDA_ARCH__
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.halves[0]), "=l"(value.halves[1])
               : "l"(word)
               : "memory");
#else
  value.halves[0] = __atomic_load_n(&word->halves[0], __ATOMIC_RELAXED);
  value.halves[1] = __atomic_load_n(&word->halves[1], __ATOMIC_RELAXED);
#endif
  return value;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_SIGNALS_CUH_
