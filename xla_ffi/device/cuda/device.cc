#include "xla_ffi/device/cuda/device.h"

#include <algorithm>
#include <utility>

#include "xla_ffi/device/cuda/runtime/memory.h"

namespace jaxmg {
namespace {

bool Contiguous(const Bytes2D& target, const Bytes2D& source) {
  return source.columns == 1 || (source.pitch == source.height && target.pitch == target.height);
}

Status WordOnDevice(const SharedEvent& event, CUdeviceptr* word) {
  JAXMG_CHECK_CUDA(Get<CudaDriver>().cuMemHostGetDevicePointer(word, event.word(), 0),
                   "a word by which processes signal each other");
  return Status::Ok();
}

}  // namespace

Status CudaDevice::New(int ordinal, cudaStream_t main, Allocator allocate,
                       std::unique_ptr<CudaDevice>* device) {
  std::unique_ptr<CudaResources> resources;
  JAXMG_RETURN_IF_ERROR(CudaResources::Lease(ordinal, main, &resources));
  device->reset(new CudaDevice(ordinal, std::move(allocate), std::move(resources)));
  return Status::Ok();
}

CudaDevice::CudaDevice(int ordinal, Allocator allocate, std::unique_ptr<CudaResources> resources)
    : ordinal_(ordinal),
      allocate_(std::move(allocate)),
      resources_(std::move(resources)),
      status_kernels_(*this),
      of_dtype_(*this, *this, *this, *this) {
  Offer(status_kernels_);
  std::apply(
      [this](auto&... each) {
        (Offer(each.by_precision(), each.solver, each.eigen(), &each.lu, &each.matrix, &each.stacks,
               &each.elements),
         ...);
      },
      of_dtype_);
  if (TimelineWanted()) timeline_ = std::make_unique<CudaTimeline>(stream(Stream::kMain));
}

std::vector<TimelineRange> CudaDevice::TakeRanges() {
  if (!timeline_ || !Synchronize().ok()) return {};
  return timeline_->Take();
}

Status CudaDevice::Scratch(Stream stream, size_t bytes, void** data) {
  ScratchSpace& space = scratch_[static_cast<int>(stream)];
  if (bytes > space.bytes) {
    std::unique_ptr<Buffer> buffer;
    JAXMG_RETURN_IF_ERROR(Allocate(bytes, &buffer));
    space = {buffer->data(), bytes};
  }
  *data = space.data;
  return Status::Ok();
}

Status CudaDevice::Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) {
  return AllocateFor(Readers::kAllRanks, bytes, buffer);
}

Status CudaDevice::AllocateForThisRank(size_t bytes, std::unique_ptr<Buffer>* buffer) {
  return AllocateFor(Readers::kThisRank, bytes, buffer);
}

Status CudaDevice::AllocateFor(Readers readers, size_t bytes, std::unique_ptr<Buffer>* buffer) {
  // The allocator owns the memory.
  struct Borrowed : Buffer {
    explicit Borrowed(void* data) : Buffer(data) {}
  };
  void* data = nullptr;
  JAXMG_RETURN_IF_ERROR(allocate_(std::max<size_t>(bytes, 1), readers, &data));
  *buffer = std::make_unique<Borrowed>(data);
  return Status::Ok();
}

Status CudaDevice::AllocateOnHost(size_t bytes, std::unique_ptr<Buffer>* buffer) {
  return resources_->TakeHostMemory(bytes, buffer);
}

Status CudaDevice::NewEvent(std::shared_ptr<Event>* event) { return resources_->NewEvent(event); }

Status CudaDevice::Record(Stream stream, Event* event) {
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaEventRecord(static_cast<CudaEvent*>(event)->get(),
                                                      this->stream(stream)),
                   "an event of device ", ordinal_);
  return Status::Ok();
}

Status CudaDevice::Wait(Stream stream, const Event& event) {
  if (event.passed()) return Status::Ok();
  if (const SharedEvent* shared = event.shared()) {
    CUdeviceptr word = 0;
    JAXMG_RETURN_IF_ERROR(WordOnDevice(*shared, &word));
    JAXMG_CHECK_CUDA(Get<CudaDriver>().cuStreamWaitValue32(
                         this->stream(stream), word, shared->count(), CU_STREAM_WAIT_VALUE_GEQ),
                     "a stream of device ", ordinal_);
    return Status::Ok();
  }
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaStreamWaitEvent(
                       this->stream(stream), static_cast<const CudaEvent&>(event).get(), 0),
                   "a stream of device ", ordinal_);
  return Status::Ok();
}

Status CudaDevice::AwaitOnHost(const Event& event) {
  CurrentDevice current;
  JAXMG_RETURN_IF_ERROR(current.Set(ordinal_));
  JAXMG_CHECK_CUDA(
      Get<CudaRuntime>().cudaEventSynchronize(static_cast<const CudaEvent&>(event).get()),
      "an event of device ", ordinal_);
  return Status::Ok();
}

// Doesn't restore the previous device, because that would create a context on it in a process that
// may never use it.
Status CudaDevice::HasPassed(const Event& event, bool* passed) {
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaSetDevice(ordinal_), "device ", ordinal_);
  return HasCudaEventPassed(event, passed);
}

Status CudaDevice::RecordShared(Stream stream, const SharedEvent& event) {
  CUdeviceptr word = 0;
  JAXMG_RETURN_IF_ERROR(WordOnDevice(event, &word));
  JAXMG_CHECK_CUDA(
      Get<CudaDriver>().cuStreamWriteValue32(this->stream(stream), word, event.count(), 0),
      "a stream of device ", ordinal_);
  return Status::Ok();
}

Status CudaDevice::NewProgressWords(size_t count, uint32_t** words) {
  void* data = nullptr;
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaHostAlloc(&data, count * sizeof(uint32_t),
                                                    cudaHostAllocPortable | cudaHostAllocMapped),
                   "the host's memory for the progress of calls");
  *words = static_cast<uint32_t*>(data);
  std::fill_n(*words, count, 0u);
  return Status::Ok();
}

Status CudaDevice::Synchronize() {
  for (Stream stream : kStreams) {
    if (IsTransfer(stream) && this->stream(stream) == nullptr) continue;
    JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaStreamSynchronize(this->stream(stream)),
                     "the work so far on device ", ordinal_);
  }
  return Status::Ok();
}

Status CudaDevice::IsDone(Stream stream, bool* done) {
  const cudaError_t result = Get<CudaRuntime>().cudaStreamQuery(this->stream(stream));
  *done = result == cudaSuccess;
  if (result == cudaErrorNotReady) {
    Get<CudaRuntime>().cudaGetLastError();
    return Status::Ok();
  }
  JAXMG_CHECK_CUDA(result, "the work so far on device ", ordinal_);
  return Status::Ok();
}

Status CudaDevice::Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) {
  const CudaRuntime& runtime = Get<CudaRuntime>();
  if (source.height == 0 || source.columns == 0) return Status::Ok();
  if (Contiguous(target, source)) {
    JAXMG_CHECK_CUDA(
        runtime.cudaMemcpyAsync(target.data, source.data, source.height * source.columns,
                                cudaMemcpyDefault, this->stream(stream)),
        "a copy of ", source.height * source.columns, " bytes to device ", ordinal_);
    return Status::Ok();
  }
  JAXMG_CHECK_CUDA(
      runtime.cudaMemcpy2DAsync(target.data, target.pitch, source.data, source.pitch, source.height,
                                source.columns, cudaMemcpyDefault, this->stream(stream)),
      "a copy of ", source.columns, " columns of ", source.height, " bytes to device ", ordinal_);
  return Status::Ok();
}

// A kernel takes half the time of a copy engine, which needs time to start after being idle.
Status CudaDevice::CopyFromPeer(Stream stream, const Bytes2D& target, const Bytes2D& source) {
  constexpr size_t kSmall = size_t{256} << 10;
  const size_t bytes = source.height * source.columns;
  if (bytes > kSmall || !Contiguous(target, source) ||
      !(IsSharedSegment(source.data) || ReachedByKernels(ordinal_, source.data))) {
    return Copy(stream, target, source);
  }
  return CopyWithin(stream, {target.data, bytes, bytes, 1}, {source.data, bytes, bytes, 1});
}

Status CudaDevice::CopyWithin(Stream stream, const Bytes2D& target, const Bytes2D& source) {
  if (source.height == 0 || source.columns == 0) return Status::Ok();
  const int64_t segments = (source.height + kCopySegment - 1) / kCopySegment;
  const auto blocks = static_cast<unsigned>(segments * static_cast<int64_t>(source.columns));
  void* to = target.data;
  const void* from = source.data;
  int64_t to_pitch = target.pitch, from_pitch = source.pitch, height = source.height;
  void* pointers[] = {&to, &to_pitch, &from, &from_pitch, &height};
  return resources_->Launch(Kernel::copy_columns, 's', stream, blocks, kThreads, 1, pointers);
}

Status CudaDevice::CopyToParts(Stream stream, const std::vector<Bytes>& parts, const void* source) {
  const char* from = static_cast<const char*>(source);
  for (size_t first = 0; first < parts.size(); first += kMostParts) {
    const size_t count = std::min<size_t>(parts.size() - first, kMostParts);
    PartsToCopy some = {};
    size_t largest = 0;
    for (size_t i = 0; i < count; ++i) {
      some.to[i] = static_cast<char*>(parts[first + i].data);
      some.starts[i + 1] = some.starts[i] + static_cast<int64_t>(parts[first + i].size);
      largest = std::max(largest, parts[first + i].size);
    }
    const auto segments = static_cast<int64_t>((largest + kCopySegment - 1) / kCopySegment);
    JAXMG_RETURN_IF_ERROR(LaunchBlocks(Kernel::copy_to_parts, 's', stream,
                                       static_cast<int64_t>(count) * segments, kThreads, some,
                                       segments, from));
    from += some.starts[count];
  }
  return Status::Ok();
}

Status CudaDevice::CopyToHost(Stream stream, void* target, const void* source, size_t bytes) {
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost,
                                                      this->stream(stream)),
                   bytes, " bytes from device ", ordinal_);
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaStreamSynchronize(this->stream(stream)), bytes,
                   " bytes from device ", ordinal_);
  return Status::Ok();
}

Status CudaDevice::CopyFromHost(Stream stream, void* target, const void* source, size_t bytes) {
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice,
                                                      this->stream(stream)),
                   bytes, " bytes to device ", ordinal_);
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaStreamSynchronize(this->stream(stream)), bytes,
                   " bytes to device ", ordinal_);
  return Status::Ok();
}

Status CudaDevice::FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) {
  return LaunchElements(Kernel::fill_int32, 's', stream, count, data, count, value);
}

Status CudaDevice::ReserveHandles() {
  for (Stream stream : kStreams) {
    if (IsTransfer(stream)) continue;
    cublasHandle_t handle;
    JAXMG_RETURN_IF_ERROR(resources_->BlasHandle(stream, Precision::kHighest, &handle));
  }
  cusolverDnHandle_t solver;
  cusolverDnParams_t params;
  return resources_->SolverHandle(Stream::kPanel, &solver, &params);
}

Status CudaDevice::ReserveTransfers() { return resources_->ReserveTransfers(); }

}  // namespace jaxmg
