#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/nccl_channels.h"
#include "xla_ffi/comm/processes/segments.h"
#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/cuda/memory.h"
#include "xla_ffi/device/cuda/nccl_channel.h"
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

// Ranks of one process can't be lost after their rendezvous, and one of them may compute for hours
// while the others wait (cuSOLVERMg), so only the rendezvous has a time limit.
WaitPolicy Patient(int ranks) { return {std::chrono::hours(24 * 365), Spin(ranks)}; }

// The coordinates of the process's devices in the calls of its programs. A device has to know its
// own before the rendezvous, and to read them from the device's memory is to wait for all that XLA
// has enqueued there so far. So they are read once for each call site of a program. An XLA that
// keeps no number for it leaves its address, where another program may come to lie, with other
// coordinates: then kernels see that (CudaDevice::ExpectPlace), the results are NaN, and the
// coordinates are read anew from then on.
struct Places {
  // The call site, and what tells it from most others at the same address; the device.
  using Key = std::tuple<int64_t, const void*, const char*, int64_t, int64_t, int, int>;
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
  const Places::Key key = {site.number, site.key.call_site, site.routine,    site.n,
                           site.tile,   site.ranks,         device.ordinal()};
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

// Each rank reads the memory of all others of its process.
Status ConnectPeers(const InProcessGroup& group, int ordinal) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!group.IsHere(rank)) continue;
    JAXMG_RETURN_IF_ERROR(EnablePeerAccess(ordinal, static_cast<int>(group.rank_values()[rank])));
  }
  return Status::Ok();
}

// Whether other processes can map memory of the GPU: not everywhere, in containers say. What is
// found of the first GPU is taken to be so of all. That there is no memory left says nothing.
Status FindWhetherShared(int ordinal, bool* shares) {
  if (Hub::The().transport() != Transport::kAuto) return Status::Ok();
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
      Segments::The().Use(source);
    }
  }
  *shares = found != 0;
  return Status::Ok();
}

// What a call with ranks in other processes works in, instead of XLA's memory: the others can map
// it. It goes back when the call is over on the device.
class SharedScratch {
 public:
  explicit SharedScratch(int ordinal) : ordinal_(ordinal) {}
  ~SharedScratch() {
    for (void* data : taken_) Segments::The().Free(data);
  }
  SharedScratch(const SharedScratch&) = delete;
  SharedScratch& operator=(const SharedScratch&) = delete;

  Status Allocate(size_t bytes, void** data) {
    taken_.reserve(taken_.size() + 1);
    JAXMG_RETURN_IF_ERROR(Segments::The().Allocate(ordinal_, bytes, data));
    taken_.push_back(*data);
    return Status::Ok();
  }

 private:
  const int ordinal_;
  std::vector<void*> taken_;
};

// Waits for all that the call has enqueued. A process that is lost until then is one of which the
// host alone hears; what waits for it goes on then, to no good.
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

Status JoinOthers(const CallSite& site, const Place& place, int ordinal,
                  std::shared_ptr<InProcessGroup>* group) {
  const WaitPolicy patience = {RendezvousTimeout(), Spin(site.ranks)};
  if (site.spans_processes) return JoinSharedRendezvous(site, place, patience, false, group);
  return JoinRendezvous({site.key, place.group}, site.routine, place.rank, site.ranks, patience,
                        ordinal, group);
}

Status RunRank(const Platform& platform, const CallSite& site, const RankProgram& program) {
  CurrentDevice current;
  std::unique_ptr<CudaDevice> device;
  SharedScratch shared(platform.ordinal);
  bool shares = false;
  auto allocate = [&](size_t bytes, CudaDevice::Readers readers, void** data) -> Status {
    if (shares && readers == CudaDevice::Readers::kAllRanks) return shared.Allocate(bytes, data);
    *data = platform.scratch->Allocate(bytes).value_or(nullptr);
    if (*data != nullptr) return Status::Ok();
    return Error(Code::kResourceExhausted, "out of memory: ", bytes, " bytes of workspace on GPU ",
                 platform.ordinal);
  };
  Place place = {};
  const Status ready = Guarded([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(Open<CudaDriver>());
    JAXMG_RETURN_IF_ERROR(Open<CudaRuntime>());
    JAXMG_RETURN_IF_ERROR(current.Set(platform.ordinal));
    if (site.spans_processes) {
      JAXMG_RETURN_IF_ERROR(FindWhetherShared(platform.ordinal, &shares));
      NcclChannels::The().Use(NcclChannelSource());
    }
    JAXMG_RETURN_IF_ERROR(CudaDevice::New(
        platform.ordinal, static_cast<cudaStream_t>(platform.stream), allocate, &device));
    return FindPlace(site, *device, &place);
  });
  if (!ready.ok()) {
    FailCall(site, ready);
    return ready;
  }
  std::shared_ptr<InProcessGroup> group;
  JAXMG_RETURN_IF_ERROR(JoinOthers(site, place, platform.ordinal, &group));
  const Status status = RunInGroup(
      group, place.rank, device.get(), Patient(site.ranks), [&](Communicator& comm) -> Status {
        const Status connected = Guarded([&] { return ConnectPeers(*group, platform.ordinal); });
        if (!connected.ok()) comm.Abort(connected);
        const Status done = connected.ok() ? program({*device, comm}) : comm.Agree(connected);
        if (done.ok() && site.spans_processes) return comm.Agree(Finish(*device));
        // What was enqueued before a failure may not have been joined into XLA's stream, and may
        // read what other ranks are about to free.
        if (!done.ok()) (void)comm.Agree(device->Synchronize());
        return done;
      });
  AppendTimeline(site.routine, site.key.run, site.key.call_site, place.rank, *device);
  return status;
}

}  // namespace

PlatformResult Launch(const Platform& platform, const CallSite& site, const RankProgram& program) {
  return {Guarded([&] { return RunRank(platform, site, program); })};
}

}  // namespace jaxmg
