// CudaResources: the resources of CUDA calls other than memory, pooled per device and never
// destroyed: streams, events, cuBLAS and cuSOLVER handles, our kernels. A process creates one set
// for each concurrent use; a thousand consecutive calls need only one.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_RESOURCES_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_RESOURCES_H_

#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "xla_ffi/device/cuda/kernels.h"
#include "xla_ffi/device/cuda/runtime/library.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// The pool of one device. Lives until the process ends. Thread-safe.
class CudaPool;

class CudaEvent : public Event {
 public:
  CudaEvent(CudaPool* pool, cudaEvent_t event) : pool_(pool), event_(event) {}
  ~CudaEvent() override;  // returns it to the pool; streams that wait for it still do
  cudaEvent_t get() const { return event_; }

 private:
  CudaPool* const pool_;
  const cudaEvent_t event_;
};

// A call of cuSOLVER: its dtype, a letter for its routine, the order of the matrix and its leading
// dimension. Then the workspace that it needs.
using SolverCall = std::tuple<cudaDataType, char, int64_t, int64_t>;
struct SolverBytes {
  size_t device = 0, host = 0;
};

// The resources of one call on one device while it runs on the host. Its work may still be running
// when the next call gets the same streams; the next call's work is then queued after it.
class CudaResources {
 public:
  // The device must be the thread's current one. kMain is `main`, which the caller owns.
  static Status Lease(int ordinal, cudaStream_t main, std::unique_ptr<CudaResources>* resources);
  ~CudaResources();

  cudaStream_t stream(Stream stream) const { return streams_[static_cast<int>(stream)]; }
  Status NewEvent(std::shared_ptr<Event>* event);
  // Returns page-locked memory. The buffer's destructor returns it to the pool.
  Status TakeHostMemory(size_t bytes, std::unique_ptr<Buffer>* buffer);

  // Creates the streams that only transfers use, which most processes don't need.
  Status ReserveTransfers();
  // Returns a handle that uses the stream. Handles are created on first use.
  Status BlasHandle(Stream stream, Precision precision, cublasHandle_t* handle);
  Status SolverHandle(Stream stream, cusolverDnHandle_t* handle, cusolverDnParams_t* params);
  // Returns the workspace that KeepBytes has stored for the call, or null.
  const SolverBytes* KnownBytes(const SolverCall& call) const;
  void KeepBytes(const SolverCall& call, const SolverBytes& bytes);

  // Returns host memory of a flag that this device's kernels set if the rank coordinates differ
  // from those that the host assumes; null if there is no flag.
  int32_t* StaleFlag() const;
  // Returns whether the flag was set since the last call, and clears it.
  bool TakeStaleFlag();

  // Returns host memory for cuSOLVER, valid until the next call of this function.
  void* HostWorkspace(size_t bytes);

  // Launches the kernel for the dtype with this letter (s, d, c or z; any for kernels without a
  // dtype), in blocks of x * y threads with `shared_bytes` of dynamic shared memory.
  Status Launch(Kernel kernel, char letter, Stream stream, unsigned blocks, unsigned x, unsigned y,
                void** arguments, unsigned shared_bytes = 0);
  // A cooperative launch: all blocks run concurrently, so they can wait for each other. One block
  // per multiprocessor always fits.
  Status LaunchCooperative(Kernel kernel, char letter, Stream stream, unsigned blocks,
                           unsigned threads, void** arguments, unsigned shared_bytes = 0);
  // Launches one cluster of `blocks`, a power of two and at most MostInCluster.
  Status LaunchCluster(Kernel kernel, char letter, Stream stream, unsigned blocks, unsigned threads,
                       void** arguments);
  // Returns the size of the largest cluster of such blocks; 1 if the device has no clusters.
  Status MostInCluster(Kernel kernel, char letter, unsigned threads, int* blocks) const;
  Status Multiprocessors(int* count) const;
  // Sets *bytes to the maximum shared memory of a block.
  Status SharedBytes(int* bytes) const;
  // Returns whether the device has the kernels of part_products.cuh.
  bool multiplies_parts() const { return multiplies_parts_; }

 private:
  // The resources that return to the pool.
  struct Parts {
    std::array<cudaStream_t, kNumStreams> streams{};  // except kMain; null: not created yet
    std::array<cublasHandle_t, kNumStreams> blas{};
    std::array<Precision, kNumStreams> precision{};  // the precision that each handle is set to
    std::array<cusolverDnHandle_t, kNumStreams> solver{};
    // The streams that the handles are set to.
    std::array<cudaStream_t, kNumStreams> blas_stream{}, solver_stream{};
    cusolverDnParams_t params = nullptr;
    std::map<SolverCall, SolverBytes> solver_bytes;
    std::vector<char> host_workspace;
    bool called = false;
    cudaStream_t last_main = nullptr;      // the caller's stream of the last call
    std::shared_ptr<CudaEvent> last_call;  // the end of that call
  };
  friend class CudaPool;

  CudaResources(CudaPool* pool, std::unique_ptr<Parts> parts, cudaStream_t main,
                bool multiplies_parts);

  CudaPool* const pool_;
  std::unique_ptr<Parts> parts_;
  std::array<cudaStream_t, kNumStreams> streams_;
  const bool multiplies_parts_;
};

// Sets *event to an event of the device's pool.
Status NewCudaEvent(int ordinal, std::shared_ptr<CudaEvent>* event);
Status HasCudaEventPassed(const Event& event, bool* passed);

// Enables access of device `ordinal` to the memory of device `peer`. Repeated calls have no effect.
// Ignores pairs without a link: copies between them go through the host.
Status EnablePeerAccess(int ordinal, int peer);
// Returns whether the device's kernels can read this memory: its own, or memory of a device to
// which access has been enabled. Memory of CUDA's pools has separate access rights and counts as
// not readable.
bool ReachedByKernels(int ordinal, const void* data);

// Computes whether device i can access the memory of device j, for all devices of the process.
Status PeerMatrix(std::vector<std::vector<bool>>* matrix);

// Sets the thread's current device, and restores the previous one on destruction.
class CurrentDevice {
 public:
  ~CurrentDevice();
  Status Set(int ordinal);

 private:
  int before_ = -1;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_RESOURCES_H_
