#include "xla_ffi/device/cuda/runtime/resources.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "xla_ffi/device/constants.h"

// The fatbin of kernels.cu for this CUDA version (cuda_kernels in //third_party/cuda:defs.bzl).
#define JAXMG_JOIN_(a, b, c) a##b##c
#define JAXMG_JOIN(a, b, c) JAXMG_JOIN_(a, b, c)
#define JAXMG_FATBIN JAXMG_JOIN(kernels_cu, JAXMG_CUDA, _fatbin)
extern "C" const unsigned char JAXMG_FATBIN[];

namespace jaxmg {
namespace {

constexpr char kLetters[] = "sdcz";

// A launch of one cluster.
struct ClusterLaunch {
  ClusterLaunch(unsigned blocks, unsigned threads, cudaStream_t stream) {
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {blocks, 1, 1};
    config.gridDimX = blocks;
    config.blockDimX = threads;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  CUlaunchAttribute attribute{};
  CUlaunchConfig config{};
};

// Handles need GPU memory that JAX has not preallocated. Without it, NVIDIA's libraries report that
// they could not be initialized.
template <typename Result>
Status MakeHandle(Result result, const char* function) {
  if (IsSuccess(result)) return Status::Ok();
  return Error(Code::kResourceExhausted, function, " failed: ", Describe(result),
               ". It takes some memory of the GPU outside of JAX's; a lower "
               "XLA_PYTHON_CLIENT_MEM_FRACTION leaves more for it");
}

}  // namespace

class CudaPool {
 public:
  explicit CudaPool(int ordinal) : ordinal_(ordinal) {}

  static CudaPool& Of(int ordinal) {
    static auto* mutex = new std::mutex;
    static auto* pools = new std::map<int, std::unique_ptr<CudaPool>>;
    std::lock_guard<std::mutex> lock(*mutex);
    std::unique_ptr<CudaPool>& pool = (*pools)[ordinal];
    if (!pool) pool = std::make_unique<CudaPool>(ordinal);
    return *pool;
  }

  Status TakeEvent(cudaEvent_t* event) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!events_.empty()) {
        *event = events_.back();
        events_.pop_back();
        return Status::Ok();
      }
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      events_.reserve(++made_events_);  // so that returning it can't fail
    }
    JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                     "an event of device ", ordinal_);
    return Status::Ok();
  }

  void GiveEvent(cudaEvent_t event) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
  }

  // Takes the smallest buffer that fits, or allocates one. There are as many buffers as concurrent
  // uses.
  Status TakeHostMemory(size_t bytes, void** data, size_t* room) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto large = host_memory_.lower_bound(bytes);
    if (large != host_memory_.end()) {
      *room = large->first;
      *data = large->second;
      host_memory_.erase(large);
      return Status::Ok();
    }
    for (*room = size_t{1} << 16; *room < bytes;) *room *= 2;
    JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaHostAlloc(data, *room, cudaHostAllocPortable), *room,
                     " bytes of the host's memory for device ", ordinal_);
    return Status::Ok();
  }

  void GiveHostMemory(void* data, size_t room) {
    std::lock_guard<std::mutex> lock(mutex_);
    host_memory_.emplace(room, data);
  }

  Status TakeParts(std::unique_ptr<CudaResources::Parts>* parts) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!parts_.empty()) {
        *parts = std::move(parts_.back());
        parts_.pop_back();
        return Status::Ok();
      }
    }
    const CudaRuntime& runtime = Get<CudaRuntime>();
    int lowest = 0, highest = 0;
    JAXMG_CHECK_CUDA(runtime.cudaDeviceGetStreamPriorityRange(&lowest, &highest), "device ",
                     ordinal_);
    auto made = std::make_unique<CudaResources::Parts>();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      parts_.reserve(++made_parts_);
      if (stale_flag_ == nullptr) {
        void* flag = nullptr;
        JAXMG_CHECK_CUDA(runtime.cudaHostAlloc(&flag, sizeof(int32_t), cudaHostAllocPortable),
                         "device ", ordinal_);
        stale_flag_ = static_cast<int32_t*>(flag);
        *stale_flag_ = 0;
      }
    }
    cudaEvent_t end = nullptr;
    JAXMG_RETURN_IF_ERROR(TakeEvent(&end));
    made->last_call = std::make_shared<CudaEvent>(this, end);
    for (Stream stream : kStreams) {
      if (stream == Stream::kMain || IsTransfer(stream)) continue;
      const bool between = stream == Stream::kNext || stream == Stream::kSide;
      const int priority = between ? (lowest + highest) / 2 : highest;
      JAXMG_CHECK_CUDA(
          runtime.cudaStreamCreateWithPriority(&made->streams[static_cast<int>(stream)],
                                               cudaStreamNonBlocking, priority),
          "a stream of device ", ordinal_);
    }
    *parts = std::move(made);
    return Status::Ok();
  }

  int32_t* stale_flag() const { return stale_flag_; }

  void GiveParts(std::unique_ptr<CudaResources::Parts> parts) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    parts_.push_back(std::move(parts));
  }

  Status FindKernel(Kernel kernel, char letter, CUfunction* function) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (functions_.empty()) JAXMG_RETURN_IF_ERROR(LoadKernels());
    int column = 0;
    while (kLetters[column] != letter && column < 3) ++column;
    *function = functions_[static_cast<int>(kernel)][column];
    return Status::Ok();
  }

  Status Multiprocessors(int* count) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (multiprocessors_ == 0) {
      JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaDeviceGetAttribute(
                           &multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal_),
                       "the multiprocessors of device ", ordinal_);
    }
    *count = multiprocessors_;
    return Status::Ok();
  }

  // Sets *multiplies to whether the device supports part_products.cuh.
  Status MultipliesParts(bool* multiplies) {
    std::lock_guard<std::mutex> lock(mutex_);
    JAXMG_RETURN_IF_ERROR(FindCapability());
    *multiplies = capability_ == 90;
    return Status::Ok();
  }

  // Sets *blocks to the size of the largest cluster of such blocks that fits on the device.
  Status MostInCluster(Kernel kernel, char letter, unsigned threads, int* blocks) {
    CUfunction function = nullptr;
    JAXMG_RETURN_IF_ERROR(FindKernel(kernel, letter, &function));
    std::lock_guard<std::mutex> lock(mutex_);
    JAXMG_RETURN_IF_ERROR(FindCapability());
    const auto [most, is_new] = clusters_.emplace(function, 1);
    if (is_new && capability_ >= 90) {
      const CudaDriver& driver = Get<CudaDriver>();
      // Some GPUs with clusters support at most 8 blocks.
      driver.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
      for (unsigned size = kLuCluster; size > 1 && most->second == 1; size /= 2) {
        ClusterLaunch launch(size, threads, nullptr);
        int count = 0;
        if (driver.cuOccupancyMaxActiveClusters(&count, function, &launch.config) == CUDA_SUCCESS &&
            count > 0) {
          most->second = static_cast<int>(size);
        }
      }
    }
    *blocks = most->second;
    return Status::Ok();
  }

  Status SharedBytes(int* bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (shared_bytes_ == 0) {
      JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaDeviceGetAttribute(
                           &shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal_),
                       "the shared memory of device ", ordinal_);
    }
    *bytes = shared_bytes_;
    return Status::Ok();
  }

  Status EnablePeer(int peer) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (peer == ordinal_ || peers_.count(peer) > 0) return Status::Ok();
    const CudaRuntime& runtime = Get<CudaRuntime>();
    int possible = 0;
    JAXMG_CHECK_CUDA(runtime.cudaDeviceCanAccessPeer(&possible, ordinal_, peer),
                     "peer access of device ", ordinal_, " to ", peer);
    if (possible != 0) {
      const cudaError_t result = runtime.cudaDeviceEnablePeerAccess(peer, 0);
      if (result == cudaErrorPeerAccessAlreadyEnabled) {
        runtime.cudaGetLastError();
      } else {
        JAXMG_CHECK_CUDA(result, "peer access of device ", ordinal_, " to ", peer);
      }
      if (peer < kMostPeers) reached_ |= uint64_t{1} << peer;
    }
    peers_.insert(peer);
    return Status::Ok();
  }

  bool Reaches(int peer) const {
    return peer >= 0 && peer < kMostPeers && (reached_ >> peer & 1) != 0;
  }

 private:
  static constexpr int kMostPeers = 64;

  Status LoadKernels() {
    const CudaDriver& driver = Get<CudaDriver>();
    CUmodule module = nullptr;
    JAXMG_CHECK_CUDA(driver.cuModuleLoadData(&module, JAXMG_FATBIN), "kernels of device ",
                     ordinal_);
    std::vector<std::array<CUfunction, 4>> functions(kNumKernels);
    for (int kernel = 0; kernel < kNumKernels; ++kernel) {
      const std::string letters = kKernels[kernel].letters;
      for (int column = 0; column < 4; ++column) {
        std::string name = std::string("jaxmg_") + kKernels[kernel].name;
        if (!letters.empty()) {
          if (letters.find(kLetters[column]) == letters.npos) continue;
          name += std::string("_") + kLetters[column];
        }
        JAXMG_CHECK_CUDA(
            driver.cuModuleGetFunction(&functions[kernel][column], module, name.c_str()), "kernel ",
            name, " of device ", ordinal_);
      }
    }
    functions_ = std::move(functions);
    return Status::Ok();
  }

  // Requires mutex_.
  Status FindCapability() {
    if (capability_ != 0) return Status::Ok();
    const CudaRuntime& runtime = Get<CudaRuntime>();
    int major = 0, minor = 0;
    JAXMG_CHECK_CUDA(
        runtime.cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal_),
        "the compute capability of device ", ordinal_);
    JAXMG_CHECK_CUDA(
        runtime.cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal_),
        "the compute capability of device ", ordinal_);
    capability_ = 10 * major + minor;
    return Status::Ok();
  }

  const int ordinal_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> events_;
  std::multimap<size_t, void*> host_memory_;  // by size in bytes
  std::vector<std::unique_ptr<CudaResources::Parts>> parts_;
  size_t made_events_ = 0, made_parts_ = 0;
  int32_t* stale_flag_ = nullptr;  // allocated with the first parts
  std::vector<std::array<CUfunction, 4>> functions_;
  int multiprocessors_ = 0, shared_bytes_ = 0, capability_ = 0;  // set by the first query
  std::map<CUfunction, int> clusters_;  // the maximum number of blocks in a cluster, by kernel
  std::set<int> peers_;
  std::atomic<uint64_t> reached_{0};  // one bit per device: whether access is enabled
};

CudaEvent::~CudaEvent() { pool_->GiveEvent(event_); }

Status CudaResources::Lease(int ordinal, cudaStream_t main,
                            std::unique_ptr<CudaResources>* resources) {
  CudaPool& pool = CudaPool::Of(ordinal);
  bool multiplies_parts = false;
  JAXMG_RETURN_IF_ERROR(pool.MultipliesParts(&multiplies_parts));
  std::unique_ptr<Parts> parts;
  JAXMG_RETURN_IF_ERROR(pool.TakeParts(&parts));
  if (parts->called && parts->last_main != main) {
    // The handles' own memory may still be in use on the stream of the previous call.
    JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaStreamWaitEvent(main, parts->last_call->get(), 0),
                     "device ", ordinal);
  }
  resources->reset(new CudaResources(&pool, std::move(parts), main, multiplies_parts));
  return Status::Ok();
}

CudaResources::CudaResources(CudaPool* pool, std::unique_ptr<Parts> parts, cudaStream_t main,
                             bool multiplies_parts)
    : pool_(pool),
      parts_(std::move(parts)),
      streams_(parts_->streams),
      multiplies_parts_(multiplies_parts) {
  streams_[static_cast<int>(Stream::kMain)] = main;
}

CudaResources::~CudaResources() {
  const cudaStream_t main = stream(Stream::kMain);
  parts_->last_main = main;
  parts_->called = true;
  if (Get<CudaRuntime>().cudaEventRecord(parts_->last_call->get(), main) != cudaSuccess) {
    Get<CudaRuntime>().cudaGetLastError();
  }
  pool_->GiveParts(std::move(parts_));
}

int32_t* CudaResources::StaleFlag() const { return pool_->stale_flag(); }

bool CudaResources::TakeStaleFlag() {
  // Kernels may write the flag at any time.
  return __atomic_exchange_n(pool_->stale_flag(), 0, __ATOMIC_RELAXED) != 0;
}

Status CudaResources::NewEvent(std::shared_ptr<Event>* event) {
  cudaEvent_t taken = nullptr;
  JAXMG_RETURN_IF_ERROR(pool_->TakeEvent(&taken));
  *event = std::make_shared<CudaEvent>(pool_, taken);
  return Status::Ok();
}

Status CudaResources::TakeHostMemory(size_t bytes, std::unique_ptr<Buffer>* buffer) {
  class Lent : public Buffer {
   public:
    Lent(CudaPool* pool, void* data, size_t room) : Buffer(data), pool_(pool), room_(room) {}
    ~Lent() override { pool_->GiveHostMemory(data_, room_); }

   private:
    CudaPool* const pool_;
    const size_t room_;
  };
  void* data = nullptr;
  size_t room = 0;
  JAXMG_RETURN_IF_ERROR(pool_->TakeHostMemory(bytes, &data, &room));
  *buffer = std::make_unique<Lent>(pool_, data, room);
  return Status::Ok();
}

Status CudaResources::ReserveTransfers() {
  for (Stream stream : kStreams) {
    cudaStream_t& made = parts_->streams[static_cast<int>(stream)];
    if (!IsTransfer(stream)) continue;
    if (made == nullptr) {
      JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking),
                       "a stream for transfers");
    }
    streams_[static_cast<int>(stream)] = made;
  }
  return Status::Ok();
}

Status CudaResources::BlasHandle(Stream stream, Precision precision, cublasHandle_t* handle) {
  cublasHandle_t& made = parts_->blas[static_cast<int>(stream)];
  cudaStream_t& set = parts_->blas_stream[static_cast<int>(stream)];
  if (made == nullptr) {
    JAXMG_RETURN_IF_ERROR(Open<Cublas>());
    JAXMG_RETURN_IF_ERROR(MakeHandle(Get<Cublas>().cublasCreate(&made), "cublasCreate"));
  }
  if (set != this->stream(stream)) {  // the caller's stream may differ in each call
    JAXMG_CHECK_CUDA(Get<Cublas>().cublasSetStream(made, this->stream(stream)),
                     "a handle of cuBLAS");
    set = this->stream(stream);
  }
  Precision& now = parts_->precision[static_cast<int>(stream)];
  if (now != precision) {
    JAXMG_CHECK_CUDA(
        Get<Cublas>().cublasSetMathMode(
            made, precision == Precision::kTf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH),
        "a handle of cuBLAS");
    now = precision;
  }
  *handle = made;
  return Status::Ok();
}

Status CudaResources::SolverHandle(Stream stream, cusolverDnHandle_t* handle,
                                   cusolverDnParams_t* params) {
  cusolverDnHandle_t& made = parts_->solver[static_cast<int>(stream)];
  if (made == nullptr) {
    JAXMG_RETURN_IF_ERROR(Open<Cusolver>());
    JAXMG_RETURN_IF_ERROR(MakeHandle(Get<Cusolver>().cusolverDnCreate(&made), "cusolverDnCreate"));
  }
  if (parts_->params == nullptr) {
    JAXMG_CHECK_CUDA(Get<Cusolver>().cusolverDnCreateParams(&parts_->params),
                     "parameters of cuSOLVER");
  }
  cudaStream_t& set = parts_->solver_stream[static_cast<int>(stream)];
  if (set != this->stream(stream)) {
    JAXMG_CHECK_CUDA(Get<Cusolver>().cusolverDnSetStream(made, this->stream(stream)),
                     "a handle of cuSOLVER");
    set = this->stream(stream);
  }
  *handle = made;
  *params = parts_->params;
  return Status::Ok();
}

const SolverBytes* CudaResources::KnownBytes(const SolverCall& call) const {
  const auto found = parts_->solver_bytes.find(call);
  return found == parts_->solver_bytes.end() ? nullptr : &found->second;
}

void CudaResources::KeepBytes(const SolverCall& call, const SolverBytes& bytes) {
  constexpr size_t kMost = 1024;
  if (parts_->solver_bytes.size() >= kMost) parts_->solver_bytes.clear();
  parts_->solver_bytes[call] = bytes;
}

void* CudaResources::HostWorkspace(size_t bytes) {
  if (parts_->host_workspace.size() < bytes) parts_->host_workspace.resize(bytes);
  return parts_->host_workspace.data();
}

namespace {

// Raises the limit of the kernel's dynamic shared memory to this number of bytes.
Status TakeShared(CUfunction function, Kernel kernel, char letter, unsigned bytes) {
  if (bytes == 0) return Status::Ok();
  JAXMG_CHECK_CUDA(
      Get<CudaDriver>().cuFuncSetAttribute(
          function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(bytes)),
      bytes, " bytes of shared memory for kernel ", static_cast<int>(kernel), letter);
  return Status::Ok();
}

}  // namespace

Status CudaResources::Launch(Kernel kernel, char letter, Stream stream, unsigned blocks, unsigned x,
                             unsigned y, void** arguments, unsigned shared_bytes) {
  CUfunction function = nullptr;
  JAXMG_RETURN_IF_ERROR(pool_->FindKernel(kernel, letter, &function));
  JAXMG_RETURN_IF_ERROR(TakeShared(function, kernel, letter, shared_bytes));
  JAXMG_CHECK_CUDA(Get<CudaDriver>().cuLaunchKernel(function, blocks, 1, 1, x, y, 1, shared_bytes,
                                                    this->stream(stream), arguments, nullptr),
                   "kernel ", static_cast<int>(kernel), letter, " in ", blocks, " blocks");
  return Status::Ok();
}

Status CudaResources::LaunchCooperative(Kernel kernel, char letter, Stream stream, unsigned blocks,
                                        unsigned threads, void** arguments, unsigned shared_bytes) {
  CUfunction function = nullptr;
  JAXMG_RETURN_IF_ERROR(pool_->FindKernel(kernel, letter, &function));
  JAXMG_RETURN_IF_ERROR(TakeShared(function, kernel, letter, shared_bytes));
  JAXMG_CHECK_CUDA(
      Get<CudaDriver>().cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1,
                                                  shared_bytes, this->stream(stream), arguments),
      "kernel ", static_cast<int>(kernel), letter, " in ", blocks, " blocks at the same time");
  return Status::Ok();
}

Status CudaResources::LaunchCluster(Kernel kernel, char letter, Stream stream, unsigned blocks,
                                    unsigned threads, void** arguments) {
  CUfunction function = nullptr;
  JAXMG_RETURN_IF_ERROR(pool_->FindKernel(kernel, letter, &function));
  ClusterLaunch launch(blocks, threads, this->stream(stream));
  JAXMG_CHECK_CUDA(Get<CudaDriver>().cuLaunchKernelEx(&launch.config, function, arguments, nullptr),
                   "kernel ", static_cast<int>(kernel), letter, " in a cluster of ", blocks,
                   " blocks");
  return Status::Ok();
}

Status CudaResources::MostInCluster(Kernel kernel, char letter, unsigned threads,
                                    int* blocks) const {
  return pool_->MostInCluster(kernel, letter, threads, blocks);
}

Status CudaResources::Multiprocessors(int* count) const { return pool_->Multiprocessors(count); }
Status CudaResources::SharedBytes(int* bytes) const { return pool_->SharedBytes(bytes); }

Status NewCudaEvent(int ordinal, std::shared_ptr<CudaEvent>* event) {
  CudaPool& pool = CudaPool::Of(ordinal);
  cudaEvent_t taken = nullptr;
  JAXMG_RETURN_IF_ERROR(pool.TakeEvent(&taken));
  *event = std::make_shared<CudaEvent>(&pool, taken);
  return Status::Ok();
}

Status HasCudaEventPassed(const Event& event, bool* passed) {
  const CudaRuntime& runtime = Get<CudaRuntime>();
  const cudaError_t result = runtime.cudaEventQuery(static_cast<const CudaEvent&>(event).get());
  *passed = result == cudaSuccess;
  if (result == cudaErrorNotReady) {
    runtime.cudaGetLastError();
    return Status::Ok();
  }
  JAXMG_CHECK_CUDA(result, "an event");
  return Status::Ok();
}

Status EnablePeerAccess(int ordinal, int peer) {
  CurrentDevice current;
  JAXMG_RETURN_IF_ERROR(current.Set(ordinal));
  return CudaPool::Of(ordinal).EnablePeer(peer);
}

bool ReachedByKernels(int ordinal, const void* data) {
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  unsigned legacy = 0;
  int owner = -1;
  void* values[] = {&legacy, &owner};
  if (Get<CudaDriver>().cuPointerGetAttributes(
          2, attributes, values, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) {
    return false;
  }
  return legacy != 0 && (owner == ordinal || CudaPool::Of(ordinal).Reaches(owner));
}

Status PeerMatrix(std::vector<std::vector<bool>>* matrix) {
  JAXMG_RETURN_IF_ERROR(Open<CudaDriver>());
  JAXMG_RETURN_IF_ERROR(Open<CudaRuntime>());
  const CudaRuntime& runtime = Get<CudaRuntime>();
  int count = 0;
  JAXMG_CHECK_CUDA(runtime.cudaGetDeviceCount(&count), "the devices of this process");
  matrix->assign(count, std::vector<bool>(count, true));
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < count; ++j) {
      int possible = 1;
      if (i != j) {
        JAXMG_CHECK_CUDA(runtime.cudaDeviceCanAccessPeer(&possible, i, j), "devices ", i, " and ",
                         j);
      }
      (*matrix)[i][j] = possible != 0;
    }
  }
  return Status::Ok();
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0 && Get<CudaRuntime>().cudaSetDevice(before_) != cudaSuccess) {
    Get<CudaRuntime>().cudaGetLastError();
  }
}

Status CurrentDevice::Set(int ordinal) {
  const CudaRuntime& runtime = Get<CudaRuntime>();
  if (before_ < 0) JAXMG_CHECK_CUDA(runtime.cudaGetDevice(&before_), "device ", ordinal);
  JAXMG_CHECK_CUDA(runtime.cudaSetDevice(ordinal), "device ", ordinal);
  return Status::Ok();
}

}  // namespace jaxmg
