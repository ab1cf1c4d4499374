#include "xla_ffi/engine/core/flow.h"

#include <algorithm>

namespace jaxmg {

const Mark& Flow::Record(Stream stream) noexcept {
  Mark& last = last_[Index(stream)];
  if (last.time == now(stream)) return last;
  Do([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(device_.NewEvent(&last.event));
    return device_.Record(stream, last.event.get());
  });
  last.stream = stream;
  last.time = now(stream);
  last.before = known_[Index(stream)];
  return last;
}

void Flow::Await(Stream later, const Mark& mark) noexcept {
  if (!mark.event) return Await(later, mark.stream, mark.time);
  if (known_[Index(later)][Index(mark.stream)] < mark.time) AwaitEvent(later, mark);
}

void Flow::Await(Stream later, Stream earlier, int32_t time) noexcept {
  if (known_[Index(later)][Index(earlier)] >= time) return;
  // Reuses the last event if it is late enough, because it covers less work than a new one.
  const Mark& last = last_[Index(earlier)];
  AwaitEvent(later, last.time >= time ? last : Record(earlier));
}

void Flow::AwaitEvent(Stream later, const Mark& mark) noexcept {
  Do([&] { return device_.Wait(later, *mark.event); });
  ++now(later);
  Progress& known = known_[Index(later)];
  for (int s = 0; s < kNumStreams; ++s) known[s] = std::max(known[s], mark.before[s]);
}

void Flow::Join() {
  for (Stream stream : kStreams) {
    if (now(stream) > 1) Await(Stream::kMain, stream, now(stream));
  }
}

Status Flow::Finish() {
  Join();
  Do([&] { return WaitAllSent(comm_, Stream::kMain); });
  return status_;
}

void Flow::NoteSent(Room& room) {
  room.sent_.resize(comm_.size());
  for (int peer = 0; peer < comm_.size(); ++peer) room.sent_[peer] = comm_.Sent(peer);
}

void Flow::AwaitSent(Stream stream, int peer, int64_t count) noexcept {
  if (peer == comm_.rank()) return;
  Do([&] { return comm_.WaitSent(stream, peer, count); });
  ++now(stream);
}

StepBase::~StepBase() {
  if (name_ != nullptr && !begun_) {  // an empty range marks the position in the timeline
    flow_.Do([&] {
      BeginRange();
      return Status::Ok();
    });
  }
  if (begun_) flow_.device_.EndRange(stream_);
  GivesNow();
  const int32_t now = flow_.now(stream_);
  for (int i = 0; i < count_; ++i) {
    const Accessed& accessed = accesses_[i];
    for (Data* data = accessed.data; data < accessed.data + accessed.count; ++data) {
      if (accessed.kind == Kind::kReads) {
        data->read_[Flow::Index(stream_)] = now;
      } else if (accessed.kind == Kind::kWrites) {
        data->written_ = {stream_, now, nullptr, {}};
        data->read_ = {};
      }
    }
  }
  if (frees_ != nullptr) frees_->free_ = flow_.Record(stream_);
}

void StepBase::GivesNow() {
  for (int i = 0; i < count_; ++i) {
    Accessed& accessed = accesses_[i];
    if (accessed.kind != Kind::kGives) continue;
    for (Data* data = accessed.data; data < accessed.data + accessed.count; ++data) {
      data->written_ = flow_.Record(stream_);
      data->read_ = {};
    }
    accessed.count = 0;
  }
}

StepBase& StepBase::Takes(Room& room) {
  flow_.Await(stream_, room.free_);
  return AwaitsSent(room);
}

void StepBase::Access(Kind kind, Data* data, int64_t count) noexcept {
  // Waits for the last one first, because its wait often covers the others.
  for (Data* d = data + count; d-- > data;) {
    flow_.Await(stream_, d->written_);
    if (kind == Kind::kReads) continue;
    for (Stream reader : kStreams) flow_.Await(stream_, reader, d->read_[Flow::Index(reader)]);
  }
  if (count_ == kMost) {
    flow_.Do([] { return Status::Fixed(Code::kInternal, "a step has too many accesses"); });
    return;
  }
  accesses_[count_++] = {kind, data, count};
}

}  // namespace jaxmg
