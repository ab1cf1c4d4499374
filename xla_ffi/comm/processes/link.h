// Link: how blocks move between this process's ranks and those of one other process, in one call.
// That is all that a transport is: who meets, who agrees and who is lost is the same for all.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINK_H_

#include <cstdint>
#include <memory>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/processes/frame.h"

namespace jaxmg {

class Link {
 public:
  virtual ~Link() = default;
  virtual Way way() const = 0;
  // An event of a rank of this process behind which its stream's work so far is done.
  virtual Status Record(Device& device, Stream stream, int /*rank*/,
                        std::shared_ptr<Event>* event) {
    JAXMG_RETURN_IF_ERROR(device.NewEvent(event));
    return device.Record(stream, event->get());
  }
  // The same for what to post when a message was taken.
  virtual Status RecordTaken(Device& device, Stream stream, int rank,
                             std::shared_ptr<Event>* event) {
    return Record(device, stream, rank, event);
  }
  // Begins to move a message of a rank of this process to one of the other; doesn't wait. Throws
  // where there is no memory for that.
  virtual void Post(int from, int to, const InProcessGroup::Message& message) = 0;
  // Rank `to` of this process has done with a message of the other's `from`.
  virtual void PostTaken(int from, int to, const std::shared_ptr<Event>& done) noexcept = 0;
  // A message was taken, and its memory is about to be written again.
  virtual void Settle() noexcept {}
  // No message of this rank is read after this, whether it has arrived or not.
  virtual void Recall(int from) noexcept = 0;

  // The block and the event of a message of which the other process has only said where it lies.
  virtual Status Find(const SharedPlace&, InProcessGroup::Message*) {
    return Status::Fixed(Code::kInternal,
                         "a process sent a place in memory that it does not share");
  }
  // Receives the block of a message that the other process has announced under a number.
  virtual Status Fetch(int /*from*/, int /*to*/, int64_t /*number*/, const Bytes2D& /*room*/) {
    return Status::Fixed(Code::kInternal, "a process announced a block that it can't send");
  }
  // The event that the other process says a message was taken behind, if it says so.
  virtual std::shared_ptr<Event> EventOf(const FrameHeader&) const { return nullptr; }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINK_H_
