#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/device/cuda.h"
#include "xla_ffi/device/timeline.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {
namespace {

// Ranks of one process can't be lost once they have met, and one of them may compute for hours
// while the others wait (cuSOLVERMg), so only the meeting has a time limit.
constexpr std::chrono::hours kForever{24 * 365};

// From the ordinals, if the caller knew them.
bool FindPlace(const Platform& platform, const CallSite& site, Place* place) {
  for (size_t i = 0; i < site.ordinals.size(); ++i) {
    if (site.ordinals[i] != platform.ordinal) continue;
    *place = {static_cast<int>(i % site.ranks), static_cast<int>(i / site.ranks)};
    return true;
  }
  return false;
}

// From the device, which waits for all that XLA has given it so far.
Status ReadPlace(const CallSite& site, CudaDevice& device, Place* place) {
  int32_t values[2] = {};
  JAXMG_RETURN_IF_ERROR(device.CopyToHost(Stream::kMain, values, site.place, sizeof(values)));
  *place = {values[0], values[1]};
  return Status::Ok();
}

// Each rank reads the memory of all others.
Status ConnectPeers(Communicator& comm, int ordinal) {
  std::vector<int64_t> ordinals;
  JAXMG_RETURN_IF_ERROR(comm.Share(ordinal, &ordinals));
  Status status;
  for (int64_t peer : ordinals) {
    if (status.ok()) status = EnablePeerAccess(ordinal, static_cast<int>(peer));
  }
  return comm.Agree(status);
}

Status RunRank(const Platform& platform, const CallSite& site, const RankProgram& program) {
  CurrentDevice current;
  std::unique_ptr<CudaDevice> device;
  auto allocate = [&](size_t bytes) { return platform.scratch->Allocate(bytes).value_or(nullptr); };
  const Status ready = Guarded([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(Open<CudaDriver>());
    JAXMG_RETURN_IF_ERROR(Open<CudaRuntime>());
    JAXMG_RETURN_IF_ERROR(current.Set(platform.ordinal));
    return CudaDevice::New(platform.ordinal, static_cast<cudaStream_t>(platform.stream), allocate,
                           &device);
  });
  Place place;
  if (!FindPlace(platform, site, &place)) {
    // A rank that fails here does not know whom to tell: the others wait for the limit.
    JAXMG_RETURN_IF_ERROR(ready);
    JAXMG_RETURN_IF_ERROR(ReadPlace(site, *device, &place));
  }
  std::shared_ptr<InProcessGroup> group;
  JAXMG_RETURN_IF_ERROR(Meet({platform.run_id, site.call, place.group}, site.routine, place.rank,
                             site.ranks, RendezvousTimeout(), ready, &group));
  std::unique_ptr<Communicator> comm =
      NewInProcessCommunicator(std::move(group), place.rank, device.get(), kForever);
  JAXMG_RETURN_IF_ERROR(ConnectPeers(*comm, platform.ordinal));
  const Status status = program({*device, *comm});
  if (!status.ok()) {
    // What was enqueued before the failure may not have been joined into XLA's stream, and may
    // read what other ranks are about to free.
    (void)comm->Agree(device->Synchronize());
  }
  AppendTimeline(site.routine, site.run ^ site.call, place.rank, device->TakeRanges());
  return status;
}

}  // namespace

PlatformResult Launch(const Platform& platform, const CallSite& site, const RankProgram& program) {
  return ToFfiError(Guarded([&] { return RunRank(platform, site, program); }));
}

}  // namespace jaxmg
