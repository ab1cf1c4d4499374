// What CUDA calls need beside memory, pooled per device and reused for ever: streams, events,
// cuBLAS and cuSOLVER handles, our kernels. A process makes as many as it uses at one time; a
// thousand calls in turn need no more than one.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RESOURCES_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RESOURCES_H_

#include <array>
#include <memory>
#include <vector>

#include "xla_ffi/device/cuda/kernels.h"
#include "xla_ffi/device/cuda/library.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// One device's share, alive until the process ends. Thread-safe.
class CudaPool;

class CudaEvent : public Event {
 public:
  CudaEvent(CudaPool* pool, cudaEvent_t event) : pool_(pool), event_(event) {}
  ~CudaEvent() override;  // back to the pool; what waits for it is not disturbed
  cudaEvent_t get() const { return event_; }

 private:
  CudaPool* const pool_;
  const cudaEvent_t event_;
};

// What one call on one device has to itself while it runs on the host. Its work may still be
// running when the next call gets the same streams and queues behind it.
class CudaResources {
 public:
  // The device must be the thread's current one. kMain is `main`, which belongs to the caller.
  static Status Lease(int ordinal, cudaStream_t main, std::unique_ptr<CudaResources>* resources);
  ~CudaResources();

  cudaStream_t stream(Stream stream) const { return streams_[static_cast<int>(stream)]; }
  Status NewEvent(std::shared_ptr<Event>* event);
  // Page-locked, and back to the pool with the buffer.
  Status TakeHostMemory(size_t bytes, std::unique_ptr<Buffer>* buffer);

  // Handles that work on the stream; made when first asked for.
  Status BlasHandle(Stream stream, Precision precision, cublasHandle_t* handle);
  Status SolverHandle(Stream stream, cusolverDnHandle_t* handle, cusolverDnParams_t* params);

  // A number of the host's that kernels of this device may set, where their program has been found
  // on other devices than it was made for; null where there is none.
  int32_t* StaleFlag() const;
  // Whether it was set since the last time.
  bool TakeStaleFlag();

  // Memory of the host that lives until the next call of this; cuSOLVER asks for some.
  void* HostWorkspace(size_t bytes);

  // The kernel for the dtype with this letter (s, d, c or z; any for those without a dtype).
  // Blocks of x * y threads, each with so many bytes of shared memory beside what it names itself.
  Status Launch(Kernel kernel, char letter, Stream stream, unsigned blocks, unsigned x, unsigned y,
                void** arguments, unsigned shared_bytes = 0);
  // Blocks that wait for each other, and so have to run at the same time: no more than fit. One on
  // each multiprocessor does.
  Status LaunchTogether(Kernel kernel, char letter, Stream stream, unsigned blocks,
                        unsigned threads, void** arguments, unsigned shared_bytes = 0);
  // Blocks that read each other's shared memory: no more than MostInCluster, a power of two.
  Status LaunchCluster(Kernel kernel, char letter, Stream stream, unsigned blocks, unsigned threads,
                       void** arguments);
  // 1 where the device has no clusters.
  Status MostInCluster(Kernel kernel, char letter, unsigned threads, int* blocks) const;
  Status Multiprocessors(int* count) const;
  // That a block may have at most.
  Status SharedBytes(int* bytes) const;
  // Whether the device has the kernels of part_products.cuh.
  bool multiplies_parts() const { return multiplies_parts_; }

 private:
  // What goes back to the pool.
  struct Parts {
    std::array<cudaStream_t, kNumStreams> streams{};  // ours: all but kMain
    std::array<cublasHandle_t, kNumStreams> blas{};
    std::array<Precision, kNumStreams> precision{};  // that each of them works in
    std::array<cusolverDnHandle_t, kNumStreams> solver{};
    cusolverDnParams_t params = nullptr;
    std::vector<char> host_workspace;
    bool called = false;
    cudaStream_t last_main = nullptr;      // the caller's stream of the last call
    std::shared_ptr<CudaEvent> last_call;  // the end of it
  };
  friend class CudaPool;

  CudaResources(CudaPool* pool, std::unique_ptr<Parts> parts, cudaStream_t main,
                bool multiplies_parts);

  CudaPool* const pool_;
  std::unique_ptr<Parts> parts_;
  std::array<cudaStream_t, kNumStreams> streams_;
  std::array<bool, kNumStreams> blas_ready_{};
  const bool multiplies_parts_;
};

// An event of the device's pool.
Status NewCudaEvent(int ordinal, std::shared_ptr<CudaEvent>* event);
Status HasCudaEventPassed(const Event& event, bool* passed);

// Lets device `ordinal` read and write the memory of device `peer`; done once, however often it is
// called. Pairs without a link are left out: copies between them go through the host.
Status EnablePeerAccess(int ordinal, int peer);
// Whether kernels of the device may read this memory, its own or that of a device to which access
// has been enabled. Memory of pools has rights of its own, and counts as out of reach.
bool ReachedByKernels(int ordinal, const void* data);

// Whether device i can reach the memory of device j, for all devices of the process.
Status PeerMatrix(std::vector<std::vector<bool>>* matrix);

// Makes a device the thread's current one, and the one before it again in the end.
class CurrentDevice {
 public:
  ~CurrentDevice();
  Status Set(int ordinal);

 private:
  int before_ = -1;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RESOURCES_H_
