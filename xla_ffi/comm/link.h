// Link: how blocks move between this process's ranks and those of one other process, in one call.
// That is all that a transport is: who meets, who agrees and who is lost is the same for all.
#ifndef JAXMG_XLA_FFI_COMM_LINK_H_
#define JAXMG_XLA_FFI_COMM_LINK_H_

#include <memory>

#include "xla_ffi/comm/frame.h"
#include "xla_ffi/comm/in_process.h"

namespace jaxmg {

class Link {
 public:
  virtual ~Link() = default;
  // Begins to move a message of a rank of this process to one of the other; doesn't wait. Throws
  // where there is no memory for that.
  virtual void Post(int from, int to, const InProcessGroup::Message& message) = 0;
  // Rank `to` of this process has done with a message of the other's `from`.
  virtual void PostTaken(int from, int to, const std::shared_ptr<Event>& done) noexcept = 0;
  // No message of this rank is read after this, whether it has arrived or not.
  virtual void Recall(int from) noexcept = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_LINK_H_
