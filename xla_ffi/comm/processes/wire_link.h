// WireLink: blocks between devices that share no memory, over wires (wires.h). The receiver has a
// block in memory of its own until it is taken.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_WIRE_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_WIRE_LINK_H_

#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/link.h"
#include "xla_ffi/comm/processes/wires.h"

namespace jaxmg {

class WireLink : public Link {
 public:
  // Told on the courier's thread: a message has been taken behind that event, or never will be.
  using Gone =
      std::function<void(int from, int to, const Status& status, std::shared_ptr<Event> done)>;

  // `ordinals`: by rank, the device, of this process's and the other's.
  WireLink(std::shared_ptr<WirePartner> partner, const CallId& id, std::vector<int> ordinals,
           Gone gone)
      : id(id),
        gone(std::move(gone)),
        moving(ordinals.size()),
        recalled(ordinals.size(), false),
        partner_(std::move(partner)),
        ordinals_(std::move(ordinals)),
        devices_(ordinals_.size(), nullptr) {}

  Way way() const override { return Way::kWire; }

  Status Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) override {
    devices_[rank] = &device;
    return Link::Record(device, stream, rank, event);
  }

  void Post(int from, int to, const InProcessGroup::Message& message) override {
    Wires& wires = Wires::The();
    // The copy is the rank's thread's to give up.
    wires.Send({this, from, to, devices_[from], message.block, message.ready,
                wires.ChannelOf(*partner_, true, ordinals_[from], ordinals_[to])});
  }

  // The sender knows when it has gone.
  void PostTaken(int, int, const std::shared_ptr<Event>&) noexcept override {}

  Status Fetch(int from, int to, int64_t number, const Bytes2D& room) override {
    Wires& wires = Wires::The();
    return wires.Receive(*wires.ChannelOf(*partner_, false, ordinals_[to], ordinals_[from]), number,
                         room.data, room.height * room.columns);
  }

  void Recall(int from) noexcept override { Wires::The().Recall(this, from); }

  const CallId id;
  const Gone gone;
  // By rank. The courier's while it has a parcel of the rank's in hand, then Recall's.
  std::vector<std::list<Moving>> moving;
  // By rank, with the wires' lock: the courier is to leave its parcels alone.
  std::vector<char> recalled;

 private:
  const std::shared_ptr<WirePartner> partner_;
  const std::vector<int> ordinals_;
  std::vector<Device*> devices_;  // by rank; each rank's thread has its own
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_WIRE_LINK_H_
