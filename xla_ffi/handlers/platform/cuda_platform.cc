#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "xla_ffi/base/floating_point.h"
#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/interrupts.h"
#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/nccl_channels.h"
#include "xla_ffi/comm/processes/links/segments.h"
#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/cuda/runtime/memory.h"
#include "xla_ffi/device/cuda/runtime/nccl_channel.h"
#include "xla_ffi/device/cuda/runtime/pinned.h"
#include "xla_ffi/device/progress.h"
#include "xla_ffi/device/timeline.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/platform/platform.h"

namespace jaxmg {
namespace {

// How long a rank spins before it sleeps, if there are enough processors: about the time of two
// wake-ups.
Seconds Spin(int ranks) {
  static const unsigned processors = std::thread::hardware_concurrency();
  return processors >= 2u * ranks ? std::chrono::microseconds(100) : Seconds(0);
}

// No time limit after the rendezvous: ranks of one process can't be lost then, and one of them may
// compute for hours while the others wait (cuSOLVERMg).
WaitPolicy NoTimeLimit(int ranks) { return {std::chrono::hours(24 * 365), Spin(ranks)}; }

// Caches the rank coordinates of the process's devices by call site. The host needs the coordinates
// before the rendezvous, and reading them from the device waits for all work that XLA has enqueued
// there. So they are read once per call site. Old versions of XLA store no number for a call site.
// Then its address is the key, and another program with other coordinates may later have the same
// address. Kernels detect this (CudaDevice::ExpectCoordinates): the results are NaN, and the cache
// is cleared.
struct CoordinatesCache {
  // The call site, the properties that distinguish most call sites at the same address, and the
  // device.
  using Key = std::tuple<int64_t, const void*, const char*, int64_t, int64_t, int, int>;
  std::mutex mutex;
  std::map<Key, RankCoordinates> known;
};

// Reads the coordinates from the device, after all work that XLA has enqueued there.
Status ReadCoordinates(const CallSite& site, CudaDevice& device, RankCoordinates* coordinates) {
  int32_t values[2] = {};
  JAXMG_RETURN_IF_ERROR(device.CopyToHost(Stream::kMain, values, site.coordinates, sizeof(values)));
  *coordinates = {values[0], values[1]};
  return Status::Ok();
}

// Returns whether the call has only one rank. It then needs no rendezvous and no agreement, and its
// coordinates only say whether it reports progress.
bool IsAlone(const CallSite& site) { return site.ranks == 1 && !site.spans_processes; }

// A call of one rank must not depend on its coordinates, so a stale entry is not detected then, and
// the coordinates of a call site are always cached.
Status FindCoordinates(const CallSite& site, CudaDevice& device, RankCoordinates* coordinates) {
  const bool alone = IsAlone(site);
  constexpr size_t kMost = 1 << 16;
  CoordinatesCache& cache = Forever<CoordinatesCache>();
  const CoordinatesCache::Key key = {site.number, site.key.call_site, site.routine,    site.n,
                                     site.tile,   site.ranks,         device.ordinal()};
  {
    std::lock_guard<std::mutex> lock(cache.mutex);
    if (device.resources().TakeStaleFlag() || cache.known.size() > kMost) cache.known.clear();
    const auto found = cache.known.find(key);
    if (found != cache.known.end()) {
      *coordinates = found->second;
      if (!alone) {
        device.ExpectCoordinates(site.coordinates, coordinates->rank, coordinates->group);
      }
      return Status::Ok();
    }
  }
  JAXMG_RETURN_IF_ERROR(ReadCoordinates(site, device, coordinates));
  if (site.checks_coordinates || alone) {
    std::lock_guard<std::mutex> lock(cache.mutex);
    cache.known[key] = *coordinates;
  }
  return Status::Ok();
}

// Enables access to the memory of all other ranks of the process.
Status ConnectPeers(const InProcessGroup& group, int ordinal) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!group.IsHere(rank)) continue;
    JAXMG_RETURN_IF_ERROR(EnablePeerAccess(ordinal, static_cast<int>(group.rank_values()[rank])));
  }
  return Status::Ok();
}

// Sets *shares to whether other processes can map memory of the GPU, which some containers forbid.
// The result for the first GPU holds for all. Running out of memory is an error and leaves the
// question open.
Status ProbeSharing(int ordinal, bool* shares) {
  if (Hub::Instance().transport() != Transport::kAuto) return Status::Ok();
  static std::mutex mutex;
  static int found = -1;
  std::lock_guard<std::mutex> lock(mutex);
  MemorySource& source = CudaMemorySource();
  JAXMG_RETURN_IF_ERROR(source.Serve(ordinal));
  if (found < 0) {
    size_t bytes = 1;
    void* data = nullptr;
    int file = -1;
    const Status made = source.Make(ordinal, &bytes, &data, &file);
    if (made.code() == Code::kResourceExhausted) return made;
    found = made.ok() ? 1 : 0;
    if (made.ok()) {
      source.Unmap(data, bytes);
      close(file);
      Segments::Instance().Use(source);
    }
  }
  *shares = found != 0;
  return Status::Ok();
}

// Workspace of a call with ranks in other processes. Other processes can map it, unlike XLA's
// memory. Freed after the call has completed on the device.
class SharedScratch {
 public:
  explicit SharedScratch(int ordinal) : ordinal_(ordinal) {}
  ~SharedScratch() {
    for (void* data : taken_) Segments::Instance().Free(data);
  }
  SharedScratch(const SharedScratch&) = delete;
  SharedScratch& operator=(const SharedScratch&) = delete;

  Status Allocate(size_t bytes, void** data) {
    taken_.reserve(taken_.size() + 1);
    JAXMG_RETURN_IF_ERROR(Segments::Instance().Allocate(ordinal_, bytes, data));
    taken_.push_back(*data);
    return Status::Ok();
  }

 private:
  const int ordinal_;
  std::vector<void*> taken_;
};

// Waits for all work that the call has enqueued. Only the host learns if another process is lost
// meanwhile; work that waits for that process then continues with undefined data.
Status Finish(CudaDevice& device) {
  const Clock::time_point begun = Clock::now();
  for (bool done = false;;) {
    JAXMG_RETURN_IF_ERROR(device.IsDone(Stream::kMain, &done));
    if (done) return Status::Ok();
    if (Clock::now() - begun > std::chrono::milliseconds(1)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

Status JoinOthers(const CallSite& site, const RankCoordinates& coordinates, int ordinal,
                  std::shared_ptr<InProcessGroup>* group) {
  if (IsAlone(site)) {
    return Guarded([&] {
      *group = std::make_shared<InProcessGroup>(1);
      return Status::Ok();
    });
  }
  const WaitPolicy patience = {RendezvousTimeout(), Spin(site.ranks)};
  if (site.spans_processes) return JoinSharedRendezvous(site, coordinates, patience, false, group);
  return JoinRendezvous({site.key, coordinates.group}, site.routine, coordinates.rank, site.ranks,
                        patience, ordinal, group);
}

Status OpenDevice(const Platform& platform, CurrentDevice* current) {
  JAXMG_RETURN_IF_ERROR(Open<CudaDriver>());
  JAXMG_RETURN_IF_ERROR(Open<CudaRuntime>());
  return current->Set(platform.ordinal);
}

// Allocates memory from XLA.
Status TakeScratch(const Platform& platform, size_t bytes, void** data) {
  *data = platform.scratch->Allocate(bytes).value_or(nullptr);
  if (*data != nullptr) return Status::Ok();
  return Error(Code::kResourceExhausted, "out of memory: ", bytes, " bytes of workspace on GPU ",
               platform.ordinal);
}

Status RunRank(const Platform& platform, const CallSite& site, const RankProgram& program) {
  CurrentDevice current;
  std::unique_ptr<CudaDevice> device;
  SharedScratch shared(platform.ordinal);
  // Declared after the device, because its group holds events of the device.
  CallUnderWay call(site.routine, site.key.run, &site, FailWaitingCall, WhereInterrupted);
  bool shares = false;
  auto allocate = [&](size_t bytes, CudaDevice::Readers readers, void** data) -> Status {
    if (shares && readers == CudaDevice::Readers::kAllRanks) return shared.Allocate(bytes, data);
    return TakeScratch(platform, bytes, data);
  };
  RankCoordinates coordinates = {};
  const Status ready = Guarded([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(OpenDevice(platform, &current));
    if (site.spans_processes) {
      JAXMG_RETURN_IF_ERROR(ProbeSharing(platform.ordinal, &shares));
      NcclChannels::Instance().Use(NcclChannelSource());
    }
    JAXMG_RETURN_IF_ERROR(CudaDevice::New(
        platform.ordinal, static_cast<cudaStream_t>(platform.stream), allocate, &device));
    const bool needs = !IsAlone(site) || ProgressWanted();
    return needs ? FindCoordinates(site, *device, &coordinates) : Status::Ok();
  });
  if (!ready.ok()) {
    FailCall(site, ready);
    return ready;
  }
  std::shared_ptr<InProcessGroup> group;
  const Status joined = JoinOthers(site, coordinates, platform.ordinal, &group);
  if (!joined.ok()) {
    call.AwaitOwnSignal(joined);
    return joined;
  }
  call.Join(group);
  ReportedCall reported(device.get(), {site.routine, site.n, site.ranks},
                        coordinates.rank == 0 && coordinates.group == 0);
  const Status status = RunInGroup(
      group, coordinates.rank, device.get(), NoTimeLimit(site.ranks),
      [&](Communicator& comm) -> Status {
        const Status connected = Guarded(
            [&] { return IsAlone(site) ? Status::Ok() : ConnectPeers(*group, platform.ordinal); });
        if (!connected.ok()) comm.Abort(connected);
        const Status done = connected.ok() ? program({*device, comm}) : comm.Agree(connected);
        if (done.ok() && site.spans_processes) return comm.Agree(Finish(*device));
        // Work that was enqueued before a failure may not be joined into XLA's stream, and may read
        // memory that other ranks free next.
        if (!done.ok()) (void)comm.Agree(device->Synchronize());
        return done;
      });
  reported.End(status);
  AppendTimeline(site.routine, site.key.run, site.key.call_site, coordinates.rank, *device);
  call.AwaitOwnSignal(status);
  return status;
}

}  // namespace

CallOutcome LaunchAlone(const Platform& platform, const DeviceProgram& program) {
  const DefaultFloatingPoint mode;
  return {Guarded([&]() -> Status {
    CurrentDevice current;
    JAXMG_RETURN_IF_ERROR(OpenDevice(platform, &current));
    std::unique_ptr<CudaDevice> device;
    JAXMG_RETURN_IF_ERROR(CudaDevice::New(
        platform.ordinal, static_cast<cudaStream_t>(platform.stream),
        [&](size_t bytes, CudaDevice::Readers, void** data) {
          return TakeScratch(platform, bytes, data);
        },
        &device));
    return program(*device);
  })};
}

PlatformResult Launch(const Platform& platform, const CallSite& site, const RankProgram& program) {
  const DefaultFloatingPoint mode;
  return {Guarded([&] { return RunRank(platform, site, program); })};
}

Status Pin(void* address, size_t bytes) { return RegisterOnCuda(address, bytes); }

Status Unpin(void* address) { return UnregisterOnCuda(address); }

Status IsPinned(const void* address, bool* pinned) { return IsRegisteredOnCuda(address, pinned); }

}  // namespace jaxmg
