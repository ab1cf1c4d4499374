// Stream: the streams of a rank. All work of a device is enqueued on them.
#ifndef JAXMG_XLA_FFI_DEVICE_STREAM_H_
#define JAXMG_XLA_FFI_DEVICE_STREAM_H_

#include <array>

namespace jaxmg {

// kMain runs the trailing updates. kPanel runs the critical path and has the highest priority if
// the hardware supports priorities. kNext, the second highest, computes the next input of the
// critical path. kCopy transfers data between ranks. kSide runs small work that isn't urgent.
enum class Stream : int { kMain, kPanel, kNext, kCopy, kSide };
inline constexpr std::array<Stream, 5> kStreams = {Stream::kMain, Stream::kPanel, Stream::kNext,
                                                   Stream::kCopy, Stream::kSide};
inline constexpr int kNumStreams = static_cast<int>(kStreams.size());

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STREAM_H_
