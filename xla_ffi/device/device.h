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

// Parameters of algorithms on a device. The values are measured.
struct Tuning {
  // 0: one TRSM solves a panel in place. Otherwise a panel is solved out of place in pieces of this
  // number of columns: a product subtracts the earlier pieces, and SolveRight solves the piece.
  int64_t panel_block = 0;
  // Whether ranks read panels in the owner's memory. All ranks must be able to access it, and
  // panels must be solved in place.
  bool borrow_panels = false;
  // Whether panels pass from rank to rank piece by piece, instead of going from their owner to all
  // ranks.
  bool chain = false;
  // The maximum number of contiguous columns in one product of a trailing update; their rows of the
  // panel are gathered first. 0: one product per tile, without gathering.
  int64_t group_columns = 0;
  // The total width of the panels in one update of the trailing matrix, if panels are out of place
  // and tiles are narrower. Larger values make products deeper and need more workspace.
  int64_t update_depth = 0;
  // The default tile width, which is reduced if a rank would get fewer tiles than least_tiles. More
  // tiles balance the work better, but each is a step of the critical path.
  int64_t usual_tile = 256;
  int64_t least_tiles = 4;
  // The default tile width of QR, if it is less than the usual one; 0: the usual one. Several ranks
  // use half of it below order qr_wide_order, because they wait for a tile column, whose own
  // products are small.
  int64_t qr_tile = 0;
  int64_t qr_wide_order = 0;
  // The order from which one rank solves general systems in double precision in tiles of twice the
  // usual width; 0: never. Multiplied by 3/5 for complex matrices.
  int64_t wide_lu_order = 0;
  // The orders below which several ranks solve general systems in tiles of a quarter and of half
  // the usual width, because they wait for panels; 0: never. Multiplied by 3/5 for complex
  // matrices.
  int64_t quarter_lu_order = 0;
  int64_t half_lu_order = 0;
  // The next limits apply if the caller gives no tile width: the orders up to which one rank
  // factors a matrix as a single tile, and up to which several ranks gather it on one of them, to
  // solve and to invert. They are for real dtypes; whole_order and gather_to_solve are multiplied
  // by 3/5 for complex ones, which have more operations per element. whole_lu_order is the
  // whole_order of general matrices, and is multiplied only for complex128. In float32,
  // whole_lu_order_float32 replaces it if it is larger.
  int64_t whole_order = 0;
  int64_t whole_lu_order = 0;
  int64_t whole_lu_order_float32 = 0;
  // The orders up to which the library factors a whole general matrix faster than the device's own
  // panels, in single and in double precision.
  int64_t library_lu_order = 0;
  int64_t library_lu_order_double = 0;
  int64_t gather_to_solve = 0;
  int64_t gather_to_invert = 0;
  // The order up to which one rank inverts LU factors out of place, whatever the caller's tile
  // width.
  int64_t whole_inverse_order = 0;
  // The order from which kChosen means kF16x3, which is then faster than float32 products and
  // equally accurate; 0: never. Multiplied by 3/5 for complex64.
  int64_t parts_order = 0;
  // Whether products of parts can scale their factors (kScaledF16x3).
  bool scales_products = true;
  // The memory in which a device moves rows of L's columns, with all interchanges of a column at
  // once; 0: it needs none.
  int64_t swap_bytes = 0;
  // The size of a chunk in a redistribution. On the host a chunk should stay in a cache until the
  // receiver copies it; between GPUs its transfer should take longer than the latency of a copy.
  int64_t exchange_bytes = int64_t{512} << 10;
  // The bytes of columns that are repeatedly multiplied from the left together, so that they stay
  // in a cache. 0: all columns at once.
  int64_t resident_bytes = 0;
  // The order of the diagonal blocks whose inverses are used in substitution: on a GPU products
  // take less time than a TRSV. 0: no inverses.
  int64_t inverse_order = 0;
  // The maximum number of right-hand sides for which substitution with a triangle is one launch of
  // our own kernel (cuda/cholesky/triangular.cuh); 0: the library's TRSM and TRSV.
  int64_t few_right_hand_sides = 0;
  // The maximum number of right-hand sides for which a single rank solves with an LU factor of
  // several tiles in one such launch; 0: always tile by tile.
  int64_t right_hand_sides_at_once = 0;
  // Whether one rank computes small results that all ranks need and sends them to the others,
  // because LAPACK calls of several host devices slow each other down. Otherwise each rank computes
  // them.
  bool small_on_one = false;
  // Problems that one rank solves for all with the device's solver of a whole matrix
  // (matrix_solver.h), because it is faster than the ranks together, which share its processors:
  // linear systems and inverses up to whole_solve_order, if all ranks are in one process; singular
  // value decompositions up to whole_svd_order; and QR decompositions that aren't tall of up to
  // whole_qr_columns columns, or of up to whole_qr_elements elements. 0: none.
  int64_t whole_solve_order = 0;
  int64_t whole_svd_order = 0;
  int64_t whole_qr_columns = 0;
  int64_t whole_qr_elements = 0;
  // The orders from which several ranks share an eigenproblem instead of leaving it to one of them
  // (0: never): for real dtypes with eigenvectors, for real ones without, and for complex ones.
  // stages_alone, and without eigenvectors stages_alone_values, are the orders from which a single
  // rank uses the engine's stages instead of the device's own solver.
  int64_t spread_eigen = 0;
  int64_t spread_values = 0;
  int64_t spread_complex = 0;
  int64_t stages_alone = 0;
  int64_t stages_alone_values = 0;
  void ShareEigenproblemsFrom(int64_t order) {
    spread_eigen = spread_values = spread_complex = order;
    stages_alone = stages_alone_values = order;
  }
  // The number of subdiagonals of the intermediate band matrix, also for complex128.
  int64_t band_width = 32;
  int64_t band_width_complex128 = 32;
  // The columns of the blocks in which a single rank reduces its matrix to a band. Only the part
  // below a block's diagonal is updated. This halves the operations of updates, but splits each
  // product with the matrix into two. 0: the whole matrix at once.
  int64_t triangle_columns = 0;
  // sweep_group is the number of sweeps whose reflectors are applied at once: larger groups make
  // products deeper, but take 1 + sweep_group / band_width times the operations. sweep_bundle is
  // the number of sweeps that are chased and sent at once; a device that chases many sweeps
  // concurrently needs many.
  int64_t sweep_group = 16;
  int64_t sweep_bundle = 16;
  // The approximate workspace of Syevd in multiples of the matrix, with and without eigenvectors.
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

  // Blocks until all work of all streams is complete.
  virtual Status Synchronize() = 0;

  // Copies between blocks of equal height and columns that do not overlap. The source may be on
  // another device of the same process.
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
