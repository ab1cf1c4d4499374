// Blocks between ranks of different processes: selects the link of each pair and tracks messages on
// both sides.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "xla_ffi/comm/processes/links/memory_link.h"
#include "xla_ffi/comm/processes/links/nccl_link.h"
#include "xla_ffi/comm/processes/links/segments.h"
#include "xla_ffi/comm/processes/links/socket_link.h"
#include "xla_ffi/comm/processes/links/staged_link.h"
#include "xla_ffi/comm/processes/process_group.h"

namespace jaxmg {
namespace {

// Limit for a rank's memory for received blocks that were not copied to their final location.
// Several pieces of a large panel fit.
constexpr size_t kMostArrivals = size_t{1} << 30;

// Returns the shape of a frame's block, without memory. Returns an error if the size overflows.
Status BlockOf(const FrameHeader& header, Bytes2D* block, size_t* bytes) {
  const auto height = static_cast<size_t>(header.value);
  const auto columns = static_cast<size_t>(header.aux);
  if (header.value < 0 || header.aux < 0 || __builtin_mul_overflow(height, columns, bytes)) {
    return Status::Fixed(Code::kInternal, "a process sent a block of an impossible size");
  }
  *block = {nullptr, height, height, columns};
  return Status::Ok();
}

bool CanSendInPlace(LinkKind kind, const Bytes2D& block) {
  if (kind == LinkKind::kMemory) return Segments::Instance().Contains(block.data);
  // NCCL sends one contiguous range.
  if (kind == LinkKind::kNccl) return block.columns <= 1 || block.pitch == block.height;
  return kind != LinkKind::kStaged;
}

}  // namespace

// Uses shared memory if both processes can, which requires the same host. Leaves `*link` null for
// devices that share no memory: see NewNcclLinks.
Status ProcessGroup::NewLink(int process, const std::shared_ptr<Connection>& connection,
                             Clock::time_point deadline, std::unique_ptr<Link>* link) {
  Segments& segments = Segments::Instance();
  std::shared_ptr<MemoryPeer> peer;
  if (connection->transport() == "unix") {
    JAXMG_RETURN_IF_ERROR(segments.Connect(process, connection, deadline, &peer));
  }
  if (peer == nullptr && on_host_) {
    *link = std::make_unique<SocketLink>(connection, id_);
    return Status::Ok();
  }
  if (peer == nullptr) return Status::Ok();
  std::vector<int> here;
  for (int rank = 0; rank < size(); ++rank) {
    if (IsHere(rank)) here.push_back(rank);
  }
  return MemoryLink::New(connection, std::move(peer), id_, size(), here, link);
}

// Uses NCCL channels if both sides have the same kind, else copies in host memory. Both processes
// of a pair make the same choice, because it depends only on information that they have exchanged.
Status ProcessGroup::NewNcclLinks(const std::vector<int>& apart, const Connections& connections,
                                  Clock::time_point deadline, Links* links) {
  struct Pair {
    std::shared_ptr<NcclPeer> peer;
    std::vector<int> there;
    Status failure;
  };
  Hub& hub = Hub::Instance();
  NcclChannels& channels = NcclChannels::Instance();
  std::map<int, Pair> pairs;
  std::vector<int> here;
  for (int rank = 0; rank < size(); ++rank) {
    if (IsHere(rank)) here.push_back(static_cast<int>(rank_values()[rank]));
  }
  for (const int process : apart) {
    Pair& pair = pairs[process];
    std::string why_not;
    JAXMG_RETURN_IF_ERROR(AddContext(process, channels.Negotiate(process, connections.at(process),
                                                                 deadline, &pair.peer, &why_not)));
    if (pair.peer == nullptr) {
      pair.failure = Error(Code::kUnavailable, why_not);
      continue;
    }
    OutFrame frame = CallFrame(id_, FrameType::kDevices, -1);
    frame.body.assign(reinterpret_cast<const char*>(here.data()), here.size() * sizeof(int));
    JAXMG_RETURN_IF_ERROR(connections.at(process)->Send(std::move(frame)));
  }
  for (auto& [process, pair] : pairs) {
    if (pair.peer == nullptr) continue;
    JAXMG_RETURN_IF_ERROR(AwaitDevices(process, deadline, &pair.there));
    JAXMG_RETURN_IF_ERROR(channels.StartMakingAll(pair.peer, here, pair.there));
  }
  for (auto& [process, pair] : pairs) {
    if (pair.peer != nullptr) {
      JAXMG_RETURN_IF_ERROR(AddContext(
          process, channels.Await(process, *pair.peer, here, pair.there, deadline, &pair.failure)));
    }
    std::unique_ptr<Link>& link = (*links)[process];
    if (!pair.failure.ok()) {
      if (hub.transport() == Transport::kNccl) {
        return Error(pair.failure.code(), routine_,
                     ": JAXMG_TRANSPORT requests NCCL, but it can't reach ", hub.Describe(process),
                     ": ", pair.failure.text());
      }
      link = std::make_unique<StagedLink>(connections.at(process), id_, size());
      continue;
    }
    std::vector<int> ordinals(size(), -1);
    size_t next = 0;
    for (int rank = 0; rank < size(); ++rank) {
      if (IsHere(rank)) ordinals[rank] = static_cast<int>(rank_values()[rank]);
      if (IsRankOf(process, rank)) ordinals[rank] = pair.there[next++];
    }
    link = std::make_unique<NcclLink>(
        pair.peer, id_, std::move(ordinals),
        [this](int from, int to, const Status& status, std::shared_ptr<Event> done) {
          OnSent(from, to, status, std::move(done));
        });
  }
  return Status::Ok();
}

Status ProcessGroup::AwaitDevices(int process, Clock::time_point deadline,
                                  std::vector<int>* ordinals) {
  {
    auto lock = monitor_.Lock();
    const auto known = [&] { return !aborted_.ok() || devices_of_.count(process) > 0; };
    const bool came = monitor_.Wait(lock, {deadline - Clock::now()}, known);
    if (came && !aborted_.ok()) return aborted_;
    if (came) *ordinals = devices_of_[process];
  }
  const auto ranks = static_cast<size_t>(std::count(processes_.begin(), processes_.end(), process));
  if (ordinals->size() == ranks) return Status::Ok();
  return Error(Code::kDeadlineExceeded, routine_, ": ", Hub::Instance().Describe(process),
               " did not name the devices of its ranks in time");
}

Status ProcessGroup::Join(Clock::time_point deadline) {
  Hub& hub = Hub::Instance();
  Connections connections;
  Links links;
  std::vector<int> apart;
  for (const int process : others_) {
    auto connection = hub.ConnectionTo(process);
    if (connection == nullptr) {
      const Status lost = hub.LossOf(process);
      return Error(Code::kUnavailable, routine_, " has lost ", DescribeRanks(process), ": ",
                   lost.ok() ? "no connection" : lost.text());
    }
    JAXMG_RETURN_IF_ERROR(NewLink(process, connection, deadline, &links[process]));
    if (links[process] == nullptr) apart.push_back(process);
    connections[process] = std::move(connection);
  }
  JAXMG_RETURN_IF_ERROR(NewNcclLinks(apart, connections, deadline, &links));
  auto lock = monitor_.Lock();
  connections_ = std::move(connections);
  link_of_ = std::move(links);
  for (int rank = 0; rank < size(); ++rank) {
    if (!IsHere(rank)) links_[rank] = link_of_[processes_[rank]].get();
  }
  return Status::Ok();
}

Status ProcessGroup::Prepare(Device& device, Stream stream, int from, int to, Message* message) {
  if (IsHere(to)) return InProcessGroup::Prepare(device, stream, from, to, message);
  const LinkKind kind = links_[to]->kind();
  if (message->copy == nullptr && !CanSendInPlace(kind, message->block)) {
    const bool on_host = kind == LinkKind::kStaged;
    JAXMG_RETURN_IF_ERROR((on_host ? host_staging_ : staging_)[from].Stage(
        device, stream, on_host ? &Device::AllocateOnHost : &Device::Allocate, &message->block,
        &message->copy));
  }
  return links_[to]->Record(device, stream, from, &message->ready);
}

void ProcessGroup::Post(int from, int to, Message message) {
  if (IsHere(to)) return InProcessGroup::Post(from, to, std::move(message));
  links_[to]->Post(from, to, message);
  copies_[from * size() + to].push_back(std::move(message.copy));
}

Status ProcessGroup::AwaitTaken(int from, int to, const WaitPolicy& policy,
                                std::shared_ptr<Event>* done) {
  JAXMG_RETURN_IF_ERROR(InProcessGroup::AwaitTaken(from, to, policy, done));
  if (IsHere(to)) return Status::Ok();
  links_[to]->Settle();
  auto& copies = copies_[from * size() + to];
  const std::shared_ptr<Staging::Copy> copy = std::move(copies.front());
  copies.pop_front();
  if (copy != nullptr) copy->taken.push_back(*done);
  return Status::Ok();
}

// Finds the message that was taken last. Other messages may have arrived since, while its block was
// borrowed.
std::deque<ProcessGroup::ReceivedBlock>::iterator ProcessGroup::FindLastTaken(int from, int to) {
  std::deque<ReceivedBlock>& received = received_[from * size() + to];
  return received.end() - queues(from, to).messages.size() - 1;
}

Status ProcessGroup::TakeMessage(Device& device, int from, int to, const WaitPolicy& policy,
                                 Message* message) {
  JAXMG_RETURN_IF_ERROR(InProcessGroup::TakeMessage(device, from, to, policy, message));
  if (IsHere(from)) return Status::Ok();
  FrameType type;
  BlockLocation location;
  int64_t number;
  {
    auto lock = monitor_.Lock();
    const auto received = FindLastTaken(from, to);
    type = received->type;
    location = received->location;
    number = received->number;
  }
  if (type == FrameType::kLocation) return links_[from]->Resolve(location, message);
  if (type == FrameType::kReady) return ReceiveOverNccl(device, from, to, number, message);
  return Status::Ok();
}

Status ProcessGroup::ReceiveOverNccl(Device& device, int from, int to, int64_t number,
                                     Message* message) {
  Bytes2D& block = message->block;
  std::shared_ptr<Staging::Copy> room;
  if (block.height * block.columns > 0) {
    JAXMG_RETURN_IF_ERROR(
        arrivals_[to].Reserve(device, block.height * block.columns, kMostArrivals, &room));
    block.data = room->buffer->data();
  }
  JAXMG_RETURN_IF_ERROR(links_[from]->Fetch(from, to, number, block));
  auto lock = monitor_.Lock();
  FindLastTaken(from, to)->room = std::move(room);
  return Status::Ok();
}

void ProcessGroup::OnSent(int from, int to, const Status& status,
                          std::shared_ptr<Event> done) noexcept {
  auto lock = monitor_.Lock();
  const Status noted = Guarded([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(status);
    queues(from, to).taken.push_back(std::move(done));
    return Status::Ok();
  });
  if (!noted.ok()) AbortLocked(noted);
  monitor_.Notify();
}

Status ProcessGroup::RecordTaken(Device& device, Stream stream, int from, int to,
                                 std::shared_ptr<Event>* done) {
  if (IsHere(from)) return InProcessGroup::RecordTaken(device, stream, from, to, done);
  return links_[from]->RecordTaken(device, stream, to, done);
}

void ProcessGroup::PostTaken(int from, int to, std::shared_ptr<Event> done) {
  if (IsHere(from)) return InProcessGroup::PostTaken(from, to, std::move(done));
  ReceivedBlock taken;  // destroyed after the lock is released
  {
    auto lock = monitor_.Lock();
    const auto last = FindLastTaken(from, to);
    taken = std::move(*last);
    received_[from * size() + to].erase(last);
  }
  if (taken.room != nullptr) taken.room->taken.push_back(done);
  links_[from]->PostTaken(from, to, done);
}

// A block may arrive before this process has created its link; an acknowledgement can't.
Status ProcessGroup::AddReceived(const FrameHeader& header, Payload payload) {
  Queues& here = queues(header.from, header.to);
  if (header.type == FrameType::kTaken) {
    const Link* link = links_[header.to];
    const auto event = header.aux != 1   ? arrived_
                       : link == nullptr ? nullptr
                                         : link->EventOf(header);
    if (event == nullptr) {
      return Status::Fixed(Code::kInternal, "a process took a block and named an unknown event");
    }
    here.taken.push_back(event);
    monitor_.Notify();
    return Status::Ok();
  }
  if (payload.size > 0 && payload.data == nullptr) throw std::bad_alloc();
  ReceivedBlock received = {};
  received.type = header.type;
  Message message = {{}, arrived_};
  size_t bytes = 0;
  JAXMG_RETURN_IF_ERROR(BlockOf(header, &message.block, &bytes));
  if (received.type == FrameType::kData) {
    if (payload.size != bytes) {
      return Status::Fixed(Code::kInternal,
                           "a process sent a block of another size than announced");
    }
    message.block.data = payload.data.get();
    received.payload = std::move(payload);
  } else {
    const bool placed = received.type == FrameType::kLocation;
    const size_t size = placed ? sizeof(received.location) : sizeof(received.number);
    if (payload.size != size) {
      return Status::Fixed(Code::kInternal, "a process sent a block without a valid location");
    }
    std::memcpy(placed ? static_cast<void*>(&received.location) : &received.number,
                payload.data.get(), size);
  }
  received_[header.from * size() + header.to].push_back(std::move(received));
  here.messages.push_back(std::move(message));
  monitor_.Notify();
  return Status::Ok();
}

}  // namespace jaxmg
