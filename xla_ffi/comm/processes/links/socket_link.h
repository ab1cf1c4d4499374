// SocketLink: moves blocks between hosts' memories over the hub's connection. A block is sent
// directly from the sender's memory; the receiver keeps it in the group's memory until it is taken.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_SOCKET_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_SOCKET_LINK_H_

#include <memory>
#include <utility>

#include "xla_ffi/comm/processes/connections/connection.h"
#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/link.h"

namespace jaxmg {

// For devices whose memory is host memory and whose streams are synchronous, so that every recorded
// event has passed.
class SocketLink : public Link {
 public:
  SocketLink(std::shared_ptr<Connection> connection, const CallId& id)
      : connection_(std::move(connection)), id_(id) {}

  LinkKind kind() const override { return LinkKind::kSocket; }

  void Post(int from, int to, const InProcessGroup::Message& message) override {
    OutFrame frame = CallFrame(id_, FrameType::kData, from, to);
    frame.header.value = static_cast<int64_t>(message.block.height);
    frame.header.aux = static_cast<int32_t>(message.block.columns);
    frame.block = message.block;
    frame.owner = this;
    if (!connection_->Send(std::move(frame)).ok()) throw std::bad_alloc();
  }

  void PostTaken(int from, int to, const std::shared_ptr<Event>&) noexcept override {
    connection_->SendOrBreak(CallFrame(id_, FrameType::kTaken, from, to));
  }

  void Recall(int from) noexcept override { connection_->Recall(this, from); }
  void Settle() noexcept override { connection_->Settle(); }

  // Breaks the connection if a block can't be sent: the other process would wait for it forever.
  void Break() noexcept { connection_->Break(); }

 private:
  const std::shared_ptr<Connection> connection_;
  const CallId id_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_SOCKET_LINK_H_
