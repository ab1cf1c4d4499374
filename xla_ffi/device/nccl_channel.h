// NCCL channels carry blocks between two memories if no process can map both, such as the memories
// of GPUs of different hosts. cuda/runtime/nccl_channel.h implements them with NCCL.
// comm/processes/links/nccl_channels.h decides which channels exist and when they are used.
#ifndef JAXMG_XLA_FFI_DEVICE_NCCL_CHANNEL_H_
#define JAXMG_XLA_FFI_DEVICE_NCCL_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// One end of a channel, which is unidirectional: one end sends and the other receives. Each end
// enqueues its operations on the channel's own stream. An operation occupies the device until the
// other end has enqueued its counterpart. Only one thread at a time may call, except for Abort.
class ChannelEnd {
 public:
  virtual ~ChannelEnd() = default;

  // Enqueue an operation, in the same order on both sides. `*done` is the event after which the
  // block has been sent or received.
  virtual Status Send(const void* data, size_t bytes, std::shared_ptr<Event>* done) = 0;
  virtual Status Receive(void* data, size_t bytes, std::shared_ptr<Event>* done) = 0;
  // Sets `*passed` to whether the device has reached an event of this channel. Any thread may call
  // it.
  virtual Status HasPassed(const Event& event, bool* passed) = 0;
  // Returns an asynchronous error, if one has occurred.
  virtual Status Check() = 0;
  // Aborts because the other end is gone: enqueued operations end with undefined data, and later
  // calls fail. Any thread may call it; it doesn't wait.
  virtual void Abort() noexcept = 0;
};

// Lives as long as the process. Thread-safe.
class ChannelSource {
 public:
  enum class End { kSends, kReceives };

  virtual ~ChannelSource() = default;

  // Initializes the source. `*name` is its name and version, which must be equal on both sides.
  // Returns an error if it isn't available.
  virtual Status Open(std::string* name) = 0;
  // Creates the identifier of a new channel, which both sides need.
  virtual Status NewId(std::string* id) = 0;
  // Waits until the other side has made its end and a first transfer has passed; returns early if
  // `given_up` is set. The destructor of a failed channel runs on this thread, which may take long.
  virtual Status Make(int ordinal, End end, const std::string& id,
                      const std::atomic<bool>& given_up,
                      std::unique_ptr<ChannelEnd>* channel_end) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_NCCL_CHANNEL_H_
