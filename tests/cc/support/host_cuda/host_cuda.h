// Runs kernels on the host, one block after the other. The threads of a block are fibers, or real
// threads under a sanitizer. They wait for each other at __syncthreads.
#ifndef JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_HOST_CUDA_H_
#define JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_HOST_CUDA_H_

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#include "tests/cc/support/host_cuda/threads.h"
#else
#include "tests/cc/support/host_cuda/fibers.h"
#endif

#define __device__ [[maybe_unused]]
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace host_cuda {

struct Dimensions {
  unsigned x = 1, y = 1;
};

inline thread_local Barrier *barrier, *warp_barrier;

}  // namespace host_cuda

inline thread_local host_cuda::Dimensions threadIdx, blockIdx;
inline host_cuda::Dimensions blockDim, gridDim;

namespace jaxmg::kernels {

// Kernels call this function for ::fma. A test may be linked with the runtime of zig 0.15, whose
// fma returns NaN if the product is far smaller than the third number. Products in quadruple
// precision are exact.
inline double fma(double a, double b, double c) {
  return static_cast<double>(static_cast<__float128>(a) * b + c);
}

}  // namespace jaxmg::kernels

inline void __syncthreads() { host_cuda::barrier->Wait(); }
inline void __syncwarp() { host_cuda::warp_barrier->Wait(); }

template <typename T>
T __shfl_xor_sync(unsigned, T x, int lanes) {
  static T given[1024];
  given[threadIdx.x] = x;
  __syncwarp();
  const T other = given[threadIdx.x ^ static_cast<unsigned>(lanes)];
  __syncwarp();
  return other;
}

template <typename T>
T __shfl_sync(unsigned, T x, int lane) {
  static T given[1024];
  given[threadIdx.x] = x;
  __syncwarp();
  const T other = given[threadIdx.x / 32 * 32 + static_cast<unsigned>(lane)];
  __syncwarp();
  return other;
}

// Reductions over whole warps.
template <typename T, typename F>
T __reduce_sync(T x, const F& choose) {
  static T given[1024];
  given[threadIdx.x] = x;
  __syncwarp();
  const unsigned first = threadIdx.x / 32 * 32;
  T chosen = given[first];
  for (unsigned i = 1; i < 32; ++i) chosen = choose(chosen, given[first + i]);
  __syncwarp();
  return chosen;
}
template <typename T>
T __reduce_max_sync(unsigned, T x) {
  return __reduce_sync(x, [](T a, T b) { return a < b ? b : a; });
}
template <typename T>
T __reduce_min_sync(unsigned, T x) {
  return __reduce_sync(x, [](T a, T b) { return b < a ? b : a; });
}
inline unsigned __ballot_sync(unsigned, bool x) {
  return __reduce_sync(x ? 1u << threadIdx.x % 32 : 0u,
                       [](unsigned a, unsigned b) { return a | b; });
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

inline int atomicMin(int* address, int value) {
  int old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (value < old && !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}

inline int atomicMax(int* address, int value) {
  int old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}

inline unsigned atomicMax(unsigned* address, unsigned value) {
  unsigned old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (value > old && !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}

inline unsigned long long atomicMax(unsigned long long* address, unsigned long long value) {
  unsigned long long old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (value > old && !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline void __nanosleep(unsigned) { host_cuda::Yield(); }

template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
using std::isfinite;
using std::memcpy;

namespace host_cuda {

// Runs one of `blocks` blocks, with x * y threads.
inline void RunBlock(unsigned block, unsigned blocks, unsigned x, unsigned y,
                     const std::function<void()>& kernel) {
  blockDim = {x, y};
  gridDim = {blocks, 1};
  constexpr unsigned kWarp = 32;
  Barrier all(static_cast<int>(x * y));
  std::vector<std::unique_ptr<Barrier>> warps;
  for (unsigned first = 0; first < x * y; first += kWarp) {
    warps.push_back(std::make_unique<Barrier>(static_cast<int>(min(kWarp, x * y - first))));
  }
  RunThreads(
      x * y,
      [&](unsigned thread) {
        threadIdx = {thread % x, thread / x};
        blockIdx = {block, 0};
        barrier = &all;
        warp_barrier = warps[thread / kWarp].get();
      },
      [&] {
        kernel();
        all.Leave();
        warp_barrier->Leave();
      });
}

inline void Launch(unsigned blocks, unsigned x, unsigned y, const std::function<void()>& kernel) {
  for (unsigned block = 0; block < blocks; ++block) RunBlock(block, blocks, x, y, kernel);
}

}  // namespace host_cuda

#endif  // JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_HOST_CUDA_H_
