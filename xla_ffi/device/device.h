// Device: what the engine's algorithms ask of the hardware that one rank drives: streams, events,
// memory and copies here, tile operations in blas.h, whole matrices in matrix_solver.h, stages of
// an eigensolver in eigen_kernels.h, the outcome in status_kernels.h.
//
// Work is enqueued on a rank's streams in program order and orders itself against other streams
// through events, as CUDA does. The host device runs every call at once; its events do nothing.
// Pointers are device memory. Matrices are column-major, as in BLAS and LAPACK.
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
#include "xla_ffi/device/eigen_kernels.h"
#include "xla_ffi/device/lu_kernels.h"
#include "xla_ffi/device/matrix_solver.h"
#include "xla_ffi/device/status_kernels.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// A range of a stream's work, for timelines (timeline.h).
struct TimelineRange {
  const char* name;
  int64_t index;
  Stream stream;
  double begin, end;  // seconds on the host's steady clock
};

class SharedEvent;

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
  // For what other processes may wait for too.
  virtual const SharedEvent* shared() const { return nullptr; }
  // It has passed, whatever device asks.
  virtual bool passed() const { return false; }
};

class PassedEvent : public Event {
 public:
  bool passed() const override { return true; }
};

// That a word of memory which processes share has come to a count, or to one that is at most 2^31
// beyond it.
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

// How algorithms are best laid out on a device; measured, not derived.
struct Tuning {
  // A panel is solved in place by one TRSM (0), or out of place in pieces of this many columns:
  // what is before a piece is subtracted by a product, and SolveRight does the rest.
  int64_t panel_block = 0;
  // Panels are read where their owner made them, which needs memory that ranks share and panels
  // that are solved in place.
  bool borrow_panels = false;
  // Panels pass from rank to rank while they are made, rather than from their owner to all.
  bool chain = false;
  // Columns that one product of a trailing update spans, where as many lie side by side; their rows
  // of the panel are gathered first. 0: one product a tile, of the panel as it is.
  int64_t group_columns = 0;
  // The columns of panels that one update of the trailing matrix takes in, where panels are out of
  // place and tiles narrower than that: deeper products, for more workspace.
  int64_t update_depth = 0;
  // Where the caller names no tile width: this one, narrower where a rank would get fewer tiles
  // than this. Many share the trailing matrix evenly; each is a step of the critical path.
  int64_t usual_tile = 256;
  int64_t least_tiles = 4;
  // Where the caller names no tile width, the orders up to which one rank factors a matrix as a
  // single tile, and up to which several ranks leave it to one of them: to solve, and to invert. Of
  // real dtypes; complex ones have more operations an element, so for them 3/5 of the first two.
  int64_t whole_order = 0;
  int64_t gather_to_solve = 0;
  int64_t gather_to_invert = 0;
  // The order from which three products of float16 parts stand for one of float32 where nothing
  // else is asked for, being faster and as accurate; 0: never. 3/5 of it for complex64.
  int64_t parts_order = 0;
  // What redistribution sends at a time. On the host a chunk should stay in a cache until it is
  // taken; between GPUs it should be large beside the latency of a copy.
  int64_t exchange_bytes = int64_t{512} << 10;
  // What is multiplied from the left again and again goes so many bytes of columns at a time, which
  // stay in a cache meanwhile. 0: all columns at once.
  int64_t resident_bytes = 0;
  // The order of diagonal blocks that are inverted to be substituted with: by products, which a GPU
  // is through with sooner than with a TRSV. 0: none.
  int64_t inverse_order = 0;
  // The orders from which several ranks share an eigenproblem, rather than leave it to one of them
  // (0: never): real with eigenvectors, without, and complex. And those from which one rank that is
  // alone goes the same way, rather than the device's own solver's.
  int64_t spread_eigen = 0;
  int64_t spread_values = 0;
  int64_t spread_complex = 0;
  int64_t stages_alone = 0;
  void ShareEigenproblemsFrom(int64_t order) {
    spread_eigen = spread_values = spread_complex = stages_alone = order;
  }
  // The subdiagonals of the band that they reduce it to, and of complex128's.
  int64_t band_width = 32;
  int64_t band_width_complex128 = 32;
  // The columns of the blocks in which a rank that is alone reduces its matrix to a band: only what
  // is below a block's diagonal is updated, which halves the operations of updates and makes
  // products with the matrix two. 0: all of the matrix at once.
  int64_t triangle_columns = 0;
  // Sweeps over the band whose reflectors are applied at once: products are deeper the more there
  // are, and are 1 + sweep_group / band_width times as many. And how many sweeps are chased, and
  // sent, at once: enough to keep busy what chases many at a time.
  int64_t sweep_group = 16;
  int64_t sweep_bundle = 16;
  // What Syevd needs beside its operands, in multiples of the matrix, about: with eigenvectors and
  // without.
  double syevd_matrices = 2;
  double syevd_value_matrices = 0;
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

template <typename T>
using BlasByPrecision = std::array<Blas<T>*, kNumPrecisions>;

class Device {
 public:
  virtual ~Device() = default;

  virtual Tuning tuning() const { return Tuning(); }

  virtual Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) = 0;

  // Memory of the host's, from and to which the device copies while the host goes on.
  virtual Status AllocateOnHost(size_t bytes, std::unique_ptr<Buffer>* buffer) {
    return Allocate(bytes, buffer);
  }

  virtual Status NewEvent(std::shared_ptr<Event>* event) = 0;
  virtual Status Record(Stream stream, Event* event) = 0;
  // The stream's later work starts after the event, which may be another device's.
  virtual Status Wait(Stream stream, const Event& event) = 0;

  // Blocks the calling thread, which may be any, until the device has come to the event.
  virtual Status AwaitOnHost(const Event&) { return Status::Ok(); }
  // Whether the device has come to an event of its own. A thread that is no rank's has this device
  // for its current one from then on.
  virtual Status HasPassed(const Event&, bool* passed) {
    *passed = true;
    return Status::Ok();
  }
  // Record for a SharedEvent: its word comes to its count after the stream's work so far. A word
  // belongs to one stream.
  virtual Status RecordShared(Stream, const SharedEvent&) {
    return Status::Fixed(Code::kInternal, "the device shares no memory with other processes");
  }

  // Blocks until all work of all streams is done.
  virtual Status Synchronize() = 0;

  // Copies between blocks of equal height and columns that do not overlap. The source may be on
  // another device of the same process.
  virtual Status Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) = 0;
  // The same where both are this device's, for large blocks while it has nothing else to compute.
  // Pitches and heights are multiples of 4, as those of every dtype.
  virtual Status CopyWithin(Stream stream, const Bytes2D& target, const Bytes2D& source) {
    return Copy(stream, target, source);
  }
  // Copy where the source is another device's, as a message is: small ones at once.
  virtual Status CopyFromPeer(Stream stream, const Bytes2D& target, const Bytes2D& source) {
    return Copy(stream, target, source);
  }
  virtual Status FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) = 0;

  // Takes what operations need beside memory, as Blas::ReservePotrf does what that one needs.
  virtual Status ReserveHandles() { return Status::Ok(); }

  // Tile operations, with products of that precision or of a higher one.
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
  // Of an eigensolver's stages, where the device has them.
  template <typename T>
  const EigenKernels<T>& eigen() const {
    return std::get<Operations<T>>(operations_).eigen;
  }
  // Of an LU factorization, where the device has them.
  template <typename T>
  LuKernels<T>& lu() {
    return *std::get<Operations<T>>(operations_).lu;
  }
  StatusKernels& status() { return *status_; }

  // For timelines: what the stream is given between the two is `name`, of step `index`. Pairs may
  // be nested; use Range.
  virtual void BeginRange(Stream, const char* /*name*/, int64_t /*index*/) {}
  virtual void EndRange(Stream) {}
  // All ranges so far, after a wait for their end.
  virtual std::vector<TimelineRange> TakeRanges() { return {}; }

 protected:
  // What the device gives; whoever makes one names all of it, of every dtype: tile operations for
  // each Precision, the same again where the hardware has nothing faster for it.
  void Offer(StatusKernels& status) { status_ = &status; }
  template <typename T>
  void Offer(const BlasByPrecision<T>& blas, MatrixSolver<T>& solver,
             const EigenKernels<T>& eigen = {}, LuKernels<T>* lu = nullptr) {
    std::get<Operations<T>>(operations_) = {blas, &solver, eigen, lu};
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
  };

  StatusKernels* status_ = nullptr;
  PerDtype<Operations> operations_;
};

template <typename T>
Blas<T>& Device::blas(Precision precision) {
  constexpr bool kLower = std::is_same_v<Real<T>, float>;
  return *std::get<Operations<T>>(operations_).blas[kLower ? static_cast<int>(precision) : 0];
}

// Names what a stream is given while this lives.
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

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_DEVICE_H_
