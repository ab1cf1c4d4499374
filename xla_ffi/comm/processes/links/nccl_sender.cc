// The sender thread: detects when a block is ready, announces it, and enqueues its send when the
// other side has accepted it. Only this thread sends over NCCL channels, in the order of the
// answers.
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "xla_ffi/comm/processes/links/nccl_channels.h"
#include "xla_ffi/comm/processes/links/nccl_link.h"

namespace jaxmg {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kBetweenChecks(1);
// If a rank has more enqueued sends than this, TrackSend forgets those that are complete.
constexpr size_t kMostMoving = 16;

// Returns how long the thread polls without giving up the processor.
Seconds Spin() {
  static const unsigned processors = std::thread::hardware_concurrency();
  return processors >= 8 ? microseconds(50) : microseconds(0);
}

}  // namespace

// The thread is never joined, like the hub's thread.
Status NcclChannels::StartSenderThread() {
  auto lock = monitor_.Lock();
  if (started_) return Status::Ok();
  const Status started = Guarded([&] {
    std::thread([this] { Run(); }).detach();
    return Status::Ok();
  });
  started_ = started.ok();
  return started;
}

void NcclChannels::Run() noexcept {
  prctl(PR_SET_TIMERSLACK, 1000);  // in ns; the default of 50000 would delay each block
  Lock lock = monitor_.Lock();
  Clock::time_point moved = Clock::now(), next_check = Clock::now() + kBetweenChecks;
  for (;;) {
    const Status turned = Guarded([&] {
      while (TakeAnswer(lock)) moved = Clock::now();
      if (AnnounceReady(lock)) moved = Clock::now();
      if (Clock::now() >= next_check) {
        CheckAll(lock);
        next_check = Clock::now() + kBetweenChecks;
      }
      return Status::Ok();
    });
    if (!lock.owns_lock()) lock.lock();
    busy_ = {nullptr, -1};
    const size_t known = waiting_.size();
    const auto more = [&] { return !answers_.empty() || waiting_.size() != known; };
    // Devices don't notify the host, so the thread polls for pending sends.
    const bool looks = !waiting_.empty() || !turned.ok();
    const bool lately = Clock::now() - moved < milliseconds(1);
    if (!looks) {
      monitor_.Wait(lock, {kBetweenChecks, lately ? Spin() : Seconds(0)}, more);
    } else if (lately) {
      const Seconds pause = std::max<Seconds>(Spin() / 10, microseconds(1));
      monitor_.Wait(lock, {pause, pause}, more);
    } else {
      monitor_.Wait(lock, {microseconds(20)}, more);
    }
  }
}

// Handles a failed send. The state of the other side is unknown, so breaks the connection.
void NcclChannels::Fail(const PendingSend& pending, const Status& status) noexcept {
  pending.link->on_sent(pending.from, pending.to, status, nullptr);
  pending.channel->peer->connection_->Break();
}

Status NcclChannels::TrackSend(const PendingSend& pending, std::shared_ptr<Event> done) {
  std::list<EnqueuedSend>& enqueued = pending.link->enqueued[pending.from];
  enqueued.push_back({pending.channel, std::move(done)});
  for (bool passed = true; passed && enqueued.size() > kMostMoving;) {
    JAXMG_RETURN_IF_ERROR(
        enqueued.front().channel->end->HasPassed(*enqueued.front().done, &passed));
    if (passed) enqueued.pop_front();
  }
  return Status::Ok();
}

bool NcclChannels::TakeAnswer(Lock& lock) {
  if (answers_.empty()) return false;
  const Answer answer = answers_.front();
  answers_.pop_front();
  NcclChannel& channel = *answer.channel;
  const auto found = channel.announced.find(answer.number);
  if (channel.peer->lost_) return true;
  if (!answer.taken) {
    if (found != channel.announced.end()) channel.announced.erase(found);
    monitor_.Notify();
    return true;
  }
  if (found == channel.announced.end()) {
    channel.peer->connection_->Break();
    return true;
  }
  const PendingSend pending = std::move(found->second);
  channel.announced.erase(found);
  busy_ = {pending.link, pending.from};
  lock.unlock();
  const size_t bytes = pending.block.height * pending.block.columns;
  std::shared_ptr<Event> done;
  Status sent = Guarded([&]() -> Status {
    if (bytes > 0) return channel.end->Send(pending.block.data, bytes, &done);
    done = std::make_shared<PassedEvent>();
    return Status::Ok();
  });
  if (sent.ok() && bytes > 0) sent = Guarded([&] { return TrackSend(pending, done); });
  if (sent.ok()) {
    pending.link->on_sent(pending.from, pending.to, sent, std::move(done));
  } else {
    Fail(pending, sent);
  }
  lock.lock();
  busy_ = {nullptr, -1};
  monitor_.Notify();
  return true;
}

// Announces the sends whose blocks are ready. Sends from one rank to another stay in order.
bool NcclChannels::AnnounceReady(Lock& lock) {
  bool any = false;
  std::set<std::tuple<const NcclLink*, int, int>> behind;
  for (auto pending = waiting_.begin(); pending != waiting_.end();) {
    if (pending->channel->peer->lost_) {
      pending = waiting_.erase(pending);
      continue;
    }
    const auto key = std::make_tuple(pending->link, pending->from, pending->to);
    if (pending->link->recalled[pending->from] || behind.count(key) > 0) {
      ++pending;
      continue;
    }
    busy_ = {pending->link, pending->from};
    lock.unlock();
    bool ready = false;
    const Status status =
        Guarded([&] { return pending->device->HasPassed(*pending->ready, &ready); });
    if (!status.ok()) Fail(*pending, status);
    lock.lock();
    busy_ = {nullptr, -1};
    if (recalls_ > 0) monitor_.Notify();
    if (!status.ok()) {
      pending = waiting_.erase(pending);
      continue;
    }
    if (!ready) {
      behind.insert(key);
      ++pending;
      continue;
    }
    NcclChannel& channel = *pending->channel;
    const int64_t number = ++channel.last;
    OutFrame frame = CallFrame(pending->link->id, FrameType::kReady, pending->from, pending->to);
    frame.header.value = static_cast<int64_t>(pending->block.height);
    frame.header.aux = static_cast<int32_t>(pending->block.columns);
    frame.body.assign(reinterpret_cast<const char*>(&number), sizeof(number));
    channel.announced.emplace(number, *pending);
    channel.peer->connection_->SendOrBreak(std::move(frame));
    pending = waiting_.erase(pending);
    any = true;
  }
  return any;
}

// Breaks the connections of failed channels: an NCCL operation that failed without notice would
// occupy both devices forever.
void NcclChannels::CheckAll(Lock& lock) {
  std::vector<NcclChannel*> channels;
  for (const auto& [process, peer] : peers_) {
    if (peer->lost_) continue;
    for (auto& [key, channel] : peer->channels_) {
      if (channel.end != nullptr && channel.mine == NcclChannel::State::kMade) {
        channels.push_back(&channel);
      }
    }
  }
  lock.unlock();
  for (NcclChannel* channel : channels) {
    if (!channel->end->Check().ok()) channel->peer->connection_->Break();
  }
  lock.lock();
}

}  // namespace jaxmg
