// The ranges of one call on one GPU: pairs of CUDA events, read when the call is over.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_TIMELINE_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "xla_ffi/device/cuda/library.h"
#include "xla_ffi/device/timeline.h"

namespace jaxmg {

class CudaTimeline {
 public:
  // Waits for `stream`, to know when on the host's clock an event of it was. The device must be the
  // thread's current one, here and below. What CUDA refuses leaves ranges out.
  explicit CudaTimeline(cudaStream_t stream);
  ~CudaTimeline();
  CudaTimeline(const CudaTimeline&) = delete;

  void Begin(Stream stream, cudaStream_t on, const char* name, int64_t index);
  void End(Stream stream, cudaStream_t on);
  // Needs the device to have come to their end.
  std::vector<TimelineRange> Take() const;

 private:
  struct Events {
    cudaEvent_t begin, end;
  };
  static cudaEvent_t Now(cudaStream_t on);  // null where CUDA refuses

  cudaEvent_t start_;
  double start_seconds_ = 0;
  std::vector<TimelineRange> ranges_;
  std::vector<Events> events_;  // of each range
  OpenRanges open_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_TIMELINE_H_
