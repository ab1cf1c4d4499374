// Stream: the streams of a rank. All work of a device is enqueued on them.
#ifndef JAXMG_XLA_FFI_DEVICE_STREAM_H_
#define JAXMG_XLA_FFI_DEVICE_STREAM_H_

#include <array>

namespace jaxmg {

// kMain runs the trailing updates. kPanel runs the critical path and has the highest priority if
// the hardware supports priorities. kNext, the second highest, computes the next input of the
// critical path. kCopy transfers data between ranks. kSide runs small work that isn't urgent. kLoad
// and kStore copy from and to a matrix in host memory (engine/offload), and run nothing else.
enum class Stream : int { kMain, kPanel, kNext, kCopy, kSide, kLoad, kStore };
inline constexpr std::array<Stream, 7> kStreams = {Stream::kMain, Stream::kPanel, Stream::kNext,
                                                   Stream::kCopy, Stream::kSide,  Stream::kLoad,
                                                   Stream::kStore};
inline constexpr int kNumStreams = static_cast<int>(kStreams.size());

// Whether the stream exists only after Device::ReserveTransfers.
constexpr bool IsTransfer(Stream stream) {
  return stream == Stream::kLoad || stream == Stream::kStore;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STREAM_H_
