#include "xla_ffi/comm/process_meeting.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "xla_ffi/comm/hub.h"
#include "xla_ffi/comm/meeting.h"
#include "xla_ffi/comm/process_group.h"

namespace jaxmg {
namespace {

// How long a process that has lost its patience waits for the lead to say who is missing.
constexpr std::chrono::seconds kLastWord(5);

CallName NameOf(const SharedSite& site, int64_t run, int64_t group) {
  return {site.digest, site.index, run, group};
}

// A call for which this process has come, at its end of the connection.
struct Waiting {
  CallName name;
  std::shared_ptr<ProcessGroup> group;
  bool met = false;
  Status failure;
  bool over() const { return met || !failure.ok(); }
};

// At the lead: which processes have come.
struct Arrival {
  int64_t number;  // under which it waits
  std::string text;
};
struct Gathering {
  CallName name;
  std::vector<int> processes;  // by rank
  std::map<int, Arrival> came;
};

struct FailedName {
  CallName name = {};
  Status status;
};

// All that this process knows of meetings over processes.
class Meetings : public FrameSink {
 public:
  Status Meet(const SharedCall& call, const std::string& text,
              const std::shared_ptr<ProcessGroup>& group, Seconds limit);
  // Whether it is news.
  bool Fail(const CallName& name, const Status& status) noexcept;
  Status FailureOf(const CallName& name) noexcept;
  size_t size();

  void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept override;
  void OnLost(int process, const Status& why) noexcept override;

 private:
  // All of these with the lock held.
  void OnLostLocked(int process, const Status& why) noexcept;
  void Come(int process, const CallName& name, std::vector<int> processes, Arrival arrival);
  void Complete(Gathering& gathering);
  void FailGathering(const Gathering& gathering, const Status& status) noexcept;
  void Answer(int process, int64_t number, FrameType type, int64_t value, const Status& status,
              int lead) noexcept;
  Status Late(const Gathering& gathering, Seconds limit);
  std::string WaitsIn(int process, const Gathering& besides);
  void Withdraw(int process, int64_t number, Seconds limit);
  void Begun(int process, const FrameHeader& header) noexcept;
  void MeetFrame(int process, const FrameHeader& header, const Payload& payload);

  Monitor monitor_;
  int64_t last_number_ = 0, last_call_ = 0;
  std::map<int64_t, std::shared_ptr<Waiting>> waiting_;
  std::list<Gathering> gatherings_;  // oldest first
  std::array<FailedName, 64> failed_;
  size_t next_failed_ = 0;
};

Meetings& TheMeetings() { return Forever<Meetings>(); }

OutFrame ToLead(FrameType type, int64_t number, Seconds limit) {
  OutFrame frame;
  frame.header.type = type;
  frame.header.call = number;
  frame.header.value = static_cast<int64_t>(std::min(limit.count(), 1e9) * 1e9);
  return frame;
}

// Who has no connection any more is lost, and all hear of that.
void Tell(int process, OutFrame frame) noexcept {
  const auto connection = Hub::The().ConnectionTo(process);
  if (connection != nullptr) connection->SendOrBreak(std::move(frame));
}

std::string Join(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

std::string RanksOf(const std::vector<int>& processes, int process) {
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    if (processes[rank] == process) ranks.push_back(std::to_string(rank));
  }
  return Join(ranks, ", ");
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
      return Error(Code::kUnavailable, call.site->routine, " needs ", group->Ranks(other), ": ",
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
                 group->Ranks(lead), " did not say that all had come to the call");
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
    gathering = gatherings_.insert(gatherings_.end(), {name, std::move(processes), {}});
  }
  gathering->came[process] = std::move(arrival);
  for (const int expected : gathering->processes) {
    if (gathering->came.count(expected) == 0) return;
  }
  Gathering complete = std::move(*gathering);
  gatherings_.erase(gathering);
  Complete(complete);
}

// All have come: they go on if they have come to the same.
void Meetings::Complete(Gathering& gathering) {
  Hub& hub = Hub::The();
  const int me = hub.me();
  const std::string& text = gathering.came[me].text;
  for (const auto& [process, arrival] : gathering.came) {
    if (arrival.text == text) continue;
    return FailGathering(
        gathering, Error(Code::kInvalidArgument, "the processes of a mesh make different calls: ",
                         hub.Describe(me), " ", text, "; ", hub.Describe(process), " ",
                         arrival.text, ". All must make the same calls in the same order, with the "
                         "same versions of jaxmg"));
  }
  const int64_t number = ++last_call_;
  for (const auto& [process, arrival] : gathering.came) {
    Answer(process, arrival.number, FrameType::kGo, number, Status::Ok(), me);
  }
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
  for (const Gathering& other : gatherings_) {
    const auto there = other.came.find(process);
    if (&other == &besides || there == other.came.end()) continue;
    return ", which waits in " + there->second.text;
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
    failed_[next_failed_] = {over.name, late};
    failed_[next_failed_].name.group = -1;
    next_failed_ = (next_failed_ + 1) % failed_.size();
    return FailGathering(over, late);
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
  failed_[next_failed_] = {name, status};
  next_failed_ = (next_failed_ + 1) % failed_.size();
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
    case FrameType::kFailCall: {
      if (size < sizeof(CallName)) return;
      CallName name;
      std::memcpy(&name, text, sizeof(name));
      const Status failure =
          StatusFrom(header.code, text + sizeof(name), size - sizeof(name));
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

// Of the processes of this call, in one of its groups: the ranks of this process.
std::vector<int> RanksHere(const SharedCall& call, int me) {
  std::vector<int> ranks;
  for (int rank = 0; rank < call.site->ranks; ++rank) {
    if (call.site->process_of(call.group, rank) == me) ranks.push_back(rank);
  }
  return ranks;
}

Status CheckPlace(const SharedCall& call, int me) {
  const SharedSite& site = *call.site;
  if (me < 0) {
    return Error(Code::kUnavailable, site.routine,
                 ": the call has ranks in other processes, and this process was never connected "
                 "with them");
  }
  if (call.group < 0 || call.group >= site.groups() || call.rank < 0 || call.rank >= site.ranks) {
    return Error(Code::kInvalidArgument, site.routine, ": rank ", call.rank, " of group ",
                 call.group, " of ", site.groups(), " groups of ", site.ranks, " ranks");
  }
  if (site.process_of(call.group, call.rank) != me) {
    return Error(Code::kInvalidArgument, site.routine, ": rank ", call.rank, " belongs to process ",
                 site.process_of(call.group, call.rank), ", and came in process ", me);
  }
  return Status::Ok();
}

// The first rank of this process brings it together with the others.
Status MeetProcesses(const SharedCall& call, Seconds limit, std::vector<int> processes, int me,
                     std::shared_ptr<ProcessGroup>* group) {
  *group = std::make_shared<ProcessGroup>(call.site->routine, std::move(processes), me);
  Hub& hub = Hub::The();
  const std::string text =
      call.site->text + (call.block.empty() ? "" : ", " + call.block) + ", jaxmg " + hub.version();
  JAXMG_RETURN_IF_ERROR(TheMeetings().Meet(call, text, *group, limit));
  const Clock::time_point deadline = Deadline(limit);
  Status joined;
  for (const int other : (*group)->others()) {
    if (joined.ok()) joined = hub.Await(other, deadline);
  }
  if (joined.ok()) joined = (*group)->Join();
  if (!joined.ok()) (*group)->DepartAll(joined);
  return joined;
}

Status MeetHere(const SharedCall& call, const Patience& patience,
                std::shared_ptr<InProcessGroup>* group, int* here) {
  Hub& hub = Hub::The();
  const int me = hub.me();
  JAXMG_RETURN_IF_ERROR(CheckPlace(call, me));
  JAXMG_RETURN_IF_ERROR(TheMeetings().FailureOf(NameOf(*call.site, call.run, call.group)));
  const std::vector<int> ranks = RanksHere(call, me);
  std::vector<int> processes;
  for (int rank = 0; rank < call.site->ranks; ++rank) {
    processes.push_back(call.site->process_of(call.group, rank));
  }
  *here = hub.CountOnMyCores(processes);
  const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), call.rank) - ranks.begin());
  const int size = static_cast<int>(ranks.size());
  std::shared_ptr<ProcessGroup> made;
  if (size == 1) {
    JAXMG_RETURN_IF_ERROR(MeetProcesses(call, patience.limit, std::move(processes), me, &made));
    *group = std::move(made);
    return Status::Ok();
  }
  const std::string what = call.site->routine + ", of the ranks " +
                           RanksOf(processes, me) + " of " + hub.Describe(me) +
                           ", counted from 0";
  std::shared_ptr<InProcessGroup> local;
  JAXMG_RETURN_IF_ERROR(Meet({{call.run, call.site.get()}, call.group}, what.c_str(), place, size,
                             patience, 0, &local));
  // The others wait as long as the first does.
  const Patience long_enough = {2 * patience.limit + Seconds(60)};
  Status met;
  if (place == 0) {
    met = Guarded(
        [&] { return MeetProcesses(call, patience.limit, std::move(processes), me, &made); });
  }
  JAXMG_RETURN_IF_ERROR(local->Agree(place, met, long_enough));
  std::vector<int64_t> all;
  JAXMG_RETURN_IF_ERROR(local->Share(place, reinterpret_cast<int64_t>(&made), long_enough, &all));
  if (place != 0) made = *reinterpret_cast<const std::shared_ptr<ProcessGroup>*>(all[0]);
  JAXMG_RETURN_IF_ERROR(local->Agree(place, Status::Ok(), long_enough));
  *group = std::move(made);
  return Status::Ok();
}

}  // namespace

Status MeetAcross(const SharedCall& call, const Patience& patience,
                  std::shared_ptr<InProcessGroup>* group, int* here) noexcept {
  const Status met = Guarded([&] { return MeetHere(call, patience, group, here); });
  if (!met.ok()) {
    FailCall({call.run, call.site.get()}, met);
    FailSharedCall(*call.site, call.run, met);
  }
  return met;
}

void FailSharedCall(const SharedSite& site, int64_t run, const Status& status) noexcept {
  const CallName name = NameOf(site, run, -1);
  if (!TheMeetings().Fail(name, status)) return;
  const int me = Hub::The().me();
  for (size_t i = 0; i < site.processes.size(); ++i) {
    const int process = site.processes[i];
    const bool told = std::find(site.processes.begin(), site.processes.begin() + i, process) !=
                      site.processes.begin() + i;
    if (told || process == me) continue;
    OutFrame frame;
    frame.header.type = FrameType::kFailCall;
    frame.status = status;
    frame.named = true;
    frame.name = name;
    Tell(process, std::move(frame));
  }
}

FrameSink* SharedMeetings() { return &TheMeetings(); }

size_t OpenSharedMeetings() { return TheMeetings().size(); }

}  // namespace jaxmg
