// Wires: what carries blocks between memories that no process can both map, as those of GPUs of
// different hosts: NCCL (cuda/wire.h). Who uses which, and when, is comm/processes/wires.h's.
#ifndef JAXMG_XLA_FFI_DEVICE_WIRE_H_
#define JAXMG_XLA_FFI_DEVICE_WIRE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// One end of a wire, of which one end sends and the other receives. Each of both enqueues on a
// stream of the wire's own, and what it enqueued occupies its device until the other end has
// enqueued its part too. One thread at a time, but for Abort.
class Wire {
 public:
  virtual ~Wire() = default;

  // Enqueue, in the same order on both sides; `*done` is where the block has gone, or come.
  virtual Status Send(const void* data, size_t bytes, std::shared_ptr<Event>* done) = 0;
  virtual Status Receive(void* data, size_t bytes, std::shared_ptr<Event>* done) = 0;
  // Whether the device has come to an event of this wire's. Any thread.
  virtual Status HasPassed(const Event& event, bool* passed) = 0;
  // What has gone wrong since, if anything has.
  virtual Status Check() = 0;
  // The other end is no more: what is enqueued comes to its end, to no good, and later calls fail.
  // Any thread; waits for nothing.
  virtual void Abort() noexcept = 0;
};

// Lives as long as the process. Thread-safe.
class WireSource {
 public:
  enum class End { kSends, kReceives };

  virtual ~WireSource() = default;

  // Says what it is, with its version: both sides must say the same. An error where it can't be
  // had.
  virtual Status Open(std::string* name) = 0;
  // A name for a new wire, which the other side needs too.
  virtual Status NewId(std::string* id) = 0;
  // Waits until the other side has made its end, and something has passed; gives up when told to.
  // What is left of a wire that failed goes by its destructor on this thread, which may take long.
  virtual Status Make(int ordinal, End end, const std::string& id,
                      const std::atomic<bool>& given_up, std::unique_ptr<Wire>* wire) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_WIRE_H_
