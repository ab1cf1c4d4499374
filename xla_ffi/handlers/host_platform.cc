#include <chrono>
#include <memory>
#include <system_error>
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

Status RunRank(const Platform& platform, const CallSite& site, const RankProgram& program) {
  const Place place = {site.place[0], site.place[1]};
  std::shared_ptr<InProcessGroup> group;
  JAXMG_RETURN_IF_ERROR(Meet({platform.run_id, site.call, place.group}, site.routine, place.rank,
                             site.ranks, RendezvousTimeout(), &group));
  const BlasThreadShare threads(site.ranks);
  std::unique_ptr<Device> device = NewHostDevice();
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

PlatformResult Launch(const Platform& platform, const CallSite& site, RankProgram program) {
  xla::ffi::Promise promise;
  PlatformResult result(promise);
  auto run = [platform, site, promise, program = std::move(program)]() mutable {
    Status status;
    try {
      status = RunRank(platform, site, program);
    } catch (const std::bad_alloc&) {
      status = Error(Code::kResourceExhausted, site.routine, ": out of host memory");
    } catch (const std::exception& error) {
      status = Error(Code::kInternal, site.routine, ": ", error.what());
    }
    program = nullptr;
    Complete(promise, status);
  };
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::system_error& error) {
    return Refuse(Error(Code::kResourceExhausted, site.routine, ": no thread for rank ",
                        site.place[0], ": ", error.what()));
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
