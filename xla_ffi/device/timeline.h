// Where the time of a call goes: the ranges that algorithms name (Range in device.h), on every
// stream of every rank, in the file that the environment variable JAXMG_TRACE names.
//
// The file holds trace events of Chrome's format (JSON array, of which the end is left open so that
// later calls can go on), which Perfetto and chrome://tracing show and benchmarks/timeline.py
// draws.
#ifndef JAXMG_XLA_FFI_DEVICE_TIMELINE_H_
#define JAXMG_XLA_FFI_DEVICE_TIMELINE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/device/device.h"

namespace jaxmg {

inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Whether JAXMG_TRACE is set. It is read at every call.
bool TimelineWanted();

// Adds one rank's part of a call to the file, of what its device has recorded. `run` and `call`
// tell calls apart. A file that can't be written is reported on the standard error, once, and stops
// nothing; nor does a pipe that nobody reads.
void AppendTimeline(const char* routine, int64_t run, const void* site, int rank,
                    Device& device) noexcept;

// Which of a list of ranges are open on each stream: the innermost is closed first.
class OpenRanges {
 public:
  void Open(Stream stream, size_t range) { open_[static_cast<int>(stream)].push_back(range); }
  size_t Close(Stream stream) {
    std::vector<size_t>& open = open_[static_cast<int>(stream)];
    const size_t range = open.back();
    open.pop_back();
    return range;
  }

 private:
  std::array<std::vector<size_t>, kNumStreams> open_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_TIMELINE_H_
