#include "xla_ffi/comm/processes/links/staged_link.h"

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

// The received block is freed when it is taken, so the copy from it must be complete.
Status StagedLink::RecordTaken(Device& device, Stream stream, int rank,
                               std::shared_ptr<Event>* event) {
  JAXMG_RETURN_IF_ERROR(SocketLink::Record(device, stream, rank, event));
  return device.AwaitOnHost(**event);
}

void StagedLink::Post(int from, int to, const InProcessGroup::Message& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  // The rank's thread releases the staged copy after the block was sent.
  pending_.push_back({from, to, {message.block, message.ready}});
  changed_.notify_all();
}

// Each send waits only for this process's devices, whose enqueued work always completes: everything
// that it needs from other processes arrived before it was enqueued.
void StagedLink::Run() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return over_ || !pending_.empty(); });
    if (pending_.empty()) return;
    const PendingSend pending = std::move(pending_.front());
    pending_.pop_front();
    sending_ = pending.from;
    lock.unlock();
    const Status sent = Guarded([&] {
      JAXMG_RETURN_IF_ERROR(devices_[pending.from]->AwaitOnHost(*pending.message.ready));
      SocketLink::Post(pending.from, pending.to, pending.message);
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
    const auto mine = [&](const PendingSend& pending) { return pending.from == from; };
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(), mine), pending_.end());
    changed_.wait(lock, [&] { return sending_ != from; });
  }
  SocketLink::Recall(from);
}

}  // namespace jaxmg
