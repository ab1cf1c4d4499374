#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "xla_ffi/base/floating_point.h"
#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/interrupts.h"
#include "xla_ffi/comm/processes/links/segments.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/device/progress.h"
#include "xla_ffi/device/timeline.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/platform/platform.h"

namespace jaxmg {
namespace {

// No time limit after the rendezvous: ranks of one process can't be lost then, and one of them may
// compute for hours while the others wait (syevd).
constexpr WaitPolicy kNoTimeLimit = {std::chrono::hours(24 * 365)};

// A number of ranks so large that each of them gets one BLAS thread.
constexpr int kOneEach = 1 << 20;

}  // namespace

struct RankUnderWay {
  explicit RankUnderWay(const CallSite& call_site) noexcept
      : site(call_site),
        call(site.routine, site.key.run, &site, FailWaitingCall, WhereInterrupted) {}

  const CallSite site;
  std::unique_ptr<Device> device;
  // Declared after the device, because its group holds events of the device.
  CallUnderWay call;
  std::shared_ptr<MeetingOfGroup> meeting;
};

namespace {

RendezvousKey KeyOf(const CallSite& site) noexcept { return {site.key, site.coordinates[1]}; }

Status Prepare(RankUnderWay* rank) noexcept {
  const Status ready = Guarded([&] {
    rank->device = rank->site.spans_processes ? NewSharingHostDevice() : NewHostDevice();
    return Status::Ok();
  });
  if (!ready.ok()) FailCall(rank->site, ready);
  return ready;
}

// *sharing := the number of ranks that share this process's processors.
Status JoinOthers(RankUnderWay& rank, std::shared_ptr<InProcessGroup>* group,
                  int* sharing) noexcept {
  const CallSite& site = rank.site;
  const WaitPolicy patience = {RendezvousTimeout()};
  const RankCoordinates coordinates = {site.coordinates[0], site.coordinates[1]};
  *sharing = site.ranks;
  if (site.spans_processes)
    return JoinSharedRendezvous(site, coordinates, patience, true, group, sharing);
  if (rank.meeting == nullptr)
    return JoinRendezvous(KeyOf(site), site.routine, coordinates.rank, site.ranks, patience, 0,
                          group);
  return AwaitGroup(KeyOf(site), site.routine, coordinates.rank, patience, *rank.meeting, group);
}

Status JoinAndRun(RankUnderWay& rank, const RankProgram& program, bool one_thread) noexcept {
  const CallSite& site = rank.site;
  const int32_t number = site.coordinates[0];
  std::shared_ptr<InProcessGroup> group;
  int sharing = 0;
  const Status joined = JoinOthers(rank, &group, &sharing);
  if (!joined.ok()) {
    rank.call.AwaitOwnSignal(joined);
    return joined;
  }
  rank.call.Join(group);
  const BlasThreadShare threads(one_thread ? kOneEach : sharing);
  ReportedCall reported(rank.device.get(), {site.routine, site.n, site.ranks},
                        number == kRoot && site.coordinates[1] == 0);
  const Status status =
      RunInGroup(group, number, rank.device.get(), kNoTimeLimit,
                 [&](Communicator& comm) { return program({*rank.device, comm}); });
  reported.End(status);
  AppendTimeline(site.routine, site.key.run, site.key.call_site, number, *rank.device);
  rank.call.AwaitOwnSignal(status);
  return status;
}

Status RunRank(const CallSite& site, const RankProgram& program, bool one_thread) noexcept {
  RankUnderWay rank(site);
  JAXMG_RETURN_IF_ERROR(Prepare(&rank));
  return JoinAndRun(rank, program, one_thread);
}

// Runs the last rank, which works for all. The timeline shows its work as the first rank's.
Status WorkAsLast(const PendingRank& pending) noexcept {
  const CallSite& site = pending.site;
  std::unique_ptr<Device> device;
  CallUnderWay call(site.routine, site.key.run, &site, FailWaitingCall, WhereInterrupted);
  // From here on ranks can't be interrupted one by one, only all together.
  Status status = call.Interruption();
  if (status.ok()) {
    status = Guarded([&] {
      device = NewHostDevice();
      const BlasThreadShare threads(pending.one_thread ? kOneEach : 1);
      SoloCommunicator solo;
      ReportedCall reported(device.get(), {site.routine, site.n, site.ranks},
                            site.coordinates[1] == 0);
      const Status done = pending.for_all({*device, solo}, PartsOf(*pending.meeting));
      reported.End(done);
      return done;
    });
  }
  if (status.ok()) status = call.Interruption();
  if (device != nullptr) {
    AppendTimeline(site.routine, site.key.run, site.key.call_site, kRoot, *device);
  }
  if (pending.leave == nullptr) FinishForAll(*pending.meeting, status);
  return status;
}

Status AwaitLast(const PendingRank& pending) noexcept {
  const CallSite& site = pending.site;
  CallUnderWay call(site.routine, site.key.run, &site, FailWaitingCall, WhereInterrupted);
  const Status status = AwaitWork(KeyOf(site), site.routine, site.coordinates[0],
                                  {RendezvousTimeout()}, *pending.meeting);
  call.AwaitOwnSignal(status);
  return status;
}

Status Arrive(PendingRank* pending) noexcept {
  const CallSite& site = pending->site;
  const int32_t number = site.coordinates[0];
  if (pending->leave != nullptr) {
    return Guarded([&] {
      return LeavePart(KeyOf(site), site.routine, number, site.ranks, pending->leave(),
                       &pending->meeting, &pending->last);
    });
  }
  if (pending->for_all != nullptr) {
    return ArriveForAll(KeyOf(site), site.routine, number, site.ranks, pending->part.get(),
                        &pending->meeting, &pending->last);
  }
  const Status made = Guarded([&] {
    pending->rank = std::make_shared<RankUnderWay>(site);
    return Status::Ok();
  });
  if (!made.ok()) {
    FailCall(site, made);
    return made;
  }
  RankUnderWay& rank = *pending->rank;
  JAXMG_RETURN_IF_ERROR(Prepare(&rank));
  const Status arrived =
      ArriveInGroup(KeyOf(site), site.routine, number, site.ranks, 0, &rank.meeting);
  if (!arrived.ok()) rank.call.AwaitOwnSignal(arrived);
  return arrived;
}

// Waits a moment for the other ranks, after this rank has arrived. Returns whether FinishRank can
// run without a long wait. A longer wait here could deadlock: if all of XLA's threads wait, the
// other ranks can't arrive.
bool OthersComeSoon(const PendingRank& pending) noexcept {
  if (pending.rank != nullptr) return AwaitGroupBriefly(*pending.rank->meeting, BriefWait().limit);
  if (pending.last) return true;
  const CallSite& site = pending.site;
  const CallUnderWay call(site.routine, site.key.run, &site, FailWaitingCall, WhereInterrupted);
  return AwaitWorkBriefly(*pending.meeting, BriefWait());
}

Status FinishRank(const PendingRank& pending) noexcept {
  if (pending.rank != nullptr)
    return JoinAndRun(*pending.rank, pending.program, pending.one_thread);
  if (pending.meeting == nullptr) return RunRank(pending.site, pending.program, pending.one_thread);
  return pending.last ? WorkAsLast(pending) : AwaitLast(pending);
}

void Complete(const XLA_FFI_Api* api, XLA_FFI_Future* future, const Status& status) noexcept {
  if (status.ok()) {
    XLA_FFI_Future_SetAvailable_Args args = {};
    args.struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE;
    args.future = future;
    api->XLA_FFI_Future_SetAvailable(&args);
  } else {
    XLA_FFI_Future_SetError_Args args = {};
    args.struct_size = XLA_FFI_Future_SetError_Args_STRUCT_SIZE;
    args.future = future;
    args.error = ToFfiError(api, status);
    api->XLA_FFI_Future_SetError(&args);
  }
}

}  // namespace

CallOutcome LaunchAlone(const Platform&, const DeviceProgram& program) {
  const DefaultFloatingPoint mode;
  return {Guarded([&] { return program(*NewHostDevice()); })};
}

bool RunsHere(const PendingRank& pending) noexcept {
  return !pending.refusal.ok() || (pending.site.ranks == 1 && !pending.site.spans_processes);
}

Status RunHere(PendingRank pending) noexcept {
  if (!pending.refusal.ok()) return pending.refusal;
  const DefaultFloatingPoint mode;
  return RunRank(pending.site, pending.program, pending.one_thread);
}

bool RunSoon(PendingRank* pending, Status* status) noexcept {
  if (pending->site.spans_processes) return false;
  const DefaultFloatingPoint mode;
  *status = Arrive(pending);
  if (pending->leave != nullptr) {
    if (status->ok() && pending->last) *status = WorkAsLast(*pending);
    // Nobody waits for this call, but all wait for this rank at their next one.
    if (!status->ok()) FailCall(CallKey{pending->site.key.run, nullptr}, *status);
    return true;
  }
  if (!status->ok()) return true;
  if (!OthersComeSoon(*pending)) return false;
  *status = FinishRank(*pending);
  return true;
}

Status EndWithoutThread(const PendingRank& pending, const Status& why) noexcept {
  const DefaultFloatingPoint mode;
  FailCall(pending.site, why);
  // Once all ranks have arrived, this rank must take part: the others wait for its messages, or one
  // of them works for all and reads its part.
  const bool arrived = pending.rank != nullptr || pending.meeting != nullptr;
  return arrived ? FinishRank(pending) : why;
}

void Start(const XLA_FFI_Api* api, XLA_FFI_Future* future, PendingRank pending) noexcept {
  const Status started = Guarded([&] {
    std::thread([api, future, own = pending]() mutable {
      const DefaultFloatingPoint mode;  // in which XLA goes on with the program, too
      const Status status = FinishRank(own);
      own = {};
      Complete(api, future, status);
    }).detach();
    return Status::Ok();
  });
  if (started.ok()) return;
  const CallSite& site = pending.site;
  const Status status = Guarded([&] {
    return Error(Code::kResourceExhausted, site.routine, ": can't start a thread for rank ",
                 site.coordinates[0], ": ", started.text());
  });
  Complete(api, future, EndWithoutThread(pending, status));
}

Status Pin(void*, size_t) { return Status::Ok(); }

Status Unpin(void*) { return Status::Ok(); }

Status IsPinned(const void*, bool* pinned) {
  *pinned = true;
  return Status::Ok();
}

}  // namespace jaxmg
