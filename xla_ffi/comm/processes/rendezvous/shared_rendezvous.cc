#include "xla_ffi/comm/processes/rendezvous/shared_rendezvous.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/process_group.h"
#include "xla_ffi/comm/processes/rendezvous/rendezvous_registry.h"
#include "xla_ffi/comm/rendezvous.h"

namespace jaxmg {
namespace {

RendezvousRegistry& TheRegistry() { return Forever<RendezvousRegistry>(); }

// Returns the ranks of the call's group that are in this process.
std::vector<int> RanksHere(const SharedCall& call, int me) {
  std::vector<int> ranks;
  for (int rank = 0; rank < call.call_site->ranks; ++rank) {
    if (call.call_site->process_of(call.group, rank) == me) ranks.push_back(rank);
  }
  return ranks;
}

Status CheckRank(const SharedCall& call, int me) {
  const SharedCallSite& site = *call.call_site;
  if (me < 0) {
    return Error(
        Code::kUnavailable, site.routine,
        ": the call has ranks in other processes, but this process was never connected to them");
  }
  if (call.group < 0 || call.group >= site.groups() || call.rank < 0 || call.rank >= site.ranks) {
    return Error(Code::kInvalidArgument, site.routine, ": invalid rank ", call.rank, " of group ",
                 call.group, "; there are ", site.groups(), " groups of ", site.ranks, " ranks");
  }
  if (site.process_of(call.group, call.rank) != me) {
    return Error(Code::kInvalidArgument, site.routine, ": rank ", call.rank, " belongs to process ",
                 site.process_of(call.group, call.rank), ", but came in process ", me);
  }
  return Status::Ok();
}

// Returns the devices of this process that the call occupies: those of its ranks here.
DeviceUse UseOf(const SharedCall& call, std::vector<int64_t> devices, int me) {
  const SharedCallSite& site = *call.call_site;
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  // XLA starts a program on CPU devices when the previous one is complete on some device of it. The
  // previous one may still wait on other devices if they belong to several groups.
  const bool one_group =
      site.groups() == 1 || std::count(site.processes.begin(), site.processes.end(), me) == 1;
  const bool in_order = devices.front() >= 0 && (!call.on_host || one_group);
  return {std::move(devices), call.on_host, in_order};
}

// Joins this process with the others. Called by the first rank of the process.
Status JoinProcesses(const SharedCall& call, Seconds limit, std::vector<int> processes, int me,
                     const std::vector<int64_t>& devices, std::shared_ptr<ProcessGroup>* group) {
  *group = std::make_shared<ProcessGroup>(call.call_site->routine, std::move(processes), me,
                                          call.on_host);
  const std::vector<int> ranks = RanksHere(call, me);
  for (size_t i = 0; i < ranks.size(); ++i) (*group)->SetRankValue(ranks[i], devices[i]);
  Hub& hub = Hub::Instance();
  const std::string text = call.call_site->text + (call.block.empty() ? "" : ", " + call.block) +
                           ", jaxmg " + hub.version();
  JAXMG_RETURN_IF_ERROR(TheRegistry().Join(call, text, *group, limit, UseOf(call, devices, me)));
  const Clock::time_point deadline = Deadline(limit);
  Status joined;
  for (const int other : (*group)->others()) {
    if (joined.ok()) joined = (*group)->AddContext(other, hub.Await(other, deadline));
  }
  if (joined.ok()) joined = (*group)->Join(deadline);
  if (!joined.ok()) (*group)->DepartAll(joined);
  return joined;
}

Status JoinHere(const SharedCall& call, const WaitPolicy& policy,
                std::shared_ptr<InProcessGroup>* group, int* here) {
  Hub& hub = Hub::Instance();
  const int me = hub.me();
  JAXMG_RETURN_IF_ERROR(CheckRank(call, me));
  JAXMG_RETURN_IF_ERROR(TheRegistry().FailureOf(NameOf(*call.call_site, call.run, call.group)));
  const std::vector<int> ranks = RanksHere(call, me);
  std::vector<int> processes;
  for (int rank = 0; rank < call.call_site->ranks; ++rank) {
    processes.push_back(call.call_site->process_of(call.group, rank));
  }
  *here = hub.CountOnMyCores(processes);
  const int local_rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), call.rank) - ranks.begin());
  const int size = static_cast<int>(ranks.size());
  std::shared_ptr<ProcessGroup> made;
  if (size == 1) {
    JAXMG_RETURN_IF_ERROR(
        JoinProcesses(call, policy.limit, std::move(processes), me, {call.device}, &made));
    *group = std::move(made);
    return Status::Ok();
  }
  const std::string what = call.call_site->routine + ", of the ranks " + RanksOf(processes, me) +
                           " of " + hub.Describe(me) + ", counted from 0";
  std::shared_ptr<InProcessGroup> local;
  JAXMG_RETURN_IF_ERROR(JoinRendezvous({{call.run, call.call_site.get()}, call.group}, what.c_str(),
                                       local_rank, size, policy, call.device, &local));
  // The other ranks' limit must exceed the first rank's wait.
  const WaitPolicy long_enough = {2 * policy.limit + Seconds(60)};
  Status joined;
  if (local_rank == 0) {
    joined = Guarded([&] {
      return JoinProcesses(call, policy.limit, std::move(processes), me, local->rank_values(),
                           &made);
    });
  }
  JAXMG_RETURN_IF_ERROR(local->Agree(local_rank, joined, long_enough));
  std::vector<int64_t> all;
  JAXMG_RETURN_IF_ERROR(
      local->Share(local_rank, reinterpret_cast<int64_t>(&made), long_enough, &all));
  if (local_rank != 0) made = *reinterpret_cast<const std::shared_ptr<ProcessGroup>*>(all[0]);
  JAXMG_RETURN_IF_ERROR(local->Agree(local_rank, Status::Ok(), long_enough));
  *group = std::move(made);
  return Status::Ok();
}

}  // namespace

Status JoinSharedRendezvous(const SharedCall& call, const WaitPolicy& policy,
                            std::shared_ptr<InProcessGroup>* group, int* here) noexcept {
  const CallName name = NameOf(*call.call_site, call.run, call.group);
  Status joined = Guarded([&] {
    const RendezvousRegistry::Entry entry(TheRegistry(), {name, call.device, call.on_host});
    return JoinHere(call, policy, group, here);
  });
  if (!joined.ok()) {
    // Errors of the hub don't name the routine, so it is added.
    const char* routine = call.call_site->routine.c_str();
    if (std::strstr(joined.text(), routine) == nullptr) {
      joined = Guarded([&] { return Error(joined.code(), routine, ": ", joined.text()); });
    }
    FailCall({call.run, call.call_site.get()}, joined);
    FailSharedCall(*call.call_site, call.run, joined);
  }
  return joined;
}

void FailSharedCall(const SharedCallSite& site, int64_t run, const Status& status) noexcept {
  const CallName name = NameOf(site, run, -1);
  if (!TheRegistry().RecordFailure(name, status)) return;
  const int me = Hub::Instance().me();
  for (size_t i = 0; i < site.processes.size(); ++i) {
    const int process = site.processes[i];
    const bool told = std::find(site.processes.begin(), site.processes.begin() + i, process) !=
                      site.processes.begin() + i;
    if (told || process == me) continue;
    OutFrame frame;
    frame.header.type = FrameType::kFailCall;
    frame.status = status;
    frame.has_name = true;
    frame.name = name;
    SendTo(process, std::move(frame));
  }
}

FrameSink* SharedRendezvousSink() { return &TheRegistry(); }

size_t CountOpenSharedRendezvous() { return TheRegistry().size(); }

}  // namespace jaxmg
