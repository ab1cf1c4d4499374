// NcclLink: moves blocks between devices that share no memory, over NCCL channels
// (nccl_channels.h). The receiver keeps a block in its own staging memory until it is taken.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_NCCL_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_NCCL_LINK_H_

#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/link.h"
#include "xla_ffi/comm/processes/links/nccl_channels.h"

namespace jaxmg {

class NcclLink : public Link {
 public:
  // Called on the sender thread. If `status` is Ok, the message has been taken once the event
  // `done` has passed; otherwise it is never taken.
  using OnSent =
      std::function<void(int from, int to, const Status& status, std::shared_ptr<Event> done)>;

  // `ordinals`: by rank, the device ordinals of both processes.
  NcclLink(std::shared_ptr<NcclPeer> peer, const CallId& id, std::vector<int> ordinals,
           OnSent on_sent)
      : id(id),
        on_sent(std::move(on_sent)),
        enqueued(ordinals.size()),
        recalled(ordinals.size(), false),
        peer_(std::move(peer)),
        ordinals_(std::move(ordinals)),
        devices_(ordinals_.size(), nullptr) {}

  LinkKind kind() const override { return LinkKind::kNccl; }

  Status Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) override {
    devices_[rank] = &device;
    return Link::Record(device, stream, rank, event);
  }

  void Post(int from, int to, const InProcessGroup::Message& message) override {
    NcclChannels& channels = NcclChannels::Instance();
    // The rank's thread, not the sender thread, releases the staged copy.
    channels.Send({this, from, to, devices_[from], message.block, message.ready,
                   channels.ChannelOf(*peer_, true, ordinals_[from], ordinals_[to])});
  }

  // Sends nothing: the sender observes when its NCCL send completes.
  void PostTaken(int, int, const std::shared_ptr<Event>&) noexcept override {}

  Status Fetch(int from, int to, int64_t number, const Bytes2D& room) override {
    NcclChannels& channels = NcclChannels::Instance();
    return channels.Receive(*channels.ChannelOf(*peer_, false, ordinals_[to], ordinals_[from]),
                            number, room.data, room.height * room.columns);
  }

  void Recall(int from) noexcept override { NcclChannels::Instance().Recall(this, from); }

  const CallId id;
  const OnSent on_sent;
  // By rank. Owned by the sender thread while it handles a send of the rank, then by Recall.
  std::vector<std::list<EnqueuedSend>> enqueued;
  // By rank, guarded by the lock of the NcclChannels: whether the sender thread must ignore its
  // sends.
  std::vector<char> recalled;

 private:
  const std::shared_ptr<NcclPeer> peer_;
  const std::vector<int> ordinals_;
  std::vector<Device*> devices_;  // by rank; each rank's thread sets its own
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_NCCL_LINK_H_
