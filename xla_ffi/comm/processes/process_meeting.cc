#include "xla_ffi/comm/processes/process_meeting.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "xla_ffi/comm/meeting.h"
#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/meetings.h"
#include "xla_ffi/comm/processes/process_group.h"

namespace jaxmg {
namespace {

Meetings& TheMeetings() { return Forever<Meetings>(); }

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
                     const std::vector<int64_t>& brought, std::shared_ptr<ProcessGroup>* group) {
  *group =
      std::make_shared<ProcessGroup>(call.site->routine, std::move(processes), me, call.on_host);
  const std::vector<int> ranks = RanksHere(call, me);
  for (size_t i = 0; i < ranks.size(); ++i) (*group)->Bring(ranks[i], brought[i]);
  Hub& hub = Hub::The();
  const std::string text =
      call.site->text + (call.block.empty() ? "" : ", " + call.block) + ", jaxmg " + hub.version();
  JAXMG_RETURN_IF_ERROR(TheMeetings().Meet(call, text, *group, limit));
  const Clock::time_point deadline = Deadline(limit);
  Status joined;
  for (const int other : (*group)->others()) {
    if (joined.ok()) joined = (*group)->About(other, hub.Await(other, deadline));
  }
  if (joined.ok()) joined = (*group)->Join(deadline);
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
  const int place =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), call.rank) - ranks.begin());
  const int size = static_cast<int>(ranks.size());
  std::shared_ptr<ProcessGroup> made;
  if (size == 1) {
    JAXMG_RETURN_IF_ERROR(
        MeetProcesses(call, patience.limit, std::move(processes), me, {call.mine}, &made));
    *group = std::move(made);
    return Status::Ok();
  }
  const std::string what = call.site->routine + ", of the ranks " + RanksOf(processes, me) +
                           " of " + hub.Describe(me) + ", counted from 0";
  std::shared_ptr<InProcessGroup> local;
  JAXMG_RETURN_IF_ERROR(Meet({{call.run, call.site.get()}, call.group}, what.c_str(), place, size,
                             patience, call.mine, &local));
  // The others wait as long as the first does.
  const Patience long_enough = {2 * patience.limit + Seconds(60)};
  Status met;
  if (place == 0) {
    met = Guarded([&] {
      return MeetProcesses(call, patience.limit, std::move(processes), me, local->brought(), &made);
    });
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
  Status met = Guarded([&] { return MeetHere(call, patience, group, here); });
  if (!met.ok()) {
    // What the hub says of a process knows of no routine.
    const char* routine = call.site->routine.c_str();
    if (std::strstr(met.text(), routine) == nullptr) {
      met = Guarded([&] { return Error(met.code(), routine, ": ", met.text()); });
    }
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
