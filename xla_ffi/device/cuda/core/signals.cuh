// Signals between the blocks of a kernel, through words in global memory.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_SIGNALS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_SIGNALS_CUH_

#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// Publish and Arrive release, Read and Seen acquire. If one thread of a block reads a value that
// another block has published, and the block's threads then synchronize, all of them see what the
// other block wrote before.
__device__ inline void Publish(unsigned* word, unsigned value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}
// Increments the word.
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

// Eight bytes of a message. Each half carries the message's tag, so that a reader can tell which
// halves have arrived. The words of a message may arrive in any order.
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
  __nanosleep(20);  // lets the threads of other blocks run
#endif
  return value;
}

// A number that another block waits for. All bits of its memory are set until it arrives. Numbers,
// and the real and imaginary part of one, may arrive in any order.
__device__ inline bool HasCome(float x) { return __float_as_uint(x) != ~0u; }
__device__ inline bool HasCome(double x) { return __double_as_longlong(x) != -1; }
template <typename T>
__device__ bool HasCome(T x) {
  return HasCome(x.x) && HasCome(x.y);
}
// Replaces every NaN by one whose bits differ from those of an absent number.
template <typename R>
__device__ R NumberToSend(R x) {
  return x == x ? x : Nan<R>();
}
#ifdef __CUDA_ARCH__
__device__ inline void SendNumber(float* to, float x) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(NumberToSend(x)) : "memory");
}
__device__ inline void SendNumber(double* to, double x) {
  asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(to), "d"(NumberToSend(x)) : "memory");
}
__device__ inline void SendNumber(cuComplex* to, cuComplex x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(NumberToSend(x.x)),
               "f"(NumberToSend(x.y))
               : "memory");
}
__device__ inline void SendNumber(cuDoubleComplex* to, cuDoubleComplex x) {
  asm volatile("st.relaxed.gpu.global.v2.f64 [%0], {%1, %2};" ::"l"(to), "d"(NumberToSend(x.x)),
               "d"(NumberToSend(x.y))
               : "memory");
}
__device__ inline float ReceiveNumber(const float* from) {
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}
__device__ inline double ReceiveNumber(const double* from) {
  double x;
  asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(x) : "l"(from) : "memory");
  return x;
}
__device__ inline cuComplex ReceiveNumber(const cuComplex* from) {
  cuComplex x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "l"(from)
               : "memory");
  return x;
}
__device__ inline cuDoubleComplex ReceiveNumber(const cuDoubleComplex* from) {
  cuDoubleComplex x;
  asm volatile("ld.relaxed.gpu.global.v2.f64 {%0, %1}, [%2];"
               : "=d"(x.x), "=d"(x.y)
               : "l"(from)
               : "memory");
  return x;
}
#else
template <typename R>
void SendPart(R* to, R x) {
  x = NumberToSend(x);
  __atomic_store(to, &x, __ATOMIC_RELAXED);
}
template <typename R>
R ReceivePart(const R* from) {
  R x;
  __atomic_load(from, &x, __ATOMIC_RELAXED);
#ifndef __CUDACC__  // its host never calls this
  if (!HasCome(x)) __nanosleep(20);  // lets the threads of other blocks run
#endif
  return x;
}
template <typename T>
void SendNumber(T* to, T x) {
  if constexpr (sizeof(T) == sizeof(typename RealOf<T>::type)) {
    SendPart(to, x);
  } else {
    SendPart(&to->x, x.x);
    SendPart(&to->y, x.y);
  }
}
template <typename T>
T ReceiveNumber(const T* from) {
  if constexpr (sizeof(T) == sizeof(typename RealOf<T>::type)) {
    return ReceivePart(from);
  } else {
    return FromParts<T>(ReceivePart(&from->x), ReceivePart(&from->y));
  }
}
#endif

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_SIGNALS_CUH_
