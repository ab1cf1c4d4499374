#include <cfenv>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/device/host.h"
#include "xla_ffi/device/lapack.h"
#include "xla_ffi/device/timeline.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {
namespace {

// Ranks of one process can't be lost once they have met, and one of them may compute for hours
// while the others wait (syevd), so only the meeting has a time limit.
constexpr std::chrono::hours kForever{24 * 365};

// Meets the other ranks; one that is not `ready` only tells them.
Status MeetOthers(const CallSite& site, const Place& place, const Status& ready,
                  std::shared_ptr<InProcessGroup>* group) {
  return Meet({site.run, site.call, place.group}, site.routine, place.rank, site.ranks,
              RendezvousTimeout(), ready, group);
}

Status RunRank(const CallSite& site, const Place& place, const RankProgram& program) {
  std::unique_ptr<Device> device;
  const Status ready = Guarded([&] {
    device = NewHostDevice();
    return Status::Ok();
  });
  std::shared_ptr<InProcessGroup> group;
  JAXMG_RETURN_IF_ERROR(MeetOthers(site, place, ready, &group));
  const BlasThreadShare threads(site.ranks);
  std::unique_ptr<Communicator> comm =
      NewInProcessCommunicator(std::move(group), place.rank, device.get(), kForever);
  const Status status = program({*device, *comm});
  AppendTimeline(site.routine, site.run ^ site.call, place.rank, device->TakeRanges());
  return status;
}

void Complete(xla::ffi::Promise& promise, const Status& status) {
  if (status.ok()) {
    promise.SetAvailable();
  } else {
    promise.SetError(ToFfiError(status));
  }
}

}  // namespace

PlatformResult Launch(const Platform&, const CallSite& site, RankProgram program) {
  const Place place = {site.place[0], site.place[1]};
  xla::ffi::Promise promise;
  PlatformResult result(promise);
  auto run = [site, place, promise, program = std::move(program)]() mutable {
    // A thread inherits its maker's mode, and XLA's threads take denormals for 0.
    std::fesetenv(FE_DFL_ENV);
    const Status status = Guarded([&] { return RunRank(site, place, program); });
    program = nullptr;
    Complete(promise, status);
  };
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::exception& error) {
    const Status status = Error(Code::kResourceExhausted, site.routine, ": no thread for rank ",
                                place.rank, ": ", error.what());
    std::shared_ptr<InProcessGroup> group;
    return Refuse(MeetOthers(site, place, status, &group));
  }
  return result;
}

PlatformResult Refuse(const Status& status) {
  xla::ffi::Promise promise;
  PlatformResult result(promise);
  Complete(promise, status);
  return result;
}

}  // namespace jaxmg
