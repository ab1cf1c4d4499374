// Link: moves blocks between this process's ranks and the ranks of one other process, in one call.
// Links differ only in the transport of blocks; rendezvous, agreement and loss detection are common
// to all.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_LINK_H_

#include <cstdint>
#include <memory>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/processes/connections/frame.h"

namespace jaxmg {

class Link {
 public:
  virtual ~Link() = default;
  virtual LinkKind kind() const = 0;
  // Records an event after the work so far of a stream of this process's rank.
  virtual Status Record(Device& device, Stream stream, int /*rank*/,
                        std::shared_ptr<Event>* event) {
    JAXMG_RETURN_IF_ERROR(device.NewEvent(event));
    return device.Record(stream, event->get());
  }
  // Records the event that is posted when a message has been taken.
  virtual Status RecordTaken(Device& device, Stream stream, int rank,
                             std::shared_ptr<Event>* event) {
    return Record(device, stream, rank, event);
  }
  // Starts to move a message from a rank of this process to a rank of the other; doesn't wait.
  // Throws if memory is exhausted.
  virtual void Post(int from, int to, const InProcessGroup::Message& message) = 0;
  // Reports that rank `to` of this process no longer needs a message of the other process's rank
  // `from`.
  virtual void PostTaken(int from, int to, const std::shared_ptr<Event>& done) noexcept = 0;
  // Called after a message was taken and before its memory is written again.
  virtual void Settle() noexcept {}
  // Guarantees that no message of this rank is read afterwards, whether it has arrived or not.
  virtual void Recall(int from) noexcept = 0;

  // Resolves a location in the other process's memory to the block and event of a message.
  virtual Status Resolve(const BlockLocation&, InProcessGroup::Message*) {
    return Status::Fixed(Code::kInternal,
                         "a process sent a location in memory that it does not share");
  }
  // Receives the block that the other process announced as number `number`.
  virtual Status Fetch(int /*from*/, int /*to*/, int64_t /*number*/, const Bytes2D& /*room*/) {
    return Status::Fixed(Code::kInternal, "a process announced a block that it can't send");
  }
  // Returns the event that the other process reports for a taken message; null if the frame names
  // no event.
  virtual std::shared_ptr<Event> EventOf(const FrameHeader&) const { return nullptr; }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_LINK_H_
