// CudaDevice: an NVIDIA GPU as a Device. It uses CUDA's streams and events, cuBLAS and cuSOLVER on
// tiles, and our own kernels (kernels.cu). Each call creates one, on pooled resources.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_DEVICE_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_DEVICE_H_

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/blas.h"
#include "xla_ffi/device/cuda/eigen/chase.h"
#include "xla_ffi/device/cuda/eigen/secular.h"
#include "xla_ffi/device/cuda/lu/lu.h"
#include "xla_ffi/device/cuda/products/matrix.h"
#include "xla_ffi/device/cuda/qr/panel.h"
#include "xla_ffi/device/cuda/runtime/resources.h"
#include "xla_ffi/device/cuda/runtime/timeline.h"
#include "xla_ffi/device/cuda/runtime/type.h"
#include "xla_ffi/device/cuda/solver.h"
#include "xla_ffi/device/cuda/stacks/elements.h"
#include "xla_ffi/device/cuda/stacks/stacks.h"
#include "xla_ffi/device/cuda/status.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/tunings.h"

namespace jaxmg {

class CudaDevice : public Device {
 public:
  // `main` is the caller's stream. `allocate` returns device memory that is valid until the call
  // returns on the host; by then `main` must contain, or wait for, all work that uses it. The
  // device must be the calling thread's current one during the lifetime of this object.
  enum class Readers { kAllRanks, kThisRank };
  using Allocator = std::function<Status(size_t bytes, Readers readers, void** data)>;
  static Status New(int ordinal, cudaStream_t main, Allocator allocate,
                    std::unique_ptr<CudaDevice>* device);

  int ordinal() const { return ordinal_; }
  // See CudaStatus.
  void ExpectCoordinates(const int32_t* coordinates, int32_t rank, int32_t group) {
    status_kernels_.ExpectCoordinates(coordinates, rank, group);
  }
  CudaResources& resources() { return *resources_; }
  cudaStream_t stream(Stream stream) const { return resources_->stream(stream); }

  // As Allocate, but always in the runtime's memory: ranks of other processes can't access it, and
  // it uses no shared segment.
  Status AllocateForThisRank(size_t bytes, std::unique_ptr<Buffer>* buffer);

  // Sets *done to whether all work of the stream is complete.
  Status IsDone(Stream stream, bool* done);

  // Returns memory for one operation on the stream; the next operation may reuse it.
  Status Scratch(Stream stream, size_t bytes, void** data);

  // Launch a kernel: LaunchElements for `count` elements, LaunchOne in one block, LaunchBlocks in
  // the given number of blocks and threads, others with `threads` threads per row, or for each tile
  // of a matrix.
  template <typename... Arguments>
  Status LaunchElements(Kernel kernel, char letter, Stream stream, int64_t count,
                        Arguments... arguments);
  template <typename... Arguments>
  Status LaunchOne(Kernel kernel, char letter, Stream stream, Arguments... arguments);
  template <typename... Arguments>
  Status LaunchBlocks(Kernel kernel, char letter, Stream stream, int64_t blocks, int threads,
                      Arguments... arguments);
  template <typename... Arguments>
  Status LaunchRows(Kernel kernel, char letter, Stream stream, int64_t rows, int of_block, int team,
                    Arguments... arguments);
  template <typename... Arguments>
  Status LaunchTiles(Kernel kernel, char letter, Stream stream, int64_t m, int64_t n,
                     Arguments... arguments);

  // As LaunchBlocks, with this number of bytes of dynamic shared memory per block.
  template <typename... Arguments>
  Status LaunchShared(Kernel kernel, char letter, Stream stream, int64_t blocks, int threads,
                      int shared_bytes, Arguments... arguments);

  // A cooperative launch (CudaResources).
  template <typename... Arguments>
  Status LaunchCooperative(Kernel kernel, char letter, Stream stream, int64_t blocks, int threads,
                           int shared_bytes, Arguments... arguments);

  // Copies between device and host memory.
  Status CopyToHost(Stream stream, void* target, const void* source, size_t bytes);
  Status CopyFromHost(Stream stream, void* target, const void* source, size_t bytes);

  // Only products of parts by our own kernels are as accurate as float32 products.
  Tuning tuning() const override {
    Tuning tuning = CudaTuning();
    if (!resources_->multiplies_parts()) {
      tuning.products.parts_order = 0;
      tuning.products.scales = false;
    }
    return tuning;
  }

  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override;
  Status AllocateOnHost(size_t bytes, std::unique_ptr<Buffer>* buffer) override;
  Status NewEvent(std::shared_ptr<Event>* event) override;
  Status Record(Stream stream, Event* event) override;
  Status Wait(Stream stream, const Event& event) override;
  Status AwaitOnHost(const Event& event) override;
  Status HasPassed(const Event& event, bool* passed) override;
  Status RecordShared(Stream stream, const SharedEvent& event) override;
  Status NewProgressWords(size_t count, uint32_t** words) override;
  Status Synchronize() override;
  Status Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) override;
  Status CopyWithin(Stream stream, const Bytes2D& target, const Bytes2D& source) override;
  Status CopyToParts(Stream stream, const std::vector<Bytes>& parts, const void* source) override;
  Status CopyFromPeer(Stream stream, const Bytes2D& target, const Bytes2D& source) override;
  Status FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) override;
  Status ReserveHandles() override;
  Status ReserveTransfers() override;
  void BeginRange(Stream stream, const char* name, int64_t index) override {
    if (timeline_) timeline_->Begin(stream, this->stream(stream), name, index);
  }
  void EndRange(Stream stream) override {
    if (timeline_) timeline_->End(stream, this->stream(stream));
  }
  std::vector<TimelineRange> TakeRanges() override;

  // The status kernels with their additional functions.
  CudaStatus& cuda_status() { return status_kernels_; }

 private:
  CudaDevice(int ordinal, Allocator allocate, std::unique_ptr<CudaResources> resources);
  Status AllocateFor(Readers readers, size_t bytes, std::unique_ptr<Buffer>* buffer);

  template <typename T>
  struct OfDtype {
    explicit OfDtype(CudaDevice& device)
        : blas(device, Precision::kHighest),
          tf32(device, Precision::kTf32),
          bf16x3(device, Precision::kBf16x3),
          bf16x6(device, Precision::kBf16x6),
          f16x3(device, Precision::kF16x3),
          scaled_f16x3(device, Precision::kScaledF16x3),
          solver(device),
          panel(device),
          chase(device, blas),
          secular(device),
          lu(device, blas),
          matrix(device),
          stacks(device, blas),
          elements(device) {}
    BlasByPrecision<T> by_precision() {
      return {&blas, &tf32, &bf16x3, &bf16x6, &f16x3, &blas, &scaled_f16x3};
    }
    EigenKernels<T> eigen() { return {&panel, &chase, &secular}; }

    CudaBlas<T> blas, tf32, bf16x3, bf16x6, f16x3, scaled_f16x3;
    CudaSolver<T> solver;
    CudaPanel<T> panel;
    CudaChase<T> chase;
    CudaSecular<T> secular;
    CudaLu<T> lu;
    CudaMatrix<T> matrix;
    CudaStacks<T> stacks;
    CudaElements<T> elements;
  };
  struct ScratchSpace {
    void* data = nullptr;
    size_t bytes = 0;
  };

  const int ordinal_;
  const Allocator allocate_;
  std::unique_ptr<CudaResources> resources_;
  std::array<ScratchSpace, kNumStreams> scratch_;
  std::unique_ptr<CudaTimeline> timeline_;  // null unless JAXMG_TRACE is set
  CudaStatus status_kernels_;
  PerDtype<OfDtype> of_dtype_;
};

template <typename... Arguments>
Status CudaDevice::LaunchElements(Kernel kernel, char letter, Stream stream, int64_t count,
                                  Arguments... arguments) {
  if (count <= 0) return Status::Ok();
  // Enough blocks to fill any GPU; with more elements, threads process several each.
  constexpr int64_t kMostBlocks = 4096;
  const int64_t blocks = std::min<int64_t>((count + kThreads - 1) / kThreads, kMostBlocks);
  void* pointers[] = {&arguments...};
  return resources_->Launch(kernel, letter, stream, static_cast<unsigned>(blocks), kThreads, 1,
                            pointers);
}

template <typename... Arguments>
Status CudaDevice::LaunchOne(Kernel kernel, char letter, Stream stream, Arguments... arguments) {
  void* pointers[] = {&arguments...};
  return resources_->Launch(kernel, letter, stream, 1, kThreads, 1, pointers);
}

template <typename... Arguments>
Status CudaDevice::LaunchBlocks(Kernel kernel, char letter, Stream stream, int64_t blocks,
                                int threads, Arguments... arguments) {
  if (blocks <= 0) return Status::Ok();
  if (blocks > INT32_MAX) {
    return Error(Code::kInvalidArgument, blocks, " blocks are too many for a GPU");
  }
  void* pointers[] = {&arguments...};
  return resources_->Launch(kernel, letter, stream, static_cast<unsigned>(blocks), threads, 1,
                            pointers);
}

template <typename... Arguments>
Status CudaDevice::LaunchRows(Kernel kernel, char letter, Stream stream, int64_t rows, int of_block,
                              int team, Arguments... arguments) {
  void* pointers[] = {&arguments...};
  return resources_->Launch(kernel, letter, stream,
                            static_cast<unsigned>((rows + of_block - 1) / of_block),
                            of_block * team, 1, pointers);
}

template <typename... Arguments>
Status CudaDevice::LaunchTiles(Kernel kernel, char letter, Stream stream, int64_t m, int64_t n,
                               Arguments... arguments) {
  const int64_t blocks = ((m + kTileEdge - 1) / kTileEdge) * ((n + kTileEdge - 1) / kTileEdge);
  if (blocks == 0) return Status::Ok();
  if (blocks > INT32_MAX) {
    return Error(Code::kInvalidArgument, "a matrix of ", m, " x ", n, " is too large for a GPU");
  }
  void* pointers[] = {&arguments...};
  return resources_->Launch(kernel, letter, stream, static_cast<unsigned>(blocks), kTileEdge,
                            kTileRows, pointers);
}

template <typename... Arguments>
Status CudaDevice::LaunchShared(Kernel kernel, char letter, Stream stream, int64_t blocks,
                                int threads, int shared_bytes, Arguments... arguments) {
  if (blocks <= 0) return Status::Ok();
  void* pointers[] = {&arguments...};
  return resources_->Launch(kernel, letter, stream, static_cast<unsigned>(blocks), threads, 1,
                            pointers, shared_bytes);
}

template <typename... Arguments>
Status CudaDevice::LaunchCooperative(Kernel kernel, char letter, Stream stream, int64_t blocks,
                                     int threads, int shared_bytes, Arguments... arguments) {
  void* pointers[] = {&arguments...};
  return resources_->LaunchCooperative(kernel, letter, stream, static_cast<unsigned>(blocks),
                                       threads, pointers, static_cast<unsigned>(shared_bytes));
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_DEVICE_H_
