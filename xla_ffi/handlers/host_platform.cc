#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "xla_ffi/base/floating_point.h"
#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/processes/segments.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/device/timeline.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {
namespace {

// No time limit after the rendezvous: ranks of one process can't be lost then, and one of them may
// compute for hours while the others wait (syevd).
constexpr WaitPolicy kNoTimeLimit = {std::chrono::hours(24 * 365)};

// A number of ranks so large that each of them gets one BLAS thread.
constexpr int kOneEach = 1 << 20;

Status JoinOthers(const CallSite& site, const RankCoordinates& coordinates,
                  std::shared_ptr<InProcessGroup>* group, int* sharing) noexcept {
  const WaitPolicy patience = {RendezvousTimeout()};
  if (site.spans_processes)
    return JoinSharedRendezvous(site, coordinates, patience, true, group, sharing);
  return JoinRendezvous({site.key, coordinates.group}, site.routine, coordinates.rank, site.ranks,
                        patience, 0, group);
}

Status RunRank(const CallSite& site, const RankProgram& program, bool one_thread) noexcept {
  const RankCoordinates coordinates = {site.coordinates[0], site.coordinates[1]};
  std::unique_ptr<Device> device;
  // Declared after the device, because its group holds events of the device.
  CallUnderWay call(site.routine, site.key.run, &site, FailWaitingCall, WhereInterrupted);
  const Status ready = Guarded([&] {
    device = site.spans_processes ? NewSharingHostDevice() : NewHostDevice();
    return Status::Ok();
  });
  if (!ready.ok()) {
    FailCall(site, ready);
    return ready;
  }
  std::shared_ptr<InProcessGroup> group;
  int sharing = site.ranks;  // the number of ranks that share this process's processors
  const Status joined = JoinOthers(site, coordinates, &group, &sharing);
  if (!joined.ok()) {
    call.AwaitOwnSignal(joined);
    return joined;
  }
  call.Join(group);
  const BlasThreadShare threads(one_thread ? kOneEach : sharing);
  const Status status = RunInGroup(group, coordinates.rank, device.get(), kNoTimeLimit,
                                   [&](Communicator& comm) { return program({*device, comm}); });
  AppendTimeline(site.routine, site.key.run, site.key.call_site, coordinates.rank, *device);
  call.AwaitOwnSignal(status);
  return status;
}

RendezvousKey KeyOf(const CallSite& site) noexcept { return {site.key, site.coordinates[1]}; }

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
      return pending.for_all({*device, solo}, PartsOf(*pending.meeting));
    });
  }
  if (status.ok()) status = call.Interruption();
  if (device != nullptr) {
    AppendTimeline(site.routine, site.key.run, site.key.call_site, kRoot, *device);
  }
  FinishForAll(*pending.meeting, status);
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
  return ArriveForAll(KeyOf(site), site.routine, site.coordinates[0], site.ranks,
                      pending->part.get(), &pending->meeting, &pending->last);
}

Status RunOrAwait(const PendingRank& pending) noexcept {
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

void Start(const XLA_FFI_Api* api, XLA_FFI_Future* future, PendingRank pending) noexcept {
  if (pending.for_all != nullptr) {
    const Status arrived = Arrive(&pending);
    if (!arrived.ok()) return Complete(api, future, arrived);
  }
  const Status started = Guarded([&] {
    std::thread([api, future, own = pending]() mutable {
      const DefaultFloatingPoint mode;  // in which XLA goes on with the program, too
      const Status status = RunOrAwait(own);
      own = {};
      Complete(api, future, status);
    }).detach();
    return Status::Ok();
  });
  if (started.ok()) return;
  if (pending.last) {  // the last rank waits for nobody
    const DefaultFloatingPoint mode;
    return Complete(api, future, RunOrAwait(pending));
  }
  const CallSite& site = pending.site;
  const Status status = Guarded([&] {
    return Error(Code::kResourceExhausted, site.routine, ": no thread for rank ",
                 site.coordinates[0], ": ", started.text());
  });
  FailCall(site, status);
  // If all ranks have arrived, one of them uses this rank's part.
  Complete(api, future, pending.meeting != nullptr ? AwaitLast(pending) : status);
}

}  // namespace jaxmg
