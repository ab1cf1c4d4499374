// The streams of a rank, on which all work of a device is enqueued.
#ifndef JAXMG_XLA_FFI_DEVICE_STREAM_H_
#define JAXMG_XLA_FFI_DEVICE_STREAM_H_

#include <array>

namespace jaxmg {

// The streams of a rank. Trailing updates fill kMain; kPanel is the critical path and goes first
// where the hardware knows priorities, then kNext, what the critical path needs next; kCopy carries
// what moves between ranks; kSide is for what is small and can wait.
enum class Stream : int { kMain, kPanel, kNext, kCopy, kSide };
inline constexpr std::array<Stream, 5> kStreams = {Stream::kMain, Stream::kPanel, Stream::kNext,
                                                   Stream::kCopy, Stream::kSide};
inline constexpr int kNumStreams = static_cast<int>(kStreams.size());

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STREAM_H_
