#include "xla_ffi/comm/processes/staged_link.h"

#include <algorithm>
#include <utility>

namespace jaxmg {

StagedLink::StagedLink(std::shared_ptr<Connection> connection, const CallId& id, int ranks)
    : SocketLink(std::move(connection), id), devices_(ranks, nullptr) {}

StagedLink::~StagedLink() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status StagedLink::Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) {
  if (devices_[rank] == nullptr) devices_[rank] = &device;  // the link's thread may be reading it
  return SocketLink::Record(device, stream, rank, event);
}

// What came goes when it was taken, so the copy of it has to be done.
Status StagedLink::RecordTaken(Device& device, Stream stream, int rank,
                               std::shared_ptr<Event>* event) {
  JAXMG_RETURN_IF_ERROR(SocketLink::Record(device, stream, rank, event));
  return device.AwaitOnHost(**event);
}

void StagedLink::Post(int from, int to, const InProcessGroup::Message& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  // The copy is the rank's thread's to give up, after all of it has gone.
  parcels_.push_back({from, to, {message.block, message.ready}});
  changed_.notify_all();
}

// What a block waits for are this process's devices alone, which come to it: all that their work
// takes from other processes has arrived before it was enqueued.
void StagedLink::Run() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return over_ || !parcels_.empty(); });
    if (parcels_.empty()) return;
    const Parcel parcel = std::move(parcels_.front());
    parcels_.pop_front();
    sending_ = parcel.from;
    lock.unlock();
    const Status sent = Guarded([&] {
      JAXMG_RETURN_IF_ERROR(devices_[parcel.from]->AwaitOnHost(*parcel.message.ready));
      SocketLink::Post(parcel.from, parcel.to, parcel.message);
      return Status::Ok();
    });
    if (!sent.ok()) Break();
    lock.lock();
    sending_ = -1;
    changed_.notify_all();
  }
}

void StagedLink::Recall(int from) noexcept {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto mine = [&](const Parcel& parcel) { return parcel.from == from; };
    parcels_.erase(std::remove_if(parcels_.begin(), parcels_.end(), mine), parcels_.end());
    changed_.wait(lock, [&] { return sending_ != from; });
  }
  SocketLink::Recall(from);
}

}  // namespace jaxmg
