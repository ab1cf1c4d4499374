#include "xla_ffi/comm/processes/meetings.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "xla_ffi/comm/meeting.h"

namespace jaxmg {
namespace {

// How long a process that has lost its patience waits for the lead to say who is missing.
constexpr std::chrono::seconds kLastWord(5);
// How long, and how many, meetings are remembered that somebody gave up.
constexpr std::chrono::seconds kRemembered(60);
constexpr size_t kMostRemembered = 16;
// At a time; XLA has a few dozen programs in flight.
constexpr size_t kMostGatherings = 4096;

OutFrame ToLead(FrameType type, int64_t number, Seconds limit) {
  OutFrame frame;
  frame.header.type = type;
  frame.header.call = number;
  frame.header.value = static_cast<int64_t>(std::min(limit.count(), 1e9) * 1e9);
  return frame;
}

std::string Join(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

// kMeet: after the name the number of ranks, the process of each, the text.
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

void Tell(int process, OutFrame frame) noexcept {
  const auto connection = Hub::The().ConnectionTo(process);
  if (connection != nullptr) connection->SendOrBreak(std::move(frame));
}

Status Meetings::Meet(const SharedCall& call, const std::string& text,
                      const std::shared_ptr<ProcessGroup>& group, Seconds limit) {
  Hub& hub = Hub::The();
  const CallName name = NameOf(*call.site, call.run, call.group);
  const int me = hub.me(), lead = group->lead();
  const Clock::time_point deadline = Deadline(limit);
  std::vector<int> processes;
  for (int rank = 0; rank < call.site->ranks; ++rank) {
    processes.push_back(call.site->process_of(call.group, rank));
  }
  for (const int other : group->others()) {
    const Status lost = hub.LostBecause(other);
    if (!lost.ok()) {
      return Error(Code::kUnavailable, call.site->routine, " has lost ", group->Ranks(other), ": ",
                   lost.text());
    }
  }
  if (lead != me) {
    const Status connected = hub.Await(lead, deadline);
    if (!connected.ok()) {
      return Error(connected.code(), call.site->routine, ": after ", limit.count(), " s ",
                   group->Ranks(lead), " did not come to the call: ", connected.text());
    }
  }
  const auto mine = std::make_shared<Waiting>(Waiting{name, group, false, Status::Ok()});
  auto lock = monitor_.Lock();
  const int64_t number = ++last_number_;
  waiting_[number] = mine;
  const Status came = Guarded([&] {
    if (lead == me) {
      Come(me, name, processes, {number, text});
    } else {
      OutFrame frame = ToLead(FrameType::kMeet, number, limit);
      frame.named = true;
      frame.name = name;
      frame.body = Pack(processes, text);
      Tell(lead, std::move(frame));
    }
    // One that was lost before this process had come is not lost again.
    for (const int other : group->others()) {
      const Status lost = hub.LostBecause(other);
      if (!lost.ok()) OnLostLocked(other, lost);
    }
    return Status::Ok();
  });
  if (!came.ok() && !mine->over()) mine->failure = came;
  const Patience patience = {deadline - Clock::now()};
  if (!monitor_.Wait(lock, patience, [&] { return mine->over(); })) {
    if (lead == me) {
      Withdraw(me, number, limit);
    } else {
      Tell(lead, ToLead(FrameType::kWithdraw, number, limit));
      monitor_.Wait(lock, {kLastWord}, [&] { return mine->over(); });
    }
  }
  waiting_.erase(number);
  if (!mine->over()) {
    return Error(Code::kDeadlineExceeded, call.site->routine, ": after ", limit.count(), " s ",
                 group->Ranks(lead), " of ", hub.Describe(lead),
                 " did not say that all had come to the call");
  }
  return mine->failure;
}

// The first meeting to which this process has not come yet.
void Meetings::Come(int process, const CallName& name, std::vector<int> processes,
                    Arrival arrival) {
  for (const FailedName& failed : failed_) {
    if (failed.status.ok() || !failed.name.SameCall(name)) continue;
    return Answer(process, arrival.number, FrameType::kFail, 0, failed.status, Hub::The().me());
  }
  auto gathering = std::find_if(gatherings_.begin(), gatherings_.end(), [&](const Gathering& one) {
    return one.name == name && one.came.count(process) == 0;
  });
  if (gathering == gatherings_.end()) {
    if (processes[0] != Hub::The().me() || gatherings_.size() >= kMostGatherings) {
      return Answer(process, arrival.number, FrameType::kFail, 0,
                    Status::Fixed(Code::kInternal, "a process came to a call that there is not"),
                    Hub::The().me());
    }
    gathering = gatherings_.insert(gatherings_.end(), {name, std::move(processes), {}});
  }
  gathering->came[process] = std::move(arrival);
  gathering->since = Clock::now();
  if (CompareOperands(*gathering)) return;
  for (const int expected : gathering->processes) {
    if (gathering->came.count(expected) == 0) return;
  }
  Gathering complete = std::move(*gathering);
  gatherings_.erase(gathering);
  Complete(complete);
}

// All have come: they go on if they have come to the same.
void Meetings::Complete(Gathering& gathering) {
  const int me = Hub::The().me();
  const std::string& text = gathering.came[me].text;
  for (const auto& [process, arrival] : gathering.came) {
    if (arrival.text == text) continue;
    return FailGathering(gathering, Different(me, text, process, arrival.text));
  }
  const int64_t number = ++last_call_;
  for (const auto& [process, arrival] : gathering.came) {
    Answer(process, arrival.number, FrameType::kGo, number, Status::Ok(), me);
  }
}

// Whoever comes to the call later gets this error, in whatever group.
void Meetings::Remember(const CallName& name, const Status& status) noexcept {
  failed_[next_failed_] = {name, status};
  failed_[next_failed_].name.group = -1;
  next_failed_ = (next_failed_ + 1) % failed_.size();
}

void Meetings::OnTick() noexcept {
  auto lock = monitor_.Lock();
  (void)Guarded([&] {  // of memory: the limit of those that wait is still theirs
    ComparePrograms();
    return Status::Ok();
  });
}

void Meetings::FailGathering(const Gathering& gathering, const Status& status) noexcept {
  const int me = Hub::The().me();
  for (const auto& [process, arrival] : gathering.came) {
    Answer(process, arrival.number, FrameType::kFail, 0, status, me);
  }
}

// Tells a process what came of its coming; this one without a frame.
void Meetings::Answer(int process, int64_t number, FrameType type, int64_t value,
                      const Status& status, int lead) noexcept {
  OutFrame frame;
  frame.header.type = type;
  frame.header.call = number;
  frame.header.value = value;
  frame.header.lead = lead;
  frame.status = status;
  if (process != Hub::The().me()) return Tell(process, std::move(frame));
  const auto waiting = waiting_.find(number);
  if (waiting == waiting_.end()) return;
  if (type == FrameType::kGo) {
    Begun(process, frame.header);
  } else {
    waiting->second->failure = status;
    monitor_.Changed();
  }
}

// What else the process waits for, of what this one knows.
std::string Meetings::WaitsIn(int process, const Gathering& besides) {
  const auto found = [&](const Gathering& other, const char* waits) -> std::string {
    const auto there = other.came.find(process);
    if (&other == &besides || there == other.came.end()) return "";
    if (!(other.name.digest == besides.name.digest)) return waits + there->second.text;
    return std::string(waits) +
           (other.name.run != besides.name.run
                ? "the same call of another execution"
                : "the same call of another program: one of the processes has compiled a program "
                  "with such a call that the others have not");
  };
  for (const Gathering& other : gatherings_) {
    if (std::string text = found(other, ", which waits in "); !text.empty()) return text;
  }
  // Who loses patience a little earlier is still who it was.
  for (const GivenUp& other : given_up_) {
    if (Clock::now() - other.when > kRemembered) continue;
    std::string text = found(other.gathering, ", which has just given up waiting in ");
    if (!text.empty()) return text;
  }
  return "";
}

Status Meetings::Late(const Gathering& gathering, Seconds limit) {
  Hub& hub = Hub::The();
  std::vector<std::string> present, missing;
  std::string text;
  std::vector<int> seen;
  for (const int process : gathering.processes) {
    if (std::find(seen.begin(), seen.end(), process) != seen.end()) continue;
    seen.push_back(process);
    const std::string who = RanksOf(gathering.processes, process) + " of " + hub.Describe(process);
    const auto there = gathering.came.find(process);
    if (there != gathering.came.end()) {
      text = there->second.text;
      present.push_back(who);
    } else {
      missing.push_back(who + WaitsIn(process, gathering));
    }
  }
  return Error(Code::kDeadlineExceeded, text, ": after ", limit.count(), " s only rank(s) ",
               Join(present, "; "), " came to the call; missing: ", Join(missing, "; "),
               ". Every process must make the same calls in the same order; "
               "JAXMG_RENDEZVOUS_TIMEOUT sets the limit in seconds");
}

void Meetings::Withdraw(int process, int64_t number, Seconds limit) {
  for (auto gathering = gatherings_.begin(); gathering != gatherings_.end(); ++gathering) {
    const auto there = gathering->came.find(process);
    if (there == gathering->came.end() || there->second.number != number) continue;
    const Status late = Guarded([&] { return Late(*gathering, limit); });
    const Gathering over = std::move(*gathering);
    gatherings_.erase(gathering);
    Remember(over.name, late);
    FailGathering(over, late);
    (void)Guarded([&] {  // where there is no memory, a later error says less
      given_up_.push_front({Clock::now(), over});
      return Status::Ok();
    });
    if (given_up_.size() > kMostRemembered) given_up_.pop_back();
    return;
  }
}

// kGo: the call begins for this process. One that has given up leaves it again.
void Meetings::Begun(int process, const FrameHeader& header) noexcept {
  const CallId id(header.lead, header.value);
  const auto waiting = waiting_.find(header.call);
  if (waiting != waiting_.end()) {
    waiting->second->group->Begin(id);
    const Status entered = Guarded([&] {
      Hub::The().Enter(id, waiting->second->group);
      return Status::Ok();
    });
    waiting->second->failure = entered;
    waiting->second->met = entered.ok();
    monitor_.Changed();
    if (entered.ok()) return;
  }
  Hub::The().Skip(id);
  OutFrame frame;
  frame.header.type = FrameType::kDepart;
  frame.header.lead = id.first;
  frame.header.call = id.second;
  frame.header.from = -1;
  frame.status = Status::Fixed(Code::kDeadlineExceeded, "a process gave up waiting for the call");
  Tell(process, std::move(frame));
}

bool Meetings::Fail(const CallName& name, const Status& status) noexcept {
  auto lock = monitor_.Lock();
  for (const FailedName& failed : failed_) {
    if (!failed.status.ok() && failed.name.SameCall(name)) return false;
  }
  Remember(name, status);
  for (auto gathering = gatherings_.begin(); gathering != gatherings_.end();) {
    if (gathering->name.SameCall(name)) {
      FailGathering(*gathering, status);
      gathering = gatherings_.erase(gathering);
    } else {
      ++gathering;
    }
  }
  for (auto& [number, waiting] : waiting_) {
    if (waiting->name.SameCall(name) && !waiting->over()) waiting->failure = status;
  }
  monitor_.Changed();
  return true;
}

Status Meetings::FailureOf(const CallName& name) noexcept {
  auto lock = monitor_.Lock();
  for (const FailedName& failed : failed_) {
    if (!failed.status.ok() && failed.name.SameCall(name)) return failed.status;
  }
  return Status::Ok();
}

size_t Meetings::size() {
  auto lock = monitor_.Lock();
  return waiting_.size() + gatherings_.size();
}

void Meetings::MeetFrame(int process, const FrameHeader& header, const Payload& payload) {
  CallName name;
  std::vector<int> processes;
  std::string text;
  auto lock = monitor_.Lock();
  if (!Unpack(payload, &name, &processes, &text)) {
    return Answer(process, header.call, FrameType::kFail, 0,
                  Status::Fixed(Code::kInternal, "no meeting can be read from a frame"), 0);
  }
  Come(process, name, std::move(processes), {header.call, std::move(text)});
}

void Meetings::OnFrame(int process, const FrameHeader& header, Payload payload) noexcept {
  const char* text = payload.data == nullptr ? "" : payload.data.get();
  const size_t size = payload.data == nullptr ? 0 : payload.size;
  switch (header.type) {
    case FrameType::kMeet: {
      const Status read = Guarded([&] {
        MeetFrame(process, header, payload);
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
      (void)withdrawn;  // it waits a little for an answer
      return;
    }
    case FrameType::kGo: {
      auto lock = monitor_.Lock();
      return Begun(process, header);
    }
    case FrameType::kFail: {
      const Status failure = StatusFrom(header.code, text, size);
      auto lock = monitor_.Lock();
      const auto waiting = waiting_.find(header.call);
      if (waiting == waiting_.end() || waiting->second->over()) return;
      waiting->second->failure = failure;
      return monitor_.Changed();
    }
    case FrameType::kAskMade:
    case FrameType::kNotMade: {
      if (size != sizeof(CallName)) return;
      CallName name;
      std::memcpy(&name, text, sizeof(name));
      auto lock = monitor_.Lock();
      (void)Guarded([&] {  // as in OnTick
        if (header.type == FrameType::kNotMade) {
          NotMade(process, header.call, name);
        } else if (waiting_.count(header.call) > 0 && !HasMadeSite(name.digest, name.index)) {
          OutFrame frame;
          frame.header.type = FrameType::kNotMade;
          frame.header.call = header.call;
          frame.named = true;
          frame.name = name;
          Tell(process, std::move(frame));
        }
        return Status::Ok();
      });
      return;
    }
    case FrameType::kFailCall: {
      if (size < sizeof(CallName)) return;
      CallName name;
      std::memcpy(&name, text, sizeof(name));
      const Status failure = StatusFrom(header.code, text + sizeof(name), size - sizeof(name));
      Fail(name, failure);
      // Ranks here may be waiting for others of this process.
      if (const auto site = FindSharedSite(name.digest, name.index)) {
        FailCall({name.run, site.get()}, failure);
      }
      return;
    }
    default:
      return;
  }
}

void Meetings::OnLost(int process, const Status& why) noexcept {
  auto lock = monitor_.Lock();
  OnLostLocked(process, why);
}

void Meetings::OnLostLocked(int process, const Status& why) noexcept {
  for (auto gathering = gatherings_.begin(); gathering != gatherings_.end();) {
    const auto& processes = gathering->processes;
    if (std::find(processes.begin(), processes.end(), process) == processes.end()) {
      ++gathering;
      continue;
    }
    const Status lost = Guarded([&] {
      return Error(why.code(), gathering->came.begin()->second.text, " has lost rank(s) ",
                   RanksOf(processes, process), ": ", why.text());
    });
    FailGathering(*gathering, lost);
    gathering = gatherings_.erase(gathering);
  }
  for (auto& [number, waiting] : waiting_) {
    if (waiting->group->lead() == process && !waiting->over()) waiting->failure = why;
  }
  monitor_.Changed();
}

}  // namespace jaxmg
