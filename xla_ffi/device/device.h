// Device: the interface of the engine's algorithms to the hardware of one rank. It has streams,
// events, memory and copies. blas.h has tile operations, matrix_solver.h operations on whole
// matrices, eigen_kernels.h the stages of an eigensolver, status_kernels.h the outcome.
//
// Work is enqueued on a rank's streams in program order; events order it between streams, as in
// CUDA. The host device runs every call immediately, and its events do nothing. Pointers refer to
// device memory. Matrices are column-major, as in BLAS and LAPACK.
#ifndef JAXMG_XLA_FFI_DEVICE_DEVICE_H_
#define JAXMG_XLA_FFI_DEVICE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/eigen/eigen_kernels.h"
#include "xla_ffi/device/lu_kernels.h"
#include "xla_ffi/device/matrix_solver.h"
#include "xla_ffi/device/products/matrix_kernels.h"
#include "xla_ffi/device/stacks/stack_elements.h"
#include "xla_ffi/device/stacks/stack_kernels.h"
#include "xla_ffi/device/status_kernels.h"
#include "xla_ffi/device/stream.h"
#include "xla_ffi/device/tuning.h"

namespace jaxmg {

// A range of a stream's work, for timelines (timeline.h).
struct TimelineRange {
  const char* name;
  int64_t index;
  Stream stream;
  double begin, end;  // seconds on the host's steady clock
};

class CallProgress;
class SharedEvent;

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
  // Returns the SharedEvent if other processes can wait for the event, else null.
  virtual const SharedEvent* shared() const { return nullptr; }
  // Returns whether the event is known to have passed, on any device.
  virtual bool passed() const { return false; }
};

class PassedEvent : public Event {
 public:
  bool passed() const override { return true; }
};

// An event that passes when a word of shared memory reaches a count (or exceeds it by at most
// 2^31).
class SharedEvent : public Event {
 public:
  SharedEvent(uint32_t* word, uint32_t count) : word_(word), count_(count) {}
  const SharedEvent* shared() const override { return this; }
  uint32_t* word() const { return word_; }
  uint32_t count() const { return count_; }

 private:
  uint32_t* const word_;
  const uint32_t count_;
};

// Memory that lives as long as this object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 protected:
  explicit Buffer(void* data) : data_(data) {}
  void* data_;
};

// A column-major block of bytes: `columns` columns of `height` bytes, `pitch` bytes apart.
struct Bytes2D {
  void* data;
  size_t pitch;
  size_t height;
  size_t columns;
};

template <typename T>
Bytes2D Block(const T* data, int64_t ld, int64_t rows, int64_t columns) {
  return {const_cast<T*>(data), ld * sizeof(T), rows * sizeof(T), static_cast<size_t>(columns)};
}

// A contiguous block of memory.
struct Bytes {
  void* data;
  size_t size;
};

template <typename T>
using BlasByPrecision = std::array<Blas<T>*, kNumPrecisions>;  // kChosen's entry is never used

class Device {
 public:
  virtual ~Device() = default;

  virtual Tuning tuning() const { return Tuning(); }

  virtual Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) = 0;

  // Allocates host memory for asynchronous copies.
  virtual Status AllocateOnHost(size_t bytes, std::unique_ptr<Buffer>* buffer) {
    return Allocate(bytes, buffer);
  }

  virtual Status NewEvent(std::shared_ptr<Event>* event) = 0;
  virtual Status Record(Stream stream, Event* event) = 0;
  // Makes the stream's later work wait for the event, which may be another device's.
  virtual Status Wait(Stream stream, const Event& event) = 0;

  // Blocks the calling thread until the device has reached the event. Any thread may call it.
  virtual Status AwaitOnHost(const Event&) { return Status::Ok(); }
  // Sets *passed to whether the device has reached the event. May change the current device of a
  // thread that runs no rank.
  virtual Status HasPassed(const Event&, bool* passed) {
    *passed = true;
    return Status::Ok();
  }
  // Record for a SharedEvent: sets its word to its count after the stream's work so far. A word
  // belongs to one stream.
  virtual Status RecordShared(Stream, const SharedEvent&) {
    return Status::Fixed(Code::kInternal, "the device shares no memory with other processes");
  }

  // Allocates words for RecordShared that the process keeps, and sets them to 0.
  virtual Status NewProgressWords(size_t count, uint32_t** words) {
    *words = new uint32_t[count]();
    return Status::Ok();
  }
  // What records the progress of the call (progress.h); null if nobody watches it.
  CallProgress* progress() const { return progress_; }
  void set_progress(CallProgress* progress) { progress_ = progress; }

  // Blocks until all work of all streams is complete.
  virtual Status Synchronize() = 0;

  // Copies a block to another one of equal height and columns. The two must not overlap. The source
  // may be on another device of the same process.
  virtual Status Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) = 0;
  // As Copy, if both blocks are on this device, for large blocks while the device has no other
  // work. Pitches and heights must be multiples of 4, as they are for every dtype.
  virtual Status CopyWithin(Stream stream, const Bytes2D& target, const Bytes2D& source) {
    return Copy(stream, target, source);
  }
  // Copies consecutive pieces of `source` to the parts. All memory is on this device.
  virtual Status CopyToParts(Stream stream, const std::vector<Bytes>& parts, const void* source) {
    const char* from = static_cast<const char*>(source);
    for (const Bytes& part : parts) {
      const auto size = static_cast<int64_t>(part.size);
      JAXMG_RETURN_IF_ERROR(Copy(stream, Block(static_cast<char*>(part.data), size, size, 1),
                                 Block(from, size, size, 1)));
      from += size;
    }
    return Status::Ok();
  }
  // As Copy, from another device, for messages; optimized for small ones.
  virtual Status CopyFromPeer(Stream stream, const Bytes2D& target, const Bytes2D& source) {
    return Copy(stream, target, source);
  }
  virtual Status FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) = 0;

  // Creates the handles of operations, so that a failure occurs before the ranks start to work.
  virtual Status ReserveHandles() { return Status::Ok(); }
  // Creates the streams kLoad and kStore, which may not be used before.
  virtual Status ReserveTransfers() { return Status::Ok(); }

  // Tile operations with products of at least this precision.
  template <typename T>
  Blas<T>& blas(Precision precision = Precision::kHighest);
  template <typename T>
  const BlasByPrecision<T>& by_precision() const {
    return std::get<Operations<T>>(operations_).blas;
  }
  template <typename T>
  MatrixSolver<T>& solver() {
    return *std::get<Operations<T>>(operations_).solver;
  }
  // The kernels of the stages of an eigensolver, if the device has them.
  template <typename T>
  const EigenKernels<T>& eigen() const {
    return std::get<Operations<T>>(operations_).eigen;
  }
  // The kernels of an LU factorization, if the device has them.
  template <typename T>
  LuKernels<T>& lu() {
    return *std::get<Operations<T>>(operations_).lu;
  }
  // Elementwise operations on whole matrices, if the device has them.
  template <typename T>
  MatrixKernels<T>& matrix() {
    return *std::get<Operations<T>>(operations_).matrix;
  }
  // The kernels for stacks of matrices, if the device has them.
  template <typename T>
  StackKernels<T>& stacks() {
    return *std::get<Operations<T>>(operations_).stacks;
  }
  template <typename T>
  StackElements<T>& elements() {
    return *std::get<Operations<T>>(operations_).elements;
  }
  StatusKernels& status() { return *status_; }

  // For timelines: names the work that is enqueued on the stream between the two calls. Pairs may
  // be nested; use Range.
  virtual void BeginRange(Stream, const char* /*name*/, int64_t /*index*/) {}
  virtual void EndRange(Stream) {}

  // Between the two calls the other ranks of the call wait for this one, so it may use the
  // resources that they share: processors, on the host. Use WorksAlone.
  virtual void BeginAlone() {}
  virtual void EndAlone() {}
  // Waits for all ranges so far and returns them.
  virtual std::vector<TimelineRange> TakeRanges() { return {}; }

 protected:
  // Sets the operations that the device offers. A subclass must call Offer for every dtype, with
  // tile operations for each Precision. Several precisions may use the same object.
  void Offer(StatusKernels& status) { status_ = &status; }
  template <typename T>
  void Offer(const BlasByPrecision<T>& blas, MatrixSolver<T>& solver,
             const EigenKernels<T>& eigen = {}, LuKernels<T>* lu = nullptr,
             MatrixKernels<T>* matrix = nullptr, StackKernels<T>* stacks = nullptr,
             StackElements<T>* elements = nullptr) {
    std::get<Operations<T>>(operations_) = {blas, &solver, eigen, lu, matrix, stacks, elements};
  }
  void OfferAllOf(const Device& other) {
    status_ = other.status_;
    operations_ = other.operations_;
  }

 private:
  template <typename T>
  struct Operations {
    BlasByPrecision<T> blas = {};
    MatrixSolver<T>* solver = nullptr;
    EigenKernels<T> eigen;
    LuKernels<T>* lu = nullptr;
    MatrixKernels<T>* matrix = nullptr;
    StackKernels<T>* stacks = nullptr;
    StackElements<T>* elements = nullptr;
  };

  StatusKernels* status_ = nullptr;
  CallProgress* progress_ = nullptr;
  PerDtype<Operations> operations_;
};

template <typename T>
Blas<T>& Device::blas(Precision precision) {
  constexpr bool kLower = std::is_same_v<Real<T>, float>;
  return *std::get<Operations<T>>(operations_).blas[kLower ? static_cast<int>(precision) : 0];
}

// Names the work that is enqueued on a stream during the lifetime of this object.
class Range {
 public:
  Range(Device& device, Stream stream, const char* name, int64_t index)
      : device_(device), stream_(stream) {
    device_.BeginRange(stream_, name, index);
  }
  ~Range() { device_.EndRange(stream_); }
  Range(const Range&) = delete;

 private:
  Device& device_;
  const Stream stream_;
};

// If `alone`, the other ranks of the call wait for this one during the lifetime of this object.
class WorksAlone {
 public:
  WorksAlone(Device& device, bool alone) : device_(alone ? &device : nullptr) {
    if (device_ != nullptr) device_->BeginAlone();
  }
  ~WorksAlone() {
    if (device_ != nullptr) device_->EndAlone();
  }
  WorksAlone(const WorksAlone&) = delete;

 private:
  Device* const device_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_DEVICE_H_
