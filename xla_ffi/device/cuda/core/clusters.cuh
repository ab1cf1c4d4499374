// Communication between the blocks of a cluster through each other's shared memory, on GPUs of
// compute capability 9.0 and higher. The grid is a single cluster.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_CLUSTERS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_CLUSTERS_CUH_

namespace jaxmg::kernels {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Returns the address in block `block` of this block's object `shared`.
__device__ inline unsigned InCluster(const void* shared, int block) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "r"(block));
  return address;
}
#endif

// A barrier for all threads of all blocks. After it, each thread sees everything that any thread
// has written before it.
__device__ inline void AwaitCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}

// Counts the bytes that other blocks send to this one (an mbarrier in shared memory). In each round
// one thread sets the expected number, and any thread may wait for it. `round` is the number of the
// round modulo 2.
class Arrival {
 public:
  // Called by one thread, before AwaitCluster.
  __device__ void Init() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(Address()) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __device__ void Expect(int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
#endif
  }
  __device__ void Await(unsigned round) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned done = 0;
    while (done == 0) {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(Address()), "r"(round)
          : "memory");
    }
#endif
  }

 private:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ unsigned Address() const {
    return static_cast<unsigned>(__cvta_generic_to_shared(&word_));
  }
#endif

  [[maybe_unused]] unsigned long long word_;  // used by devices of 9.0 and higher
};

// Sends 16 bytes to `shared` in another block; that block's `arrival` counts them.
template <typename T>
__device__ void SendInCluster(const T* from, T* shared, int block, const Arrival* arrival) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned long long halves[2];
  memcpy(halves, from, 16);
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u64 [%0], {%1, %2}, [%3];" ::"r"(
          InCluster(shared, block)),
      "l"(halves[0]), "l"(halves[1]), "r"(InCluster(arrival, block))
      : "memory");
#endif
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_CLUSTERS_CUH_
