// Blocks between ranks of different processes: by which link each pair passes them, and what
// becomes of them on both sides.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "xla_ffi/comm/processes/memory_link.h"
#include "xla_ffi/comm/processes/process_group.h"
#include "xla_ffi/comm/processes/segments.h"
#include "xla_ffi/comm/processes/socket_link.h"
#include "xla_ffi/comm/processes/staged_link.h"
#include "xla_ffi/comm/processes/wire_link.h"

namespace jaxmg {
namespace {

// Of what a rank has room for that has come and is not where it belongs yet: several pieces of a
// large panel.
constexpr size_t kMostArrivals = size_t{1} << 30;

// The block of a frame, of memory that the frame says nothing of. An error where no block can be as
// large.
Status BlockOf(const FrameHeader& header, Bytes2D* block, size_t* bytes) {
  const auto height = static_cast<size_t>(header.value);
  const auto columns = static_cast<size_t>(header.aux);
  if (header.value < 0 || header.aux < 0 || __builtin_mul_overflow(height, columns, bytes)) {
    return Status::Fixed(Code::kInternal, "a process sent a block that can't be as large");
  }
  *block = {nullptr, height, height, columns};
  return Status::Ok();
}

bool PassesAsItLies(Way way, const Bytes2D& block) {
  if (way == Way::kShared) return Segments::The().Has(block.data);
  // As one run of bytes.
  if (way == Way::kWire) return block.columns <= 1 || block.pitch == block.height;
  return way != Way::kStaged;
}

}  // namespace

// Through memory where both can, which they can on one host alone. None for devices that share
// none: NewWires.
Status ProcessGroup::NewLink(int process, const std::shared_ptr<Connection>& connection,
                             Clock::time_point deadline, std::unique_ptr<Link>* link) {
  Segments& segments = Segments::The();
  std::shared_ptr<Neighbour> neighbour;
  if (connection->transport() == "unix") {
    JAXMG_RETURN_IF_ERROR(segments.Connect(process, connection, deadline, &neighbour));
  }
  if (neighbour == nullptr && on_host_) {
    *link = std::make_unique<SocketLink>(connection, id_);
    return Status::Ok();
  }
  if (neighbour == nullptr) return Status::Ok();
  std::vector<int> here;
  for (int rank = 0; rank < size(); ++rank) {
    if (IsHere(rank)) here.push_back(rank);
  }
  return MemoryLink::New(connection, std::move(neighbour), id_, size(), here, link);
}

// By wires where both have the same, else by copies in the hosts' memory. All processes decide
// alike: from what both sides of a pair have told each other.
Status ProcessGroup::NewWires(const std::vector<int>& apart, const Connections& connections,
                              Clock::time_point deadline, Links* links) {
  struct Pair {
    std::shared_ptr<WirePartner> partner;
    std::vector<int> there;
    Status failure;
  };
  Hub& hub = Hub::The();
  Wires& wires = Wires::The();
  std::map<int, Pair> pairs;
  std::vector<int> here;
  for (int rank = 0; rank < size(); ++rank) {
    if (IsHere(rank)) here.push_back(static_cast<int>(brought()[rank]));
  }
  for (const int process : apart) {
    Pair& pair = pairs[process];
    std::string why_not;
    JAXMG_RETURN_IF_ERROR(About(
        process, wires.Meet(process, connections.at(process), deadline, &pair.partner, &why_not)));
    if (pair.partner == nullptr) {
      pair.failure = Error(Code::kUnavailable, why_not);
      continue;
    }
    OutFrame frame = CallFrame(id_, FrameType::kDevices, -1);
    frame.body.assign(reinterpret_cast<const char*>(here.data()), here.size() * sizeof(int));
    JAXMG_RETURN_IF_ERROR(connections.at(process)->Send(std::move(frame)));
  }
  for (auto& [process, pair] : pairs) {
    if (pair.partner == nullptr) continue;
    JAXMG_RETURN_IF_ERROR(AwaitDevices(process, deadline, &pair.there));
    JAXMG_RETURN_IF_ERROR(wires.Begin(pair.partner, here, pair.there));
  }
  for (auto& [process, pair] : pairs) {
    if (pair.partner != nullptr) {
      JAXMG_RETURN_IF_ERROR(About(
          process, wires.Await(process, *pair.partner, here, pair.there, deadline, &pair.failure)));
    }
    std::unique_ptr<Link>& link = (*links)[process];
    if (!pair.failure.ok()) {
      if (hub.transport() == Transport::kWires) {
        return Error(pair.failure.code(), routine_, ": JAXMG_TRANSPORT asks for NCCL, and ",
                     hub.Describe(process), " can't be reached by it: ", pair.failure.text());
      }
      link = std::make_unique<StagedLink>(connections.at(process), id_, size());
      continue;
    }
    std::vector<int> ordinals(size(), -1);
    size_t next = 0;
    for (int rank = 0; rank < size(); ++rank) {
      if (IsHere(rank)) ordinals[rank] = static_cast<int>(brought()[rank]);
      if (IsRankOf(process, rank)) ordinals[rank] = pair.there[next++];
    }
    link = std::make_unique<WireLink>(
        pair.partner, id_, std::move(ordinals),
        [this](int from, int to, const Status& status, std::shared_ptr<Event> done) {
          Sent(from, to, status, std::move(done));
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
  return Error(Code::kDeadlineExceeded, routine_, ": ", Hub::The().Describe(process),
               " did not name the devices of its ranks in time");
}

Status ProcessGroup::Join(Clock::time_point deadline) {
  Hub& hub = Hub::The();
  Connections connections;
  Links links;
  std::vector<int> apart;
  for (const int process : others_) {
    auto connection = hub.ConnectionTo(process);
    if (connection == nullptr) {
      const Status lost = hub.LostBecause(process);
      return Error(Code::kUnavailable, routine_, " has lost ", Ranks(process), ": ",
                   lost.ok() ? "no connection" : lost.text());
    }
    JAXMG_RETURN_IF_ERROR(NewLink(process, connection, deadline, &links[process]));
    if (links[process] == nullptr) apart.push_back(process);
    connections[process] = std::move(connection);
  }
  JAXMG_RETURN_IF_ERROR(NewWires(apart, connections, deadline, &links));
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
  const Way way = links_[to]->way();
  if (message->copy == nullptr && !PassesAsItLies(way, message->block)) {
    const bool on_host = way == Way::kStaged;
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

Status ProcessGroup::AwaitTaken(int from, int to, const Patience& patience,
                                std::shared_ptr<Event>* done) {
  JAXMG_RETURN_IF_ERROR(InProcessGroup::AwaitTaken(from, to, patience, done));
  if (IsHere(to)) return Status::Ok();
  links_[to]->Settle();
  auto& copies = copies_[from * size() + to];
  const std::shared_ptr<Staging::Copy> copy = std::move(copies.front());
  copies.pop_front();
  if (copy != nullptr) copy->taken.push_back(*done);
  return Status::Ok();
}

// Others may have come while a block was borrowed.
std::deque<ProcessGroup::Held>::iterator ProcessGroup::LastTaken(int from, int to) {
  std::deque<Held>& held = held_[from * size() + to];
  return held.end() - channel(from, to).messages.size() - 1;
}

Status ProcessGroup::TakeMessage(Device& device, int from, int to, const Patience& patience,
                                 Message* message) {
  JAXMG_RETURN_IF_ERROR(InProcessGroup::TakeMessage(device, from, to, patience, message));
  if (IsHere(from)) return Status::Ok();
  FrameType type;
  SharedPlace place;
  int64_t number;
  {
    auto lock = monitor_.Lock();
    const auto held = LastTaken(from, to);
    type = held->type;
    place = held->place;
    number = held->number;
  }
  if (type == FrameType::kPlaced) return links_[from]->Find(place, message);
  if (type == FrameType::kReady) return TakeFromWire(device, from, to, number, message);
  return Status::Ok();
}

Status ProcessGroup::TakeFromWire(Device& device, int from, int to, int64_t number,
                                  Message* message) {
  Bytes2D& block = message->block;
  std::shared_ptr<Staging::Copy> room;
  if (block.height * block.columns > 0) {
    JAXMG_RETURN_IF_ERROR(
        arrivals_[to].Room(device, block.height * block.columns, kMostArrivals, &room));
    block.data = room->buffer->data();
  }
  JAXMG_RETURN_IF_ERROR(links_[from]->Fetch(from, to, number, block));
  auto lock = monitor_.Lock();
  LastTaken(from, to)->room = std::move(room);
  return Status::Ok();
}

void ProcessGroup::Sent(int from, int to, const Status& status,
                        std::shared_ptr<Event> done) noexcept {
  auto lock = monitor_.Lock();
  const Status noted = Guarded([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(status);
    channel(from, to).taken.push_back(std::move(done));
    return Status::Ok();
  });
  if (!noted.ok()) AbortLocked(noted);
  monitor_.Changed();
}

Status ProcessGroup::RecordTaken(Device& device, Stream stream, int from, int to,
                                 std::shared_ptr<Event>* done) {
  if (IsHere(from)) return InProcessGroup::RecordTaken(device, stream, from, to, done);
  return links_[from]->RecordTaken(device, stream, to, done);
}

void ProcessGroup::PostTaken(int from, int to, std::shared_ptr<Event> done) {
  if (IsHere(from)) return InProcessGroup::PostTaken(from, to, std::move(done));
  Held taken;  // is freed after the lock
  {
    auto lock = monitor_.Lock();
    const auto last = LastTaken(from, to);
    taken = std::move(*last);
    held_[from * size() + to].erase(last);
  }
  if (taken.room != nullptr) taken.room->taken.push_back(done);
  links_[from]->PostTaken(from, to, done);
}

// A block may come before this process has its own link; what it has sent is taken after it has.
Status ProcessGroup::Arrived(const FrameHeader& header, Payload payload) {
  Channel& here = channel(header.from, header.to);
  if (header.type == FrameType::kTaken) {
    const Link* link = links_[header.to];
    const auto event = header.aux != 1   ? arrived_
                       : link == nullptr ? nullptr
                                         : link->EventOf(header);
    if (event == nullptr) {
      return Status::Fixed(Code::kInternal, "a block was taken after nothing known");
    }
    here.taken.push_back(event);
    monitor_.Changed();
    return Status::Ok();
  }
  if (payload.size > 0 && payload.data == nullptr) throw std::bad_alloc();
  Held held = {};
  held.type = header.type;
  Message message = {{}, arrived_};
  size_t bytes = 0;
  JAXMG_RETURN_IF_ERROR(BlockOf(header, &message.block, &bytes));
  if (held.type == FrameType::kData) {
    if (payload.size != bytes) {
      return Status::Fixed(Code::kInternal, "a process sent another block than it says");
    }
    message.block.data = payload.data.get();
    held.payload = std::move(payload);
  } else {
    const bool placed = held.type == FrameType::kPlaced;
    const size_t size = placed ? sizeof(held.place) : sizeof(held.number);
    if (payload.size != size) return Status::Fixed(Code::kInternal, "a block lies nowhere");
    std::memcpy(placed ? static_cast<void*>(&held.place) : &held.number, payload.data.get(), size);
  }
  held_[header.from * size() + header.to].push_back(std::move(held));
  here.messages.push_back(std::move(message));
  monitor_.Changed();
  return Status::Ok();
}

}  // namespace jaxmg
