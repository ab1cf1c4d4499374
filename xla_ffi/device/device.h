// Device: what the engine's algorithms ask of the hardware that one rank drives.
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
#include <type_traits>
#include <vector>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/constants.h"

namespace jaxmg {

// The streams of a rank. Trailing updates fill kMain; kPanel is the critical path and goes first
// where the hardware knows priorities, then kNext, what the critical path needs next; kCopy carries
// what moves between ranks; kSide is for what is small and can wait.
enum class Stream : int { kMain, kPanel, kNext, kCopy, kSide };
inline constexpr std::array<Stream, 5> kStreams = {Stream::kMain, Stream::kPanel, Stream::kNext,
                                                   Stream::kCopy, Stream::kSide};
inline constexpr int kNumStreams = static_cast<int>(kStreams.size());

// How products of matrices are computed. kTf32 rounds the factors to TF32, with 10 bits behind the
// binary point, where the hardware multiplies those faster; it applies to float32 and complex64.
enum class Precision { kHighest, kTf32 };

enum class Op { kNone, kTrans, kConjTrans };
enum class Side { kLeft, kRight };
// Triangular matrices are lower triangular throughout, with a diagonal that is not assumed unit.

// A range of a stream's work, for timelines (timeline.h).
struct TimelineRange {
  const char* name;
  int64_t index;
  Stream stream;
  double begin, end;  // seconds on the host's steady clock
};

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
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
  // What redistribution sends at a time. On the host a chunk should stay in a cache until it is
  // taken; between GPUs it should be large beside the latency of a copy.
  int64_t exchange_bytes = int64_t{512} << 10;
  // The order of diagonal blocks that are inverted to be substituted with: by products, which a GPU
  // is through with sooner than with a TRSV. 0: none.
  int64_t inverse_order = 0;
  // What Syevd needs beside its operands, in multiples of the matrix, about.
  double syevd_matrices = 2;
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

// Tile operations of one dtype. Every argument that BLAS calls alpha or beta is real here.
template <typename T>
class Blas {
 public:
  virtual ~Blas() = default;

  // C := alpha op(A) op(B) + beta C, C m x n, inner dimension k.
  virtual Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k,
                      Real<T> alpha, const T* a, int64_t lda, const T* b, int64_t ldb, Real<T> beta,
                      T* c, int64_t ldc) = 0;
  // For a large product with B^H, what B is best stored as: itself (kConjTrans) or B^H (kNone).
  virtual Op StoredFactor() const {
    return sizeof(Real<T>) == sizeof(double) ? Op::kNone : Op::kConjTrans;
  }
  // C := alpha A A^H + beta C on the lower triangle, C n x n, A n x k.
  virtual Status Herk(Stream stream, int64_t n, int64_t k, Real<T> alpha, const T* a, int64_t lda,
                      Real<T> beta, T* c, int64_t ldc) = 0;
  // B := op(L)^-1 B (left) or B op(L)^-1 (right), B m x n.
  virtual Status Trsm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* l,
                      int64_t ldl, T* b, int64_t ldb) = 0;
  // X := B op(L)^-1 by substitution, for kNone and kConjTrans. B is m x n and may not overlap X; n
  // is at most Tuning::panel_block, where there is such a block, unless m is 1.
  virtual Status SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl,
                            const T* b, int64_t ldb, T* x, int64_t ldx) = 0;
  // B := op(L) B (left) or B op(L) (right), B m x n.
  virtual Status Trmm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* l,
                      int64_t ldl, T* b, int64_t ldb) = 0;
  // Cholesky factor L of the tile in its lower triangle. On failure *info, in device memory,
  // becomes the smaller of itself and offset + k, k the order of the first leading minor that is
  // not positive definite (a diagonal that is not finite counts), and the tile becomes NaN.
  virtual Status Potrf(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset,
                       int32_t* info) = 0;
  // The inverse of a lower triangular tile, which it may not overlap; zeros above the diagonal.
  // What is the identity to rounding is inverse * L, as with LAPACK, and not L * inverse.
  virtual Status Trtri(Stream stream, int64_t n, const T* l, int64_t ldl, T* inverse,
                       int64_t ld) = 0;
  // B := A^H, A m x n.
  virtual Status ConjTranspose(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                               int64_t ldb) = 0;
  // Makes an n x n block Hermitian from its lower triangle.
  virtual Status MirrorLower(Stream stream, int64_t n, T* a, int64_t lda) = 0;
  virtual Status Conjugate(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) = 0;
  // B += A, m x n.
  virtual Status Add(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                     int64_t ldb) = 0;
  virtual Status SetZero(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) = 0;
  // The inverse of a lower triangular tile, as Trtri makes it, to a place above the tile's own
  // diagonal: a_ij := conj(inverse_ji) for i < j. Its diagonal is that of the tile inverted.
  virtual Status StoreInverse(Stream stream, int64_t n, const T* inverse, int64_t ld, T* a,
                              int64_t lda) = 0;
  // From there: l := the tile, inverse := its inverse, both n x n with zeros above the diagonal.
  virtual Status LoadInverse(Stream stream, int64_t n, const T* a, int64_t lda, T* l,
                             T* inverse) = 0;
  // *sum += 2 log of the product of the diagonal of a tile of the factor.
  virtual Status AddLogDet(Stream stream, int64_t n, const T* l, int64_t ldl, Real<T>* sum) = 0;
  // Fills with NaN if *status is not 0.
  virtual Status PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n, T* a,
                          int64_t lda) = 0;
  // Eigenvalues (ascending) and, if wanted, eigenvectors of a Hermitian matrix of which the lower
  // triangle is read; the vectors replace it. *info as LAPACK's.
  virtual Status Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, Real<T>* w,
                       int32_t* info) = 0;

  // Takes memory that Potrf, on tiles of at most this order, and Syevd need beside their operands
  // until the call is over, so that a lack of it shows before the ranks have begun.
  virtual Status ReservePotrf(Stream, int64_t, T*, int64_t) { return Status::Ok(); }
  virtual Status ReserveSyevd(Stream, bool, int64_t, T*, int64_t, Real<T>*) { return Status::Ok(); }
};

class Device {
 public:
  virtual ~Device() = default;

  virtual Tuning tuning() const { return Tuning(); }

  virtual Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) = 0;

  virtual Status NewEvent(std::shared_ptr<Event>* event) = 0;
  virtual Status Record(Stream stream, Event* event) = 0;
  // The stream's later work starts after the event, which may be another device's.
  virtual Status Wait(Stream stream, const Event& event) = 0;

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
  virtual Status FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) = 0;

  // What a rank has found before it has begun: kNoInfo, but where the device can tell that this
  // rank is another than its host took it for, kMisplaced.
  virtual Status InitInfo(Stream stream, int32_t* info) {
    return FillInt32(stream, info, 1, kNoInfo);
  }
  // *digest := a number that differs where `count` 32-bit words do, almost surely.
  virtual Status Digest(Stream stream, const void* words, int64_t count, int32_t* digest) = 0;
  // Of `count` pairs (info, digest), `stride` numbers apart: *status := the smallest info, or 0
  // where that is kNoInfo, but kDifferentOperands where the digests are not all the same.
  virtual Status ReduceInfo(Stream stream, const int32_t* pairs, int64_t stride, int64_t count,
                            int32_t* status) = 0;
  // *sum := terms[0] + terms[stride] + ..., `count` of them, in this order.
  virtual Status SumReals(Stream stream, const float* terms, int64_t stride, int64_t count,
                          float* sum) = 0;
  virtual Status SumReals(Stream stream, const double* terms, int64_t stride, int64_t count,
                          double* sum) = 0;

  // Takes what operations need beside memory, as ReservePotrf does what that one needs.
  virtual Status ReserveHandles() { return Status::Ok(); }

  // Operations with products of that precision, or of a higher one.
  template <typename T>
  Blas<T>& blas(Precision precision = Precision::kHighest);

  // For timelines: what the stream is given between the two is `name`, of step `index`. Pairs may
  // be nested; use Range.
  virtual void BeginRange(Stream, const char* /*name*/, int64_t /*index*/) {}
  virtual void EndRange(Stream) {}
  // All ranges so far, after a wait for their end.
  virtual std::vector<TimelineRange> TakeRanges() { return {}; }

 protected:
  virtual Blas<float>& BlasOf(const float*) = 0;
  virtual Blas<double>& BlasOf(const double*) = 0;
  virtual Blas<std::complex<float>>& BlasOf(const std::complex<float>*) = 0;
  virtual Blas<std::complex<double>>& BlasOf(const std::complex<double>*) = 0;
  virtual Blas<float>& Tf32BlasOf(const float* dtype) { return BlasOf(dtype); }
  virtual Blas<std::complex<float>>& Tf32BlasOf(const std::complex<float>* dtype) {
    return BlasOf(dtype);
  }
};

template <typename T>
Blas<T>& Device::blas(Precision precision) {
  const T* dtype = nullptr;
  if constexpr (std::is_same_v<Real<T>, float>) {
    if (precision == Precision::kTf32) return Tf32BlasOf(dtype);
  }
  return BlasOf(dtype);
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
