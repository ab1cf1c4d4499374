#include "xla_ffi/device/cuda/runtime/nccl_channel.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "xla_ffi/device/cuda/runtime/library.h"
#include "xla_ffi/device/cuda/runtime/resources.h"

namespace jaxmg {
namespace {

using Clock = std::chrono::steady_clock;

// The oldest NCCL version of JAX 0.6.2.
constexpr int kOldest = 21801;
// The number of multiprocessors that a channel occupies during a transfer. It is small, because a
// rank may receive one panel, send another and multiply at the same time. NCCL_MAX_CTAS overrides
// it.
constexpr int kMostBlocks = 16;
// How long an abort waits for a call in another thread.
constexpr std::chrono::seconds kGrace(2);

std::string VersionOf(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

// A communicator of two ranks and its stream; rank 0 sends and rank 1 receives. It is blocking: a
// nonblocking one has its own thread, which takes ten times as long (docs/processes.md). Calls that
// create it wait for the other side. They run on a separate thread, which is abandoned if the other
// side never joins.
class NcclChannelEnd : public ChannelEnd {
 public:
  explicit NcclChannelEnd(int ordinal) : ordinal_(ordinal), state_(std::make_shared<State>()) {}
  // Runs only if creation failed: a created channel is never destroyed.
  ~NcclChannelEnd() override { Abort(state_); }

  Status Make(ChannelSource::End end, const std::string& id, const std::atomic<bool>& given_up);

  Status Send(const void* data, size_t bytes, std::shared_ptr<Event>* done) override {
    return Enqueue("a block to another process", done, [=](const State& state) {
      return Get<Nccl>().ncclSend(data, bytes, ncclUint8, 1, state.comm, state.stream);
    });
  }
  Status Receive(void* data, size_t bytes, std::shared_ptr<Event>* done) override {
    return Enqueue("a block from another process", done, [=](const State& state) {
      return Get<Nccl>().ncclRecv(data, bytes, ncclUint8, 0, state.comm, state.stream);
    });
  }
  Status HasPassed(const Event& event, bool* passed) override {
    return HasCudaEventPassed(event, passed);
  }
  Status Check() override;
  void Abort() noexcept override { Abort(state_); }

 private:
  // The state that the creating thread and an abort use. It may outlive the other objects.
  struct State {
    std::timed_mutex mutex;  // guards calls of the communicator, which an abort ends
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    std::atomic<bool> aborted{false};

    std::shared_ptr<CudaEvent> greeted;  // recorded after the first transfer
    Status made;
    std::atomic<bool> is_made{false};  // whether creation has ended; `made` has its result
  };

  static Status Begin(State& state, int ordinal, ChannelSource::End end, const ncclUniqueId& id);
  static Status Hello(State& state, int ordinal, ChannelSource::End end);
  static void Abort(const std::shared_ptr<State>& state) noexcept;
  static Status Aborted(int ordinal) {
    return Error(Code::kUnavailable, "the NCCL connection of GPU ", ordinal,
                 " to another process was aborted");
  }
  template <typename Call>
  Status Enqueue(const char* what, std::shared_ptr<Event>* done, const Call& call);

  const int ordinal_;
  const std::shared_ptr<State> state_;
};

template <typename Call>
Status NcclChannelEnd::Enqueue(const char* what, std::shared_ptr<Event>* done, const Call& call) {
  // Doesn't restore the thread's device, because that could create a context on another device.
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaSetDevice(ordinal_), "device ", ordinal_);
  std::shared_ptr<CudaEvent> event;
  JAXMG_RETURN_IF_ERROR(NewCudaEvent(ordinal_, &event));
  std::lock_guard<std::timed_mutex> lock(state_->mutex);
  if (state_->aborted) return Aborted(ordinal_);
  JAXMG_CHECK_CUDA(call(*state_), "NCCL, ", what, ", GPU ", ordinal_);
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaEventRecord(event->get(), state_->stream), "NCCL, ", what,
                   ", GPU ", ordinal_);
  *done = std::move(event);
  return Status::Ok();
}

// The stream has the highest priority, because the other side's GPU waits until this one runs the
// kernel.
Status TakeStream(int ordinal, cudaStream_t* stream) {
  const CudaRuntime& runtime = Get<CudaRuntime>();
  int lowest = 0, highest = 0;
  JAXMG_CHECK_CUDA(runtime.cudaDeviceGetStreamPriorityRange(&lowest, &highest), "device ", ordinal);
  JAXMG_CHECK_CUDA(runtime.cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest),
                   "a stream of device ", ordinal);
  return Status::Ok();
}

Status NcclChannelEnd::Make(ChannelSource::End end, const std::string& id,
                            const std::atomic<bool>& given_up) {
  ncclUniqueId unique;
  if (id.size() != sizeof(unique)) {
    return Error(Code::kInternal, "the id of the NCCL communicator has a wrong length");
  }
  std::memcpy(&unique, id.data(), sizeof(unique));
  std::thread([state = state_, ordinal = ordinal_, end, unique] {
    state->made = Guarded([&] { return Begin(*state, ordinal, end, unique); });
    state->is_made = true;
  }).detach();
  const auto look = std::chrono::microseconds(100);
  // No time limit here, because the caller has its own.
  for (; !state_->is_made; std::this_thread::sleep_for(look)) {
    if (given_up) return Aborted(ordinal_);
  }
  if (!state_->made.ok()) {
    return Error(state_->made.code(), state_->made.text(),
                 ". NCCL takes memory of the GPU outside of JAX's; a lower "
                 "XLA_PYTHON_CLIENT_MEM_FRACTION leaves more for it");
  }
  for (bool passed = false; !passed; std::this_thread::sleep_for(look)) {
    if (given_up) return Aborted(ordinal_);
    JAXMG_RETURN_IF_ERROR(Check());
    JAXMG_RETURN_IF_ERROR(HasPassed(*state_->greeted, &passed));
  }
  return Status::Ok();
}

// The two sides wait for each other in this function.
Status NcclChannelEnd::Begin(State& state, int ordinal, ChannelSource::End end,
                             const ncclUniqueId& id) {
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaSetDevice(ordinal), "device ", ordinal);
  JAXMG_RETURN_IF_ERROR(TakeStream(ordinal, &state.stream));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = kMostBlocks;
  ncclComm_t comm = nullptr;
  const int rank = end == ChannelSource::End::kSends ? 0 : 1;
  JAXMG_CHECK_CUDA(Get<Nccl>().ncclCommInitRankConfig(&comm, 2, id, rank, &config),
                   "NCCL, a communicator with another process, GPU ", ordinal);
  std::lock_guard<std::timed_mutex> lock(state.mutex);
  if (!state.aborted) {
    state.comm = comm;
    return Hello(state, ordinal, end);
  }
  Get<Nccl>().ncclCommAbort(comm);  // no other thread uses it
  return Aborted(ordinal);
}

// The first transfer establishes the connection, for which the two sides wait for each other. The
// lock must be held.
Status NcclChannelEnd::Hello(State& state, int ordinal, ChannelSource::End end) {
  constexpr size_t kBytes = 16;
  void* data = nullptr;
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaMalloc(&data, kBytes), "GPU ", ordinal);
  JAXMG_RETURN_IF_ERROR(NewCudaEvent(ordinal, &state.greeted));
  const ncclResult_t result =
      end == ChannelSource::End::kSends
          ? Get<Nccl>().ncclSend(data, kBytes, ncclUint8, 1, state.comm, state.stream)
          : Get<Nccl>().ncclRecv(data, kBytes, ncclUint8, 0, state.comm, state.stream);
  JAXMG_CHECK_CUDA(result, "NCCL, the first transfer, GPU ", ordinal);
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaEventRecord(state.greeted->get(), state.stream), "GPU ",
                   ordinal);
  return Status::Ok();
}

Status NcclChannelEnd::Check() {
  std::unique_lock<std::timed_mutex> lock(state_->mutex, std::try_to_lock);
  if (!lock || state_->aborted) return Status::Ok();
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = Get<Nccl>().ncclCommGetAsyncError(state_->comm, &result);
  if (asked != ncclSuccess) result = asked;
  JAXMG_CHECK_CUDA(result, "NCCL between GPU ", ordinal_, " and that of another process");
  return Status::Ok();
}

// Kernels that spin on the GPU end as soon as NCCL has set its flag, which an abort does first; the
// rest of the abort may take long or never return. No CUDA call may precede it: another
// communicator's abort may wait for the device, and so for the kernels of this one.
void NcclChannelEnd::Abort(const std::shared_ptr<State>& state) noexcept {
  if (state->aborted.exchange(true)) return;
  (void)Guarded([&] {
    std::thread([state] {
      // The thread that holds the lock returns now, unless it hangs.
      const bool locked = state->mutex.try_lock_for(kGrace);
      const ncclComm_t comm = std::exchange(state->comm, nullptr);
      if (locked) state->mutex.unlock();
      if (comm != nullptr) Get<Nccl>().ncclCommAbort(comm);
    }).detach();
    return Status::Ok();
  });
}

class NcclSource : public ChannelSource {
 public:
  Status Open(std::string* name) override {
    JAXMG_RETURN_IF_ERROR(jaxmg::Open<Nccl>());
    int code = 0;
    JAXMG_CHECK_CUDA(Get<Nccl>().ncclGetVersion(&code), "NCCL");
    if (code < kOldest) {
      return Error(Code::kUnavailable, "NCCL ", VersionOf(code),
                   " is too old; the oldest supported version is ", VersionOf(kOldest));
    }
    *name = "NCCL " + VersionOf(code);
    return Status::Ok();
  }

  Status NewId(std::string* id) override {
    ncclUniqueId unique;
    JAXMG_CHECK_CUDA(Get<Nccl>().ncclGetUniqueId(&unique), "a name of a communicator");
    id->assign(reinterpret_cast<const char*>(&unique), sizeof(unique));
    return Status::Ok();
  }

  Status Make(int ordinal, End end, const std::string& id, const std::atomic<bool>& given_up,
              std::unique_ptr<ChannelEnd>* channel_end) override {
    auto made = std::make_unique<NcclChannelEnd>(ordinal);
    const Status status = made->Make(end, id, given_up);
    *channel_end = std::move(made);
    return status;
  }
};

}  // namespace

ChannelSource& NcclChannelSource() {
  static auto* source = new NcclSource;
  return *source;
}

}  // namespace jaxmg
