// Timeline: writes the ranges that algorithms name (Range in device.h), for every stream of every
// rank, to the file in the environment variable JAXMG_TRACE.
//
// The file has Chrome's trace event format: a JSON array without its closing bracket, so that later
// calls can append. `python -m jaxmg.timeline` closes it, sums it up and draws it.
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

// Returns whether JAXMG_TRACE is set. Reads the variable at every call.
bool TimelineWanted();

// Appends the ranges that a rank's device has recorded in a call to the file. `run` and `site`
// identify the call. If the file can't be written, the function reports this once on standard
// error, and the call continues. A pipe without a reader doesn't block it.
void AppendTimeline(const char* routine, int64_t run, const void* site, int rank,
                    Device& device) noexcept;

// Tracks the open ranges of each stream. Close returns the innermost one.
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
