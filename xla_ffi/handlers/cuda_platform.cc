#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "xla_ffi/device/cuda.h"
#include "xla_ffi/device/timeline.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {
namespace {

// How long a rank looks for another one before it goes to sleep, where there are processors enough:
// about what two wake-ups take.
Seconds Spin(int ranks) {
  static const unsigned processors = std::thread::hardware_concurrency();
  return processors >= 2u * ranks ? std::chrono::microseconds(100) : Seconds(0);
}

// Ranks of one process can't be lost once they have met, and one of them may compute for hours
// while the others wait (cuSOLVERMg), so only the meeting has a time limit.
Patience Patient(int ranks) { return {std::chrono::hours(24 * 365), Spin(ranks)}; }

// The places of the process's devices in the calls of its programs. A device has to know its place
// before it meets the others, and to read it from the device's memory is to wait for all that XLA
// has given that so far. So it is read once for each call of a program, which XLA keeps at one
// address. Another program may come to lie there, with other places: then kernels see that
// (CudaDevice::ExpectPlace), the results are NaN, and places are read anew from then on.
struct Places {
  // The program's call, and what tells it from most others at the same address; the device.
  using Key = std::tuple<const void*, const char*, int64_t, int64_t, int, int>;
  std::mutex mutex;
  std::map<Key, Place> known;
};

// From the device, which waits for all that XLA has given it so far.
Status ReadPlace(const CallSite& site, CudaDevice& device, Place* place) {
  int32_t values[2] = {};
  JAXMG_RETURN_IF_ERROR(device.CopyToHost(Stream::kMain, values, site.place, sizeof(values)));
  *place = {values[0], values[1]};
  return Status::Ok();
}

Status FindPlace(const CallSite& site, CudaDevice& device, Place* place) {
  constexpr size_t kMost = 1 << 16;
  Places& places = Forever<Places>();
  const Places::Key key = {site.key.site, site.routine, site.n,
                           site.tile,     site.ranks,   device.ordinal()};
  {
    std::lock_guard<std::mutex> lock(places.mutex);
    if (device.resources().TakeStaleFlag() || places.known.size() > kMost) places.known.clear();
    const auto found = places.known.find(key);
    if (found != places.known.end()) {
      *place = found->second;
      device.ExpectPlace(site.place, place->rank, place->group);
      return Status::Ok();
    }
  }
  JAXMG_RETURN_IF_ERROR(ReadPlace(site, device, place));
  if (site.checks_place) {
    std::lock_guard<std::mutex> lock(places.mutex);
    places.known[key] = *place;
  }
  return Status::Ok();
}

// Each rank reads the memory of all others.
Status ConnectPeers(const InProcessGroup& group, int ordinal) {
  for (int64_t peer : group.brought()) {
    JAXMG_RETURN_IF_ERROR(EnablePeerAccess(ordinal, static_cast<int>(peer)));
  }
  return Status::Ok();
}

Status RunRank(const Platform& platform, const CallSite& site, const RankProgram& program) {
  CurrentDevice current;
  std::unique_ptr<CudaDevice> device;
  auto allocate = [&](size_t bytes) { return platform.scratch->Allocate(bytes).value_or(nullptr); };
  Place place = {};
  const Status ready = Guarded([&]() -> Status {
    if (site.spans_processes) {
      return Error(Code::kInvalidArgument, site.routine,
                   ": the GPUs of a mesh have to be those of one process");
    }
    JAXMG_RETURN_IF_ERROR(Open<CudaDriver>());
    JAXMG_RETURN_IF_ERROR(Open<CudaRuntime>());
    JAXMG_RETURN_IF_ERROR(current.Set(platform.ordinal));
    JAXMG_RETURN_IF_ERROR(CudaDevice::New(
        platform.ordinal, static_cast<cudaStream_t>(platform.stream), allocate, &device));
    return FindPlace(site, *device, &place);
  });
  if (!ready.ok()) {
    FailCall(site, ready);
    return ready;
  }
  std::shared_ptr<InProcessGroup> group;
  JAXMG_RETURN_IF_ERROR(Meet({site.key, place.group}, site.routine, place.rank, site.ranks,
                             {RendezvousTimeout(), Spin(site.ranks)}, platform.ordinal, &group));
  const Status status = RunInGroup(
      group, place.rank, device.get(), Patient(site.ranks), [&](Communicator& comm) -> Status {
        const Status connected = Guarded([&] { return ConnectPeers(*group, platform.ordinal); });
        if (!connected.ok()) comm.Abort(connected);
        const Status done = connected.ok() ? program({*device, comm}) : comm.Agree(connected);
        // What was enqueued before a failure may not have been joined into XLA's stream, and may
        // read what other ranks are about to free.
        if (!done.ok()) (void)comm.Agree(device->Synchronize());
        return done;
      });
  AppendTimeline(site.routine, site.key.run, site.key.site, place.rank, *device);
  return status;
}

}  // namespace

PlatformResult Launch(const Platform& platform, const CallSite& site, const RankProgram& program) {
  return {Guarded([&] { return RunRank(platform, site, program); })};
}

}  // namespace jaxmg
