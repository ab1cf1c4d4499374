#include "xla_ffi/device/cuda/runtime/timeline.h"

namespace jaxmg {

CudaTimeline::CudaTimeline(cudaStream_t stream) : start_(Now(stream)) {
  Get<CudaRuntime>().cudaStreamSynchronize(stream);
  start_seconds_ = SteadySeconds();
}

CudaTimeline::~CudaTimeline() {
  const CudaRuntime& runtime = Get<CudaRuntime>();
  if (start_ != nullptr) runtime.cudaEventDestroy(start_);
  for (const Events& events : events_) {
    if (events.begin != nullptr) runtime.cudaEventDestroy(events.begin);
    if (events.end != nullptr) runtime.cudaEventDestroy(events.end);
  }
}

cudaEvent_t CudaTimeline::Now(cudaStream_t on) {
  const CudaRuntime& runtime = Get<CudaRuntime>();
  cudaEvent_t event = nullptr;
  if (runtime.cudaEventCreateWithFlags(&event, cudaEventDefault) == cudaSuccess &&
      runtime.cudaEventRecord(event, on) == cudaSuccess) {
    return event;
  }
  runtime.cudaGetLastError();
  if (event != nullptr) runtime.cudaEventDestroy(event);
  return nullptr;
}

void CudaTimeline::Begin(Stream stream, cudaStream_t on, const char* name, int64_t index) {
  open_.Open(stream, ranges_.size());
  ranges_.push_back({name, index, stream, 0, 0});
  events_.push_back({Now(on), nullptr});
}

void CudaTimeline::End(Stream stream, cudaStream_t on) {
  events_[open_.Close(stream)].end = Now(on);
}

std::vector<TimelineRange> CudaTimeline::Take() const {
  std::vector<TimelineRange> taken;
  auto seconds = [&](cudaEvent_t event, double* at) {
    float milliseconds = 0;
    if (start_ == nullptr || event == nullptr ||
        Get<CudaRuntime>().cudaEventElapsedTime(&milliseconds, start_, event) != cudaSuccess) {
      Get<CudaRuntime>().cudaGetLastError();
      return false;
    }
    *at = start_seconds_ + milliseconds * 1e-3;
    return true;
  };
  for (size_t i = 0; i < ranges_.size(); ++i) {
    TimelineRange range = ranges_[i];
    if (seconds(events_[i].begin, &range.begin) && seconds(events_[i].end, &range.end)) {
      taken.push_back(range);
    }
  }
  return taken;
}

}  // namespace jaxmg
