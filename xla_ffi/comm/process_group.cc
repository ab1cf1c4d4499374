#include "xla_ffi/comm/process_group.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "xla_ffi/comm/memory_link.h"
#include "xla_ffi/comm/segments.h"
#include "xla_ffi/comm/socket_link.h"
#include "xla_ffi/comm/staged_link.h"

namespace jaxmg {

std::string RanksOf(const std::vector<int>& processes, int process) {
  std::string text;
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    if (processes[rank] == process) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

ProcessGroup::ProcessGroup(std::string routine, std::vector<int> processes, int me, bool on_host)
    : InProcessGroup(static_cast<int>(processes.size())),
      routine_(std::move(routine)),
      processes_(std::move(processes)),
      me_(me),
      on_host_(on_host),
      others_(processes_.begin(), processes_.end()),
      links_(size(), nullptr),
      held_(size() * size()),
      staging_(size()),
      host_staging_(size()),
      copies_(size() * size()),
      arrived_(std::make_shared<PassedEvent>()),
      voted_already_(size(), false),
      gone_(size(), false),
      sharing_(size(), false) {
  others_.erase(me_);
  here_ = static_cast<int>(std::count(processes_.begin(), processes_.end(), me_));
}

ProcessGroup::~ProcessGroup() {
  for (const auto& [process, link] : link_of_) {
    for (int rank = 0; rank < size(); ++rank) {
      if (IsHere(rank)) link->Recall(rank);
    }
  }
  if (id_.second >= 0) Hub::The().Leave(id_);
}

std::string ProcessGroup::Ranks(int process) const {
  return "rank(s) " + RanksOf(processes_, process);
}

void ProcessGroup::Begin(const CallId& id) noexcept {
  auto lock = monitor_.Lock();
  id_ = id;
}

// Through memory where both can, which they can on one host alone.
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
  if (neighbour == nullptr) {
    *link = std::make_unique<StagedLink>(connection, id_, size());
    return Status::Ok();
  }
  std::vector<int> here;
  for (int rank = 0; rank < size(); ++rank) {
    if (IsHere(rank)) here.push_back(rank);
  }
  return MemoryLink::New(connection, std::move(neighbour), id_, size(), here, link);
}

Status ProcessGroup::Join(Clock::time_point deadline) {
  Hub& hub = Hub::The();
  std::map<int, std::shared_ptr<Connection>> connections;
  std::map<int, std::unique_ptr<Link>> links;
  for (const int process : others_) {
    auto connection = hub.ConnectionTo(process);
    if (connection == nullptr) {
      const Status lost = hub.LostBecause(process);
      return Error(Code::kUnavailable, routine_, " has lost ", Ranks(process), ": ",
                   lost.ok() ? "no connection" : lost.text());
    }
    JAXMG_RETURN_IF_ERROR(NewLink(process, connection, deadline, &links[process]));
    connections[process] = std::move(connection);
  }
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
  if (message->copy == nullptr) {
    if (way == Way::kStaged) {
      JAXMG_RETURN_IF_ERROR(host_staging_[from].Stage(device, stream, &Device::AllocateOnHost,
                                                      &message->block, &message->copy));
    } else if (way == Way::kShared && !Segments::The().Has(message->block.data)) {
      JAXMG_RETURN_IF_ERROR(
          staging_[from].Stage(device, stream, &Device::Allocate, &message->block, &message->copy));
    }
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

Status ProcessGroup::TakeMessage(int from, int to, const Patience& patience, Message* message) {
  JAXMG_RETURN_IF_ERROR(InProcessGroup::TakeMessage(from, to, patience, message));
  if (IsHere(from)) return Status::Ok();
  SharedPlace place;
  {
    auto lock = monitor_.Lock();
    const auto held = LastTaken(from, to);
    if (!held->placed) return Status::Ok();
    place = held->place;
  }
  return links_[from]->Find(place, message);
}

Status ProcessGroup::RecordTaken(Device& device, Stream stream, int from, int to,
                                 std::shared_ptr<Event>* done) {
  if (IsHere(from)) return InProcessGroup::RecordTaken(device, stream, from, to, done);
  return links_[from]->RecordTaken(device, stream, to, done);
}

void ProcessGroup::PostTaken(int from, int to, std::shared_ptr<Event> done) {
  if (IsHere(from)) return InProcessGroup::PostTaken(from, to, std::move(done));
  Payload taken;  // is freed after the lock
  {
    auto lock = monitor_.Lock();
    const auto last = LastTaken(from, to);
    taken = std::move(last->payload);
    held_[from * size() + to].erase(last);
  }
  links_[from]->PostTaken(from, to, done);
}

Status ProcessGroup::Share(int rank, int64_t mine, const Patience& patience,
                           std::vector<int64_t>* all) {
  {
    auto lock = monitor_.Lock();
    sharing_[rank] = true;
  }
  return InProcessGroup::Share(rank, mine, patience, all);
}

// A failed call leaves no message on its way: the memory of this rank may go next.
Status ProcessGroup::Agree(int rank, const Status& mine, const Patience& patience) noexcept {
  const Status outcome = InProcessGroup::Agree(rank, mine, patience);
  if (outcome.ok()) return outcome;
  for (const auto& [process, link] : link_of_) link->Recall(rank);
  return outcome;
}

void ProcessGroup::Vote(int rank, const Status& mine) noexcept {
  ++voted_here_;
  const bool shares = sharing_[rank];
  sharing_[rank] = false;
  if (!severed_.ok()) return CountLocally();
  if (Leads()) {
    voted_already_[rank] = true;
    round_shares_ = round_shares_ || shares;
    return InProcessGroup::Vote(rank, mine);
  }
  OutFrame vote = CallFrame(id_, FrameType::kVote, rank);
  vote.header.value = shared_[rank];
  vote.header.aux = shares ? 1 : 0;
  vote.status = mine;
  Tell(lead(), std::move(vote));
}

// The lead has counted: CountVotes begins the next round.
void ProcessGroup::Decided() noexcept {
  std::fill(voted_already_.begin(), voted_already_.end(), false);
  voted_here_ = 0;
  if (!Leads()) return;
  const bool shares = round_shares_ && outcome_.ok();
  round_shares_ = false;
  if (shares) {
    std::map<int, OutFrame> outcomes;
    const Status copied = Guarded([&] {
      for (const int process : others_) {
        OutFrame& outcome = outcomes[process] = CallFrame(id_, FrameType::kOutcome, -1);
        outcome.body.assign(reinterpret_cast<const char*>(shared_.data()),
                            shared_.size() * sizeof(int64_t));
      }
      return Status::Ok();
    });
    if (copied.ok()) {
      for (auto& [process, outcome] : outcomes) Tell(process, std::move(outcome));
      return;
    }
    outcome_ = copied;
  }
  TellAll(FrameType::kOutcome, outcome_);
}

// Without a lead the ranks of this process still wait for each other: they read each other's
// memory.
void ProcessGroup::CountLocally() noexcept {
  if (voted_here_ == 0 || voted_here_ + gone_here_ < here_) return;
  voted_here_ = 0;
  outcome_ = severed_;
  ++agreements_;
  monitor_.Changed();
}

void ProcessGroup::Sever(const Status& why) noexcept {
  if (severed_.ok()) severed_ = why;
  AbortLocked(why);
  CountLocally();
}

// All ranks of another process are gone, and bring no vote any more.
void ProcessGroup::Gone(int process, const Status& why) noexcept {
  if (process == lead()) return Sever(why);
  AbortLocked(why);
  if (!Leads() || !severed_.ok()) return;
  for (int rank = 0; rank < size(); ++rank) {
    if (processes_[rank] != process) continue;
    if (voted_already_[rank]) --voted_;
    voted_already_[rank] = false;
    if (gone_[rank]) continue;
    gone_[rank] = true;
    if (departed_++ == 0) departure_ = why;
  }
  CountVotes();
}

void ProcessGroup::Depart(const Status& why) noexcept {
  auto lock = monitor_.Lock();
  AbortLocked(why);
  ++gone_here_;
  if (!severed_.ok()) return CountLocally();
  if (!Leads()) {
    OutFrame departure = CallFrame(id_, FrameType::kDepart, -1);
    // Which of the ranks here it was makes no difference to who counts.
    for (int rank = 0; rank < size() && departure.header.from < 0; ++rank) {
      if (IsHere(rank) && !gone_[rank]) departure.header.from = rank;
    }
    if (departure.header.from >= 0) gone_[departure.header.from] = true;
    departure.status = why;
    Tell(lead(), std::move(departure));
    return;
  }
  DepartLocked(why);
  // Nobody is left here to count.
  if (gone_here_ == here_) TellAll(FrameType::kDepart, why);
}

void ProcessGroup::DepartAll(const Status& why) noexcept {
  auto lock = monitor_.Lock();
  AbortLocked(why);
  gone_here_ = here_;
  TellAll(FrameType::kDepart, why);
}

void ProcessGroup::Aborted() noexcept {
  if (!heard_) TellAll(FrameType::kAbort, aborted_);
}

void ProcessGroup::Tell(int process, OutFrame frame) noexcept {
  const auto connection = connections_.find(process);
  if (connection != connections_.end()) return connection->second->SendOrBreak(std::move(frame));
  if (const auto now = Hub::The().ConnectionTo(process)) now->SendOrBreak(std::move(frame));
}

void ProcessGroup::TellAll(FrameType type, const Status& status) noexcept {
  for (const int process : others_) {
    OutFrame frame = CallFrame(id_, type, -1);
    frame.status = status;
    Tell(process, std::move(frame));
  }
}

void ProcessGroup::OnLost(int process, const Status& why) noexcept {
  if (others_.count(process) == 0) return;
  const Status lost = Guarded(
      [&] { return Error(why.code(), routine_, " has lost ", Ranks(process), ": ", why.text()); });
  auto lock = monitor_.Lock();
  Gone(process, lost);
}

void ProcessGroup::OnFrame(int process, const FrameHeader& header, Payload payload) noexcept {
  auto lock = monitor_.Lock();
  const char* text = payload.data == nullptr ? "" : payload.data.get();
  switch (header.type) {
    case FrameType::kVote:
      if (!Leads() || !IsRankOf(process, header.from) || voted_already_[header.from]) return;
      voted_already_[header.from] = true;
      shared_[header.from] = header.value;
      round_shares_ = round_shares_ || header.aux != 0;
      return InProcessGroup::Vote(header.from,
                                  StatusFrom(header.code, text, payload.data ? payload.size : 0));
    case FrameType::kOutcome:
      if (process != lead() || !severed_.ok()) return;
      outcome_ = StatusFrom(header.code, text, payload.data ? payload.size : 0);
      if (header.code == 0 && payload.size == shared_.size() * sizeof(int64_t)) {
        if (payload.data != nullptr) {
          std::memcpy(shared_.data(), payload.data.get(), payload.size);
        } else {
          outcome_ = Status::Fixed(Code::kResourceExhausted, "out of host memory");
        }
      }
      voted_here_ = 0;
      ++agreements_;
      return monitor_.Changed();
    case FrameType::kAbort:
      heard_ = true;
      return AbortLocked(StatusFrom(header.code, text, payload.data ? payload.size : 0));
    case FrameType::kDepart: {
      const Status why = StatusFrom(header.code, text, payload.data ? payload.size : 0);
      heard_ = heard_ || header.from >= 0;
      if (header.from < 0) return Gone(process, why);
      if (!Leads() || !IsRankOf(process, header.from) || gone_[header.from]) return;
      gone_[header.from] = true;
      return DepartLocked(why);
    }
    case FrameType::kData:
    case FrameType::kPlaced:
    case FrameType::kTaken: {
      const bool taken = header.type == FrameType::kTaken;
      const int mine = taken ? header.from : header.to;
      const int theirs = taken ? header.to : header.from;
      if (!IsRankOf(me_, mine) || !IsRankOf(process, theirs)) return;
      const Status arrived = Guarded([&] {
        Arrived(header, std::move(payload));
        return Status::Ok();
      });
      if (!arrived.ok()) AbortLocked(arrived);
      return;
    }
    default:
      return;
  }
}

void ProcessGroup::Arrived(const FrameHeader& header, Payload payload) {
  Channel& here = channel(header.from, header.to);
  if (header.type == FrameType::kTaken) {
    const auto event = header.aux == 1 ? links_[header.to]->EventOf(header) : arrived_;
    if (event == nullptr) throw std::runtime_error("a block was taken after nothing known");
    here.taken.push_back(event);
    return monitor_.Changed();
  }
  if (payload.size > 0 && payload.data == nullptr) throw std::bad_alloc();
  Held held = {};
  held.placed = header.type == FrameType::kPlaced;
  Message message = {SocketLink::BlockOf(header, payload), arrived_};
  if (held.placed) {
    if (payload.size != sizeof(held.place)) throw std::runtime_error("a block lies nowhere");
    std::memcpy(&held.place, payload.data.get(), sizeof(held.place));
    message.block = {nullptr, 0, static_cast<size_t>(header.value),
                     static_cast<size_t>(header.aux)};
  } else {
    held.payload = std::move(payload);
  }
  held_[header.from * size() + header.to].push_back(std::move(held));
  here.messages.push_back(std::move(message));
  monitor_.Changed();
}

}  // namespace jaxmg
