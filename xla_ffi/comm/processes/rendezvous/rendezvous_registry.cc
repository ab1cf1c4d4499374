#include "xla_ffi/comm/processes/rendezvous/rendezvous_registry.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "xla_ffi/comm/rendezvous.h"

namespace jaxmg {
namespace {

// How long a process whose limit has passed waits for the lead to report the missing ranks.
constexpr std::chrono::seconds kLastAnswer(5);
// How often a wait for a connection checks whether the call has failed.
constexpr std::chrono::milliseconds kBetweenLooks(200);
// For how long abandoned rendezvous are remembered, and how many at most.
constexpr std::chrono::seconds kRemembered(60);
constexpr size_t kMostRemembered = 16;
// Limit for pending rendezvous; XLA has a few dozen programs in flight.
constexpr size_t kMostPending = 4096;
// Limit for call sites whose devices are remembered; they include call sites of deleted programs.
constexpr size_t kMostUses = 4096;

OutFrame ToLead(FrameType type, int64_t number, Seconds limit) {
  OutFrame frame;
  frame.header.type = type;
  frame.header.call = number;
  frame.header.value = static_cast<int64_t>(std::min(limit.count(), 1e9) * 1e9);
  return frame;
}

std::string JoinTexts(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

// Makes the bytes of kJoin after the name: the number of ranks, the process of each rank, the text.
std::string Pack(const std::vector<int>& processes, const std::string& text) {
  const int32_t count = static_cast<int32_t>(processes.size());
  std::string body;
  body.append(reinterpret_cast<const char*>(&count), sizeof(count));
  body.append(reinterpret_cast<const char*>(processes.data()), count * sizeof(int));
  return body + text;
}

bool Unpack(const Payload& payload, CallName* name, std::vector<int>* processes,
            std::string* text) {
  int32_t count = 0;
  const size_t fixed = sizeof(*name) + sizeof(count);
  if (payload.data == nullptr || payload.size < fixed) return false;
  std::memcpy(name, payload.data.get(), sizeof(*name));
  std::memcpy(&count, payload.data.get() + sizeof(*name), sizeof(count));
  if (count < 1 || static_cast<size_t>(count) > (payload.size - fixed) / sizeof(int)) return false;
  processes->resize(count);
  std::memcpy(processes->data(), payload.data.get() + fixed, count * sizeof(int));
  const size_t before = fixed + count * sizeof(int);
  text->assign(payload.data.get() + before, payload.size - before);
  return true;
}

}  // namespace

void SendTo(int process, OutFrame frame) noexcept {
  const auto connection = Hub::Instance().ConnectionTo(process);
  if (connection != nullptr) connection->SendOrBreak(std::move(frame));
}

Status RendezvousRegistry::Join(const SharedCall& call, const std::string& text,
                                const std::shared_ptr<ProcessGroup>& group, Seconds limit,
                                DeviceUse use) {
  Hub& hub = Hub::Instance();
  const CallName name = NameOf(*call.call_site, call.run, call.group);
  const int me = hub.me(), lead = group->lead();
  const Clock::time_point deadline = Deadline(limit);
  std::vector<int> processes;
  for (int rank = 0; rank < call.call_site->ranks; ++rank) {
    processes.push_back(call.call_site->process_of(call.group, rank));
  }
  for (const int other : group->others()) {
    const Status lost = hub.LossOf(other);
    if (!lost.ok()) {
      return Error(Code::kUnavailable, call.call_site->routine, " has lost ",
                   group->DescribeRanks(other), ": ", lost.text());
    }
  }
  if (lead != me) {
    // Waits in intervals, because the call may fail meanwhile: another rank can't start, or the
    // call is interrupted.
    Status connected, failed;
    bool noticed = false;
    const Clock::time_point notice = Clock::now() + kBeforeNotice;
    do {
      connected = hub.Await(lead, std::min(deadline, Clock::now() + kBetweenLooks));
      failed = FailureOf(name);
      if (connected.code() == Code::kDeadlineExceeded && !noticed && Clock::now() >= notice) {
        PrintNotice(text + ": waiting for " + group->DescribeRanks(lead) + ": " + connected.text());
        noticed = true;
      }
    } while (connected.code() == Code::kDeadlineExceeded && failed.ok() && Clock::now() < deadline);
    JAXMG_RETURN_IF_ERROR(failed);
    if (!connected.ok()) {
      return Error(connected.code(), call.call_site->routine, ": after ", limit.count(), " s ",
                   group->DescribeRanks(lead), " did not come to the call: ", connected.text());
    }
  }
  const auto own =
      std::make_shared<PendingCall>(PendingCall{name, group, use, false, Status::Ok()});
  auto lock = monitor_.Lock();
  if (uses_.size() >= kMostUses) uses_.clear();
  uses_[{name.digest, name.index, name.group}] = std::move(use);
  const int64_t number = ++last_number_;
  waiting_[number] = own;
  const Status joined = Guarded([&] {
    if (lead == me) {
      AddArrival(me, name, processes, {number, text});
    } else {
      OutFrame frame = ToLead(FrameType::kJoin, number, limit);
      frame.has_name = true;
      frame.name = name;
      frame.body = Pack(processes, text);
      SendTo(lead, std::move(frame));
    }
    // A process that was lost before this call was registered will not be reported as lost again.
    for (const int other : group->others()) {
      const Status lost = hub.LossOf(other);
      if (!lost.ok()) OnLostLocked(other, lost);
    }
    return Status::Ok();
  });
  if (!joined.ok() && !own->over()) own->failure = joined;
  const WaitPolicy policy = {deadline - Clock::now()};
  if (!monitor_.Wait(lock, policy, [&] { return own->over(); })) {
    if (lead == me) {
      Withdraw(me, number, limit);
    } else {
      SendTo(lead, ToLead(FrameType::kWithdraw, number, limit));
      monitor_.Wait(lock, {kLastAnswer}, [&] { return own->over(); });
    }
  }
  waiting_.erase(number);
  if (!own->over()) {
    return Error(Code::kDeadlineExceeded, call.call_site->routine, ": after ", limit.count(), " s ",
                 group->DescribeRanks(lead), " of ", hub.Describe(lead),
                 " did not confirm that all ranks had come to the call");
  }
  return own->failure;
}

// Records the arrival at the first rendezvous of this name at which the process has not arrived.
void RendezvousRegistry::AddArrival(int process, const CallName& name, std::vector<int> processes,
                                    Arrival arrival) {
  for (const FailedCallName& failed : failed_) {
    if (failed.status.ok() || !failed.name.IsSameCall(name)) continue;
    return Answer(process, arrival.number, FrameType::kFail, 0, failed.status,
                  Hub::Instance().me());
  }
  auto pending = std::find_if(pending_.begin(), pending_.end(), [&](const PendingRendezvous& one) {
    return one.name == name && one.arrivals.count(process) == 0;
  });
  if (pending == pending_.end()) {
    if (processes[0] != Hub::Instance().me() || pending_.size() >= kMostPending) {
      return Answer(
          process, arrival.number, FrameType::kFail, 0,
          Status::Fixed(Code::kInternal, "a process joined a rendezvous that does not exist"),
          Hub::Instance().me());
    }
    pending = pending_.insert(pending_.end(), {name, std::move(processes), {}});
  }
  pending->arrivals[process] = std::move(arrival);
  pending->since = Clock::now();
  if (CompareOperands(*pending)) return;
  for (const int expected : pending->processes) {
    if (pending->arrivals.count(expected) == 0) return;
  }
  PendingRendezvous complete = std::move(*pending);
  pending_.erase(pending);
  Complete(complete);
}

// Starts a call at which all processes have arrived if their texts are equal, else fails it.
void RendezvousRegistry::Complete(PendingRendezvous& pending) {
  const int me = Hub::Instance().me();
  const std::string& text = pending.arrivals[me].text;
  for (const auto& [process, arrival] : pending.arrivals) {
    if (arrival.text == text) continue;
    return FailPending(pending, DifferentCallsError(me, text, process, arrival.text));
  }
  const int64_t number = ++last_call_;
  for (const auto& [process, arrival] : pending.arrivals) {
    Answer(process, arrival.number, FrameType::kGo, number, Status::Ok(), me);
  }
}

// Records an error for processes that arrive at the call later, in every group.
void RendezvousRegistry::RememberFailure(const CallName& name, const Status& status) noexcept {
  failed_[next_failed_] = {name, status};
  failed_[next_failed_].name.group = -1;
  next_failed_ = (next_failed_ + 1) % failed_.size();
}

Clock::time_point RendezvousRegistry::OnTick() noexcept {
  Clock::time_point next = Clock::time_point::max();
  auto lock = monitor_.Lock();
  // Fails if memory is exhausted; the time limit of the waiting processes still applies.
  (void)Guarded([&] {
    NoticeMissing();
    next = SearchCycles();
    return Status::Ok();
  });
  return next;
}

// At the lead: one waiting process of each late call prints, once, which processes are missing.
void RendezvousRegistry::NoticeMissing() {
  Hub& hub = Hub::Instance();
  for (PendingRendezvous& pending : pending_) {
    if (pending.noticed || Clock::now() < pending.begun + kBeforeNotice) continue;
    pending.noticed = true;
    const auto& [process, arrival] = *pending.arrivals.begin();
    const std::string notice = arrival.text + ": waiting for " + DescribeRanks(pending, false);
    if (process == hub.me()) {
      PrintNotice(notice);
      continue;
    }
    OutFrame frame;
    frame.header.type = FrameType::kLate;
    frame.body = notice;
    SendTo(process, std::move(frame));
  }
}

void RendezvousRegistry::FailPending(const PendingRendezvous& pending,
                                     const Status& status) noexcept {
  const int me = Hub::Instance().me();
  for (const auto& [process, arrival] : pending.arrivals) {
    Answer(process, arrival.number, FrameType::kFail, 0, status, me);
  }
}

// Tells a process the result of its arrival: by a frame, unless the process is this one.
void RendezvousRegistry::Answer(int process, int64_t number, FrameType type, int64_t value,
                                const Status& status, int lead) noexcept {
  OutFrame frame;
  frame.header.type = type;
  frame.header.call = number;
  frame.header.value = value;
  frame.header.lead = lead;
  frame.status = status;
  if (process != Hub::Instance().me()) return SendTo(process, std::move(frame));
  const auto waiting = waiting_.find(number);
  if (waiting == waiting_.end()) return;
  if (type == FrameType::kGo) {
    BeginCall(process, frame.header);
  } else {
    waiting->second->failure = status;
    monitor_.Notify();
  }
}

// Describes the other call in which the process waits, as far as this process knows.
std::string RendezvousRegistry::DescribeOtherWait(int process, const PendingRendezvous& besides) {
  const auto found = [&](const PendingRendezvous& other, const char* waits) -> std::string {
    const auto there = other.arrivals.find(process);
    if (&other == &besides || there == other.arrivals.end()) return "";
    if (!(other.name.digest == besides.name.digest)) return waits + there->second.text;
    return std::string(waits) +
           (other.name.run != besides.name.run
                ? "the same call of another execution"
                : "the same call of another program: one of the processes has compiled a program "
                  "with such a call that the others have not");
  };
  for (const PendingRendezvous& other : pending_) {
    if (std::string text = found(other, ", which waits in "); !text.empty()) return text;
  }
  // A process whose limit passed shortly before may still explain the delay.
  for (const AbandonedRendezvous& other : abandoned_) {
    if (Clock::now() - other.when > kRemembered) continue;
    std::string text = found(other.pending, ", which has just given up waiting in ");
    if (!text.empty()) return text;
  }
  return "";
}

// Describes the ranks of the processes that have arrived, or of those that have not.
std::string RendezvousRegistry::DescribeRanks(const PendingRendezvous& pending, bool arrived) {
  std::vector<std::string> ranks;
  std::vector<int> seen;
  for (const int process : pending.processes) {
    if (std::find(seen.begin(), seen.end(), process) != seen.end()) continue;
    seen.push_back(process);
    if ((pending.arrivals.count(process) > 0) != arrived) continue;
    ranks.push_back(RanksOf(pending.processes, process) + " of " +
                    Hub::Instance().Describe(process) +
                    (arrived ? "" : DescribeOtherWait(process, pending)));
  }
  return "rank(s) " + JoinTexts(ranks, "; ");
}

Status RendezvousRegistry::TimeoutError(const PendingRendezvous& pending, Seconds limit) {
  return Error(Code::kDeadlineExceeded, pending.arrivals.rbegin()->second.text, ": after ",
               limit.count(), " s only ", DescribeRanks(pending, true),
               " came to the call; missing: ", DescribeRanks(pending, false),
               ". Every process must make the same calls in the same order; "
               "JAXMG_RENDEZVOUS_TIMEOUT sets the limit in seconds");
}

void RendezvousRegistry::Withdraw(int process, int64_t number, Seconds limit) {
  for (auto pending = pending_.begin(); pending != pending_.end(); ++pending) {
    const auto there = pending->arrivals.find(process);
    if (there == pending->arrivals.end() || there->second.number != number) continue;
    const Status late = Guarded([&] { return TimeoutError(*pending, limit); });
    const PendingRendezvous over = std::move(*pending);
    pending_.erase(pending);
    RememberFailure(over.name, late);
    FailPending(over, late);
    (void)Guarded([&] {  // without memory for this, a later error says less
      abandoned_.push_front({Clock::now(), over});
      return Status::Ok();
    });
    if (abandoned_.size() > kMostRemembered) abandoned_.pop_back();
    return;
  }
}

// Handles kGo: begins the call in this process. If this process has stopped waiting, departs from
// the call.
void RendezvousRegistry::BeginCall(int process, const FrameHeader& header) noexcept {
  const CallId id(header.lead, header.value);
  const auto waiting = waiting_.find(header.call);
  if (waiting != waiting_.end()) {
    waiting->second->group->Begin(id);
    const Status entered = Guarded([&] {
      Hub::Instance().Enter(id, waiting->second->group);
      return Status::Ok();
    });
    waiting->second->failure = entered;
    waiting->second->complete = entered.ok();
    monitor_.Notify();
    if (entered.ok()) return;
  }
  Hub::Instance().Skip(id);
  OutFrame frame;
  frame.header.type = FrameType::kDepart;
  frame.header.lead = id.first;
  frame.header.call = id.second;
  frame.header.from = -1;
  frame.status = Status::Fixed(Code::kDeadlineExceeded, "a process gave up waiting for the call");
  SendTo(process, std::move(frame));
}

bool RendezvousRegistry::RecordFailure(const CallName& name, const Status& status) noexcept {
  auto lock = monitor_.Lock();
  for (const FailedCallName& failed : failed_) {
    if (!failed.status.ok() && failed.name.IsSameCall(name)) return false;
  }
  RememberFailure(name, status);
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    if (pending->name.IsSameCall(name)) {
      FailPending(*pending, status);
      pending = pending_.erase(pending);
    } else {
      ++pending;
    }
  }
  for (auto& [number, waiting] : waiting_) {
    if (waiting->name.IsSameCall(name) && !waiting->over()) waiting->failure = status;
  }
  monitor_.Notify();
  return true;
}

Status RendezvousRegistry::FailureOf(const CallName& name) noexcept {
  auto lock = monitor_.Lock();
  for (const FailedCallName& failed : failed_) {
    if (!failed.status.ok() && failed.name.IsSameCall(name)) return failed.status;
  }
  return Status::Ok();
}

size_t RendezvousRegistry::size() {
  auto lock = monitor_.Lock();
  return waiting_.size() + pending_.size();
}

void RendezvousRegistry::HandleJoin(int process, const FrameHeader& header,
                                    const Payload& payload) {
  CallName name;
  std::vector<int> processes;
  std::string text;
  auto lock = monitor_.Lock();
  if (!Unpack(payload, &name, &processes, &text)) {
    return Answer(process, header.call, FrameType::kFail, 0,
                  Status::Fixed(Code::kInternal, "a rendezvous frame is invalid"), 0);
  }
  AddArrival(process, name, std::move(processes), {header.call, std::move(text)});
}

void RendezvousRegistry::OnFrame(int process, const FrameHeader& header, Payload payload) noexcept {
  const char* text = payload.data == nullptr ? "" : payload.data.get();
  const size_t size = payload.data == nullptr ? 0 : payload.size;
  switch (header.type) {
    case FrameType::kJoin: {
      const Status read = Guarded([&] {
        HandleJoin(process, header, payload);
        return Status::Ok();
      });
      auto lock = monitor_.Lock();
      if (!read.ok()) Answer(process, header.call, FrameType::kFail, 0, read, 0);
      return;
    }
    case FrameType::kWithdraw: {
      auto lock = monitor_.Lock();
      const Status withdrawn = Guarded([&] {
        Withdraw(process, header.call, Seconds(static_cast<double>(header.value) * 1e-9));
        return Status::Ok();
      });
      (void)withdrawn;  // the process times out a little later
      return;
    }
    case FrameType::kGo: {
      auto lock = monitor_.Lock();
      return BeginCall(process, header);
    }
    case FrameType::kFail: {
      const Status failure = StatusFrom(header.code, text, size);
      auto lock = monitor_.Lock();
      const auto waiting = waiting_.find(header.call);
      if (waiting == waiting_.end() || waiting->second->over()) return;
      waiting->second->failure = failure;
      return monitor_.Notify();
    }
    case FrameType::kLate:
      (void)Guarded([&] {
        PrintNotice(std::string(text, size));
        return Status::Ok();
      });
      return;
    case FrameType::kAskWaits:
    case FrameType::kWaits: {
      auto lock = monitor_.Lock();
      (void)Guarded([&] {  // may fail, as in OnTick
        HandleWaitsFrame(process, header, payload);
        return Status::Ok();
      });
      return;
    }
    case FrameType::kFailCall: {
      if (size < sizeof(CallName)) return;
      CallName name;
      std::memcpy(&name, text, sizeof(name));
      const Status failure = StatusFrom(header.code, text + sizeof(name), size - sizeof(name));
      RecordFailure(name, failure);
      // Ranks here may be waiting for other ranks of this process.
      if (const auto site = FindSharedCallSite(name.digest, name.index)) {
        FailCall({name.run, site.get()}, failure);
      }
      return;
    }
    default:
      return;
  }
}

void RendezvousRegistry::OnLost(int process, const Status& why) noexcept {
  auto lock = monitor_.Lock();
  OnLostLocked(process, why);
}

void RendezvousRegistry::OnLostLocked(int process, const Status& why) noexcept {
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    const auto& processes = pending->processes;
    if (std::find(processes.begin(), processes.end(), process) == processes.end()) {
      ++pending;
      continue;
    }
    const Status lost = Guarded([&] {
      return Error(why.code(), pending->arrivals.begin()->second.text, " has lost rank(s) ",
                   RanksOf(processes, process), ": ", why.text());
    });
    FailPending(*pending, lost);
    pending = pending_.erase(pending);
  }
  for (auto& [number, waiting] : waiting_) {
    if (waiting->group->lead() == process && !waiting->over()) waiting->failure = why;
  }
  monitor_.Notify();
}

}  // namespace jaxmg
