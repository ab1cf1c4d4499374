// The courier: the thread that sees when a block is ready, announces it, and sends it when the
// other side has taken it. It alone sends over wires, in the order of the answers.
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "xla_ffi/comm/processes/wire_link.h"
#include "xla_ffi/comm/processes/wires.h"

namespace jaxmg {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kBetweenChecks(1);
// Of so many that a rank has sent the courier asks which are done.
constexpr size_t kMostMoving = 16;

// How long the courier looks for more without giving its processor away.
Seconds Spin() {
  static const unsigned processors = std::thread::hardware_concurrency();
  return processors >= 8 ? microseconds(50) : microseconds(0);
}

}  // namespace

// Never joined, as the hub's thread.
Status Wires::StartCourier() {
  auto lock = monitor_.Lock();
  if (started_) return Status::Ok();
  const Status started = Guarded([&] {
    std::thread([this] { Run(); }).detach();
    return Status::Ok();
  });
  started_ = started.ok();
  return started;
}

void Wires::Run() noexcept {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; of the usual 50000 each block would have its share
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
    // Devices come to what is waiting without a word.
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

// Of a block that can't go nobody knows what the other side waits for: the pair is lost then.
void Wires::Fail(const Parcel& parcel, const Status& status) noexcept {
  parcel.link->gone(parcel.from, parcel.to, status, nullptr);
  parcel.channel->partner->connection_->Break();
}

Status Wires::Note(const Parcel& parcel, std::shared_ptr<Event> done) {
  std::list<Moving>& moving = parcel.link->moving[parcel.from];
  moving.push_back({parcel.channel, std::move(done)});
  for (bool passed = true; passed && moving.size() > kMostMoving;) {
    JAXMG_RETURN_IF_ERROR(moving.front().channel->wire->HasPassed(*moving.front().done, &passed));
    if (passed) moving.pop_front();
  }
  return Status::Ok();
}

bool Wires::TakeAnswer(Lock& lock) {
  if (answers_.empty()) return false;
  const Answer answer = answers_.front();
  answers_.pop_front();
  WireChannel& channel = *answer.channel;
  const auto found = channel.announced.find(answer.number);
  if (channel.partner->lost_) return true;
  if (!answer.taken) {
    if (found != channel.announced.end()) channel.announced.erase(found);
    monitor_.Changed();
    return true;
  }
  if (found == channel.announced.end()) {
    channel.partner->connection_->Break();
    return true;
  }
  const Parcel parcel = std::move(found->second);
  channel.announced.erase(found);
  busy_ = {parcel.link, parcel.from};
  lock.unlock();
  const size_t bytes = parcel.block.height * parcel.block.columns;
  std::shared_ptr<Event> done;
  Status sent = Guarded([&]() -> Status {
    if (bytes > 0) return channel.wire->Send(parcel.block.data, bytes, &done);
    done = std::make_shared<PassedEvent>();
    return Status::Ok();
  });
  if (sent.ok() && bytes > 0) sent = Guarded([&] { return Note(parcel, done); });
  if (sent.ok()) {
    parcel.link->gone(parcel.from, parcel.to, sent, std::move(done));
  } else {
    Fail(parcel, sent);
  }
  lock.lock();
  busy_ = {nullptr, -1};
  monitor_.Changed();
  return true;
}

// Of those from one rank to another the first is the next.
bool Wires::AnnounceReady(Lock& lock) {
  bool any = false;
  std::set<std::tuple<const WireLink*, int, int>> behind;
  for (auto parcel = waiting_.begin(); parcel != waiting_.end();) {
    if (parcel->channel->partner->lost_) {
      parcel = waiting_.erase(parcel);
      continue;
    }
    const auto key = std::make_tuple(parcel->link, parcel->from, parcel->to);
    if (parcel->link->recalled[parcel->from] || behind.count(key) > 0) {
      ++parcel;
      continue;
    }
    busy_ = {parcel->link, parcel->from};
    lock.unlock();
    bool ready = false;
    const Status looked =
        Guarded([&] { return parcel->device->HasPassed(*parcel->ready, &ready); });
    if (!looked.ok()) Fail(*parcel, looked);
    lock.lock();
    busy_ = {nullptr, -1};
    if (recalls_ > 0) monitor_.Changed();
    if (!looked.ok()) {
      parcel = waiting_.erase(parcel);
      continue;
    }
    if (!ready) {
      behind.insert(key);
      ++parcel;
      continue;
    }
    WireChannel& channel = *parcel->channel;
    const int64_t number = ++channel.last;
    OutFrame frame = CallFrame(parcel->link->id, FrameType::kReady, parcel->from, parcel->to);
    frame.header.value = static_cast<int64_t>(parcel->block.height);
    frame.header.aux = static_cast<int32_t>(parcel->block.columns);
    frame.body.assign(reinterpret_cast<const char*>(&number), sizeof(number));
    channel.announced.emplace(number, *parcel);
    channel.partner->connection_->SendOrBreak(std::move(frame));
    parcel = waiting_.erase(parcel);
    any = true;
  }
  return any;
}

// What has failed without a word would occupy both devices for ever.
void Wires::CheckAll(Lock& lock) {
  std::vector<WireChannel*> channels;
  for (const auto& [process, partner] : partners_) {
    if (partner->lost_) continue;
    for (auto& [key, channel] : partner->channels_) {
      if (channel.wire != nullptr && channel.mine == WireChannel::End::kMade) {
        channels.push_back(&channel);
      }
    }
  }
  lock.unlock();
  for (WireChannel* channel : channels) {
    if (!channel->wire->Check().ok()) channel->partner->connection_->Break();
  }
  lock.lock();
}

}  // namespace jaxmg
