// CudaTimeline: the ranges of one call on one GPU. Each range is a pair of CUDA events, which are
// read after the call.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_TIMELINE_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "xla_ffi/device/cuda/runtime/library.h"
#include "xla_ffi/device/timeline.h"

namespace jaxmg {

class CudaTimeline {
 public:
  // Waits for `stream`, to relate one of its events to the host's clock. Here and below, the device
  // must be the thread's current one. Ranges whose CUDA calls fail are omitted.
  explicit CudaTimeline(cudaStream_t stream);
  ~CudaTimeline();
  CudaTimeline(const CudaTimeline&) = delete;

  void Begin(Stream stream, cudaStream_t on, const char* name, int64_t index);
  void End(Stream stream, cudaStream_t on);
  // The device must have reached the end of all ranges.
  std::vector<TimelineRange> Take() const;

 private:
  struct Events {
    cudaEvent_t begin, end;
  };
  static cudaEvent_t Now(cudaStream_t on);  // null if CUDA fails

  cudaEvent_t start_;
  double start_seconds_ = 0;
  std::vector<TimelineRange> ranges_;
  std::vector<Events> events_;  // for each range
  OpenRanges open_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_TIMELINE_H_
