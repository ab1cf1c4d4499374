#include "xla_ffi/comm/processes/links/memory_link.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace jaxmg {

MemoryLink::MemoryLink(std::shared_ptr<Connection> connection, std::shared_ptr<MemoryPeer> peer,
                       const CallId& id, int ranks)
    : connection_(std::move(connection)), peer_(std::move(peer)), id_(id), word_of_(ranks, 0) {}

Status MemoryLink::New(std::shared_ptr<Connection> connection, std::shared_ptr<MemoryPeer> peer,
                       const CallId& id, int ranks, const std::vector<int>& here,
                       std::unique_ptr<Link>* link) {
  std::unique_ptr<MemoryLink> made(
      new MemoryLink(std::move(connection), std::move(peer), id, ranks));
  const auto words = static_cast<uint32_t>(here.size() * kNumStreams);
  JAXMG_RETURN_IF_ERROR(made->peer_->AcquireWords(words, &made->first_));
  made->words_ = words;
  for (size_t i = 0; i < here.size(); ++i) {
    made->word_of_[here[i]] = made->first_ + static_cast<uint32_t>(i * kNumStreams);
  }
  *link = std::move(made);
  return Status::Ok();
}

Status MemoryLink::Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) {
  const uint32_t word = word_of_[rank] + static_cast<uint32_t>(stream);
  auto made = std::make_shared<SharedEvent>(peer_->NextEvent(word));
  JAXMG_RETURN_IF_ERROR(device.RecordShared(stream, *made));
  *event = std::move(made);
  return Status::Ok();
}

void MemoryLink::Post(int from, int to, const InProcessGroup::Message& message) {
  BlockLocation location = {};
  const Status described = peer_->Locate(message.block, &location);
  if (!described.ok()) throw std::runtime_error(described.message());
  location.ready = peer_->CountOf(*message.ready->shared());
  OutFrame frame = CallFrame(id_, FrameType::kLocation, from, to);
  frame.header.value = static_cast<int64_t>(message.block.height);
  frame.header.aux = static_cast<int32_t>(message.block.columns);
  frame.body.assign(reinterpret_cast<const char*>(&location), sizeof(location));
  if (!connection_->Send(std::move(frame)).ok()) throw std::bad_alloc();
}

void MemoryLink::PostTaken(int from, int to, const std::shared_ptr<Event>& done) noexcept {
  const SharedCount count = peer_->CountOf(*done->shared());
  OutFrame frame = CallFrame(id_, FrameType::kTaken, from, to);
  frame.header.aux = 1;
  std::memcpy(&frame.header.value, &count, sizeof(count));
  connection_->SendOrBreak(std::move(frame));
}

Status MemoryLink::Resolve(const BlockLocation& location, InProcessGroup::Message* message) {
  JAXMG_RETURN_IF_ERROR(peer_->Map(location, &message->block));
  message->ready = peer_->PeerEvent(location.ready);
  if (message->ready != nullptr) return Status::Ok();
  return Status::Fixed(Code::kInternal, "a block refers to a signal word that does not exist");
}

std::shared_ptr<Event> MemoryLink::EventOf(const FrameHeader& header) const {
  SharedCount count;
  std::memcpy(&count, &header.value, sizeof(count));
  return peer_->PeerEvent(count);
}

}  // namespace jaxmg
