#include "xla_ffi/device/cuda_wire.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "xla_ffi/device/cuda_library.h"
#include "xla_ffi/device/cuda_resources.h"

namespace jaxmg {
namespace {

using Clock = std::chrono::steady_clock;

// Of JAX 0.6.2 the oldest.
constexpr int kOldest = 21801;
// Multiprocessors that a wire occupies while a block moves. Few: a panel may come in while another
// goes out and the rest multiplies. NCCL_MAX_CTAS says otherwise.
constexpr int kMostBlocks = 16;
// What no call of NCCL's should take, once there is a communicator.
constexpr std::chrono::seconds kLongestCall(30);
// How long an abort waits for a call that is under way in another thread.
constexpr std::chrono::seconds kGrace(2);

std::string VersionOf(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

// A communicator of two, of which rank 0 sends and rank 1 receives, and its stream.
class NcclWire : public Wire {
 public:
  explicit NcclWire(int ordinal) : ordinal_(ordinal), state_(std::make_shared<State>()) {}
  // Of one that was not made. What NCCL still does for it in threads of its own uses variables of
  // the thread that began it, which is this one.
  ~NcclWire() override {
    if (state_->comm != nullptr) Get<Nccl>().ncclCommAbort(state_->comm);
  }

  Status Make(WireSource::End end, const std::string& id, const std::atomic<bool>& given_up);

  Status Send(const void* data, size_t bytes, std::shared_ptr<Event>* done) override {
    return Enqueue("a block to another process", done, [=](ncclComm_t comm) {
      return Get<Nccl>().ncclSend(data, bytes, ncclUint8, 1, comm, stream_);
    });
  }
  Status Receive(void* data, size_t bytes, std::shared_ptr<Event>* done) override {
    return Enqueue("a block from another process", done, [=](ncclComm_t comm) {
      return Get<Nccl>().ncclRecv(data, bytes, ncclUint8, 0, comm, stream_);
    });
  }
  Status HasPassed(const Event& event, bool* passed) override {
    return HasCudaEventPassed(event, passed);
  }
  Status Check() override;
  void Abort() noexcept override { Abort(state_); }

 private:
  // What an abort needs, which may take longer than all others.
  struct State {
    std::timed_mutex mutex;  // of calls with the communicator, which an abort frees
    ncclComm_t comm = nullptr;
    std::atomic<bool> aborted{false};
  };

  static void Abort(const std::shared_ptr<State>& state) noexcept;
  Status Aborted() const {
    return Error(Code::kUnavailable, "NCCL was given up between GPU ", ordinal_,
                 " and that of another process");
  }
  template <typename Call>
  Status Enqueue(const char* what, std::shared_ptr<Event>* done, const Call& call);
  template <typename Stop>
  Status Complete(const char* what, ncclResult_t result, Clock::time_point deadline,
                  const Stop& stop);
  Status TakeStream();
  Status Hello(WireSource::End end, const std::atomic<bool>& given_up);

  const int ordinal_;
  const std::shared_ptr<State> state_;
  cudaStream_t stream_ = nullptr;
};

// A call of a communicator that doesn't block may go on after it has returned, on a thread of
// NCCL's. With the lock held.
template <typename Stop>
Status NcclWire::Complete(const char* what, ncclResult_t result, Clock::time_point deadline,
                          const Stop& stop) {
  while (result == ncclInProgress) {
    if (stop()) return Aborted();
    if (Clock::now() > deadline) {
      return Error(Code::kDeadlineExceeded, "NCCL did not come to an end with ", what, " on GPU ",
                   ordinal_);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(10));
    const ncclResult_t asked = Get<Nccl>().ncclCommGetAsyncError(state_->comm, &result);
    if (asked != ncclSuccess) result = asked;
  }
  JAXMG_CHECK_CUDA(result, "NCCL, ", what, ", GPU ", ordinal_);
  return Status::Ok();
}

template <typename Call>
Status NcclWire::Enqueue(const char* what, std::shared_ptr<Event>* done, const Call& call) {
  // The thread's own for ever: to go back to another device would open that.
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaSetDevice(ordinal_), "device ", ordinal_);
  std::shared_ptr<CudaEvent> event;
  JAXMG_RETURN_IF_ERROR(NewCudaEvent(ordinal_, &event));
  std::lock_guard<std::timed_mutex> lock(state_->mutex);
  if (state_->aborted) return Aborted();
  const ncclResult_t result = call(state_->comm);
  JAXMG_RETURN_IF_ERROR(
      Complete(what, result, Clock::now() + kLongestCall, [&] { return state_->aborted.load(); }));
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaEventRecord(event->get(), stream_), "NCCL, ", what,
                   ", GPU ", ordinal_);
  *done = std::move(event);
  return Status::Ok();
}

// Of the highest priority: the other side's GPU waits as long as this one's has no room.
Status NcclWire::TakeStream() {
  const CudaRuntime& runtime = Get<CudaRuntime>();
  int lowest = 0, highest = 0;
  JAXMG_CHECK_CUDA(runtime.cudaDeviceGetStreamPriorityRange(&lowest, &highest), "device ",
                   ordinal_);
  JAXMG_CHECK_CUDA(runtime.cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest),
                   "a stream of device ", ordinal_);
  return Status::Ok();
}

Status NcclWire::Make(WireSource::End end, const std::string& id,
                      const std::atomic<bool>& given_up) {
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaSetDevice(ordinal_), "device ", ordinal_);
  JAXMG_RETURN_IF_ERROR(TakeStream());
  ncclUniqueId unique;
  if (id.size() != sizeof(unique)) return Error(Code::kInternal, "no name of a communicator");
  std::memcpy(&unique, id.data(), sizeof(unique));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMostBlocks;
  Status made;
  {
    std::lock_guard<std::timed_mutex> lock(state_->mutex);
    const int rank = end == WireSource::End::kSends ? 0 : 1;
    const ncclResult_t result =
        Get<Nccl>().ncclCommInitRankConfig(&state_->comm, 2, unique, rank, &config);
    // Whoever wants it has a limit of its own.
    made = Complete("a communicator with another process", result, Clock::time_point::max(),
                    [&] { return given_up.load(); });
  }
  if (made.ok()) made = Hello(end, given_up);
  if (made.ok()) return made;
  return Error(made.code(), made.text(),
               ". NCCL takes memory of the GPU beside JAX's own; an XLA_PYTHON_CLIENT_MEM_FRACTION "
               "below the present one leaves more");
}

// The first transfer makes the connection, for which its two sides wait for each other.
Status NcclWire::Hello(WireSource::End end, const std::atomic<bool>& given_up) {
  constexpr size_t kBytes = 16;
  void* data = nullptr;
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaMalloc(&data, kBytes), "GPU ", ordinal_);
  std::shared_ptr<CudaEvent> event;
  JAXMG_RETURN_IF_ERROR(NewCudaEvent(ordinal_, &event));
  {
    std::lock_guard<std::timed_mutex> lock(state_->mutex);
    const ncclResult_t result =
        end == WireSource::End::kSends
            ? Get<Nccl>().ncclSend(data, kBytes, ncclUint8, 1, state_->comm, stream_)
            : Get<Nccl>().ncclRecv(data, kBytes, ncclUint8, 0, state_->comm, stream_);
    JAXMG_RETURN_IF_ERROR(Complete("the first transfer", result, Clock::time_point::max(),
                                   [&] { return given_up.load(); }));
  }
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaEventRecord(event->get(), stream_), "GPU ", ordinal_);
  for (bool passed = false; !passed;) {
    if (given_up) return Aborted();
    JAXMG_RETURN_IF_ERROR(Check());
    JAXMG_RETURN_IF_ERROR(HasPassed(*event, &passed));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return Status::Ok();
}

Status NcclWire::Check() {
  std::unique_lock<std::timed_mutex> lock(state_->mutex, std::try_to_lock);
  if (!lock || state_->aborted) return Status::Ok();
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = Get<Nccl>().ncclCommGetAsyncError(state_->comm, &result);
  if (asked != ncclSuccess) result = asked;
  if (result == ncclInProgress) return Status::Ok();
  JAXMG_CHECK_CUDA(result, "NCCL between GPU ", ordinal_, " and that of another process");
  return Status::Ok();
}

// What spins on the GPU ends as soon as NCCL has set its flag, which comes before all else that it
// does; that may take long, or never end. Nothing of CUDA before it: another communicator's abort
// may wait for the device, and this one's kernels with it.
void NcclWire::Abort(const std::shared_ptr<State>& state) noexcept {
  if (state->aborted.exchange(true)) return;
  (void)Guarded([&] {
    std::thread([state] {
      // Who has the lock finds that it is over, unless it hangs itself.
      const bool locked = state->mutex.try_lock_for(kGrace);
      const ncclComm_t comm = std::exchange(state->comm, nullptr);
      if (locked) state->mutex.unlock();
      if (comm != nullptr) Get<Nccl>().ncclCommAbort(comm);
    }).detach();
    return Status::Ok();
  });
}

class NcclSource : public WireSource {
 public:
  Status Open(std::string* name) override {
    JAXMG_RETURN_IF_ERROR(jaxmg::Open<Nccl>());
    int code = 0;
    JAXMG_CHECK_CUDA(Get<Nccl>().ncclGetVersion(&code), "NCCL");
    if (code < kOldest) {
      return Error(Code::kUnavailable, "NCCL ", VersionOf(code), " is older than ",
                   VersionOf(kOldest));
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
              std::unique_ptr<Wire>* wire) override {
    auto made = std::make_unique<NcclWire>(ordinal);
    const Status status = made->Make(end, id, given_up);
    *wire = std::move(made);
    return status;
  }
};

}  // namespace

WireSource& NcclWires() {
  static auto* source = new NcclSource;
  return *source;
}

}  // namespace jaxmg
