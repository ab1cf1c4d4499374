#include "xla_ffi/comm/processes/memory_link.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace jaxmg {

MemoryLink::MemoryLink(std::shared_ptr<Connection> connection, std::shared_ptr<Neighbour> neighbour,
                       const CallId& id, int ranks)
    : connection_(std::move(connection)),
      neighbour_(std::move(neighbour)),
      id_(id),
      word_of_(ranks, 0) {}

Status MemoryLink::New(std::shared_ptr<Connection> connection, std::shared_ptr<Neighbour> neighbour,
                       const CallId& id, int ranks, const std::vector<int>& here,
                       std::unique_ptr<Link>* link) {
  std::unique_ptr<MemoryLink> made(
      new MemoryLink(std::move(connection), std::move(neighbour), id, ranks));
  const auto words = static_cast<uint32_t>(here.size() * kNumStreams);
  JAXMG_RETURN_IF_ERROR(made->neighbour_->TakeWords(words, &made->first_));
  made->words_ = words;
  for (size_t i = 0; i < here.size(); ++i) {
    made->word_of_[here[i]] = made->first_ + static_cast<uint32_t>(i * kNumStreams);
  }
  *link = std::move(made);
  return Status::Ok();
}

Status MemoryLink::Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) {
  const uint32_t word = word_of_[rank] + static_cast<uint32_t>(stream);
  auto made = std::make_shared<SharedEvent>(neighbour_->Next(word));
  JAXMG_RETURN_IF_ERROR(device.RecordShared(stream, *made));
  *event = std::move(made);
  return Status::Ok();
}

void MemoryLink::Post(int from, int to, const InProcessGroup::Message& message) {
  SharedPlace place = {};
  const Status described = neighbour_->Describe(message.block, &place);
  if (!described.ok()) throw std::runtime_error(described.message());
  place.ready = neighbour_->CountOf(*message.ready->shared());
  OutFrame frame = CallFrame(id_, FrameType::kPlaced, from, to);
  frame.header.value = static_cast<int64_t>(message.block.height);
  frame.header.aux = static_cast<int32_t>(message.block.columns);
  frame.body.assign(reinterpret_cast<const char*>(&place), sizeof(place));
  if (!connection_->Send(std::move(frame)).ok()) throw std::bad_alloc();
}

void MemoryLink::PostTaken(int from, int to, const std::shared_ptr<Event>& done) noexcept {
  const SharedCount count = neighbour_->CountOf(*done->shared());
  OutFrame frame = CallFrame(id_, FrameType::kTaken, from, to);
  frame.header.aux = 1;
  std::memcpy(&frame.header.value, &count, sizeof(count));
  connection_->SendOrBreak(std::move(frame));
}

Status MemoryLink::Find(const SharedPlace& place, InProcessGroup::Message* message) {
  JAXMG_RETURN_IF_ERROR(neighbour_->Find(place, &message->block));
  message->ready = neighbour_->Theirs(place.ready);
  if (message->ready != nullptr) return Status::Ok();
  return Status::Fixed(Code::kInternal, "a block is ready after a word that there is not");
}

std::shared_ptr<Event> MemoryLink::EventOf(const FrameHeader& header) const {
  SharedCount count;
  std::memcpy(&count, &header.value, sizeof(count));
  return neighbour_->Theirs(count);
}

}  // namespace jaxmg
