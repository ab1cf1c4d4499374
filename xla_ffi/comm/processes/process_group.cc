#include "xla_ffi/comm/processes/process_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

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
      arrivals_(size()),
      received_(size() * size()),
      staging_(size()),
      host_staging_(size()),
      copies_(size() * size()),
      arrived_(std::make_shared<PassedEvent>()),
      voted_already_(size(), false),
      departed_ranks_(size(), false),
      sharing_(size(), false) {
  others_.erase(me_);
  here_ = static_cast<int>(std::count(processes_.begin(), processes_.end(), me_));
}

ProcessGroup::~ProcessGroup() {
  for (int rank = 0; rank < size(); ++rank) {
    if (IsHere(rank)) Recall(rank);
  }
  if (id_.second >= 0) Hub::Instance().Leave(id_);
}

std::string ProcessGroup::DescribeRanks(int process) const {
  return "rank(s) " + RanksOf(processes_, process);
}

Status ProcessGroup::AddContext(int process, const Status& status) const {
  if (status.ok()) return status;
  const bool lost = !Hub::Instance().LossOf(process).ok();
  return Error(status.code(), routine_, lost ? " has lost " : ", ", DescribeRanks(process), ": ",
               status.text());
}

void ProcessGroup::Begin(const CallId& id) noexcept {
  auto lock = monitor_.Lock();
  id_ = id;
}

Status ProcessGroup::Share(int rank, int64_t mine, const WaitPolicy& policy,
                           std::vector<int64_t>* all) {
  {
    auto lock = monitor_.Lock();
    sharing_[rank] = true;
  }
  return InProcessGroup::Share(rank, mine, policy, all);
}

// After a failure, recalls all messages of this rank, because its memory may be freed next.
Status ProcessGroup::Agree(int rank, const Status& mine, const WaitPolicy& policy) noexcept {
  const Status outcome = InProcessGroup::Agree(rank, mine, policy);
  if (outcome.ok()) return outcome;
  Recall(rank);
  return outcome;
}

void ProcessGroup::Recall(int rank) noexcept {
  for (const auto& [process, link] : link_of_) link->Recall(rank);
}

void ProcessGroup::Vote(int rank, const Status& mine) noexcept {
  ++voted_here_;
  const bool shares = sharing_[rank];
  sharing_[rank] = false;
  if (!severed_.ok()) return CountLocally();
  if (IsLead()) {
    voted_already_[rank] = true;
    round_shares_ = round_shares_ || shares;
    return InProcessGroup::Vote(rank, mine);
  }
  OutFrame vote = CallFrame(id_, FrameType::kVote, rank);
  vote.header.value = shared_[rank];
  vote.header.aux = shares ? 1 : 0;
  vote.status = mine;
  SendFrame(lead(), std::move(vote));
}

// Called when CountVotes begins the next round.
void ProcessGroup::OnOutcome() noexcept {
  std::fill(voted_already_.begin(), voted_already_.end(), false);
  voted_here_ = 0;
  if (!IsLead()) return;
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
      for (auto& [process, outcome] : outcomes) SendFrame(process, std::move(outcome));
      return;
    }
    outcome_ = copied;
  }
  SendToOthers(FrameType::kOutcome, outcome_);
}

// Counts the votes of this process's ranks. Without a lead they must still wait for each other,
// because they read each other's memory.
void ProcessGroup::CountLocally() noexcept {
  if (voted_here_ == 0 || voted_here_ + gone_here_ < here_) return;
  voted_here_ = 0;
  outcome_ = severed_;
  ++agreements_;
  monitor_.Notify();
}

void ProcessGroup::Sever(const Status& why) noexcept {
  if (severed_.ok()) severed_ = why;
  AbortLocked(why);
  CountLocally();
}

// Called when all ranks of another process have left and will not vote any more.
void ProcessGroup::OnProcessGone(int process, const Status& why) noexcept {
  if (process == lead()) return Sever(why);
  AbortLocked(why);
  if (!IsLead() || !severed_.ok()) return;
  for (int rank = 0; rank < size(); ++rank) {
    if (processes_[rank] != process) continue;
    if (voted_already_[rank]) --voted_;
    voted_already_[rank] = false;
    if (departed_ranks_[rank]) continue;
    departed_ranks_[rank] = true;
    if (departed_++ == 0) departure_ = why;
  }
  CountVotes();
}

void ProcessGroup::Depart(const Status& why) noexcept {
  auto lock = monitor_.Lock();
  AbortLocked(why);
  ++gone_here_;
  if (!severed_.ok()) return CountLocally();
  if (!IsLead()) {
    OutFrame departure = CallFrame(id_, FrameType::kDepart, -1);
    // The lead only counts departures, so any rank of this process can be named.
    for (int rank = 0; rank < size() && departure.header.from < 0; ++rank) {
      if (IsHere(rank) && !departed_ranks_[rank]) departure.header.from = rank;
    }
    if (departure.header.from >= 0) departed_ranks_[departure.header.from] = true;
    departure.status = why;
    SendFrame(lead(), std::move(departure));
    return;
  }
  DepartLocked(why);
  // No rank remains here to count votes.
  if (gone_here_ == here_) SendToOthers(FrameType::kDepart, why);
}

void ProcessGroup::DepartAll(const Status& why) noexcept {
  auto lock = monitor_.Lock();
  AbortLocked(why);
  gone_here_ = here_;
  SendToOthers(FrameType::kDepart, why);
}

void ProcessGroup::OnAbort() noexcept {
  if (!abort_received_) SendToOthers(FrameType::kAbort, aborted_);
}

void ProcessGroup::SendFrame(int process, OutFrame frame) noexcept {
  const auto connection = connections_.find(process);
  if (connection != connections_.end()) return connection->second->SendOrBreak(std::move(frame));
  if (const auto now = Hub::Instance().ConnectionTo(process)) now->SendOrBreak(std::move(frame));
}

void ProcessGroup::SendToOthers(FrameType type, const Status& status) noexcept {
  for (const int process : others_) {
    OutFrame frame = CallFrame(id_, type, -1);
    frame.status = status;
    SendFrame(process, std::move(frame));
  }
}

void ProcessGroup::OnLost(int process, const Status& why) noexcept {
  if (others_.count(process) == 0) return;
  const Status lost = Guarded([&] {
    return Error(why.code(), routine_, " has lost ", DescribeRanks(process), ": ", why.text());
  });
  auto lock = monitor_.Lock();
  OnProcessGone(process, lost);
}

void ProcessGroup::OnFrame(int process, const FrameHeader& header, Payload payload) noexcept {
  auto lock = monitor_.Lock();
  const char* text = payload.data == nullptr ? "" : payload.data.get();
  switch (header.type) {
    case FrameType::kVote:
      if (!IsLead() || !IsRankOf(process, header.from) || voted_already_[header.from]) return;
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
      return monitor_.Notify();
    case FrameType::kAbort:
      abort_received_ = true;
      return AbortLocked(StatusFrom(header.code, text, payload.data ? payload.size : 0));
    case FrameType::kDepart: {
      const Status why = StatusFrom(header.code, text, payload.data ? payload.size : 0);
      abort_received_ = abort_received_ || header.from >= 0;
      if (header.from < 0) return OnProcessGone(process, why);
      if (!IsLead() || !IsRankOf(process, header.from) || departed_ranks_[header.from]) return;
      departed_ranks_[header.from] = true;
      return DepartLocked(why);
    }
    case FrameType::kData:
    case FrameType::kLocation:
    case FrameType::kReady:
    case FrameType::kTaken: {
      const bool taken = header.type == FrameType::kTaken;
      const int mine = taken ? header.from : header.to;
      const int theirs = taken ? header.to : header.from;
      if (!IsRankOf(me_, mine) || !IsRankOf(process, theirs)) return;
      const Status arrived = Guarded([&] { return AddReceived(header, std::move(payload)); });
      if (!arrived.ok()) AbortLocked(arrived);
      return;
    }
    case FrameType::kDevices: {
      const Status named = Guarded([&] {
        std::vector<int> ordinals(payload.size / sizeof(int));
        if (!ordinals.empty()) std::memcpy(ordinals.data(), text, ordinals.size() * sizeof(int));
        devices_of_[process] = std::move(ordinals);
        return Status::Ok();
      });
      if (!named.ok()) AbortLocked(named);
      return monitor_.Notify();
    }
    default:
      return;
  }
}

}  // namespace jaxmg
