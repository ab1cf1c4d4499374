// A device that computes at once, as the host does, and writes down what each stream was given:
// every operation, the memory that it reads and writes, and what the events so far have put before
// it. Two operations of which neither is before the other may run at the same time on a device
// with streams; so what an algorithm forgets to wait for shows every time, whatever the threads do.
#ifndef JAXMG_TESTS_CC_RECORDING_DEVICE_H_
#define JAXMG_TESTS_CC_RECORDING_DEVICE_H_

#include <algorithm>
#include <complex>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

// By stream of all ranks: how many of its operations are before a point.
using Clock = std::vector<int64_t>;

struct MemoryAccess {
  Bytes2D block;
  bool writes;
};

struct Operation {
  int lane;  // rank * kNumStreams + stream
  std::string text;
  std::vector<MemoryAccess> accesses;
  Clock before;  // its own lane's includes itself
};

// What all ranks of one call have given to their streams.
class Recording {
 public:
  explicit Recording(int ranks) : lanes_(ranks * kNumStreams) {
    for (auto& lane : lanes_) lane.resize(lanes_.size());
  }

  // Names memory, so that what is written down does not depend on where it lies.
  void Name(const std::string& name, const void* data, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    memory_[static_cast<const char*>(data)] = {name, bytes};
  }
  std::string PlaceOf(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = memory_.upper_bound(static_cast<const char*>(data));
    if (next == memory_.begin()) return "?";
    const auto& [begin, named] = *--next;
    const size_t offset = static_cast<const char*>(data) - begin;
    return offset <= named.second ? named.first + "+" + std::to_string(offset) : "?";
  }

  Clock& clock(int lane) { return lanes_[lane]; }
  void Add(int lane, std::string text, std::vector<MemoryAccess> accesses) {
    ++lanes_[lane][lane];
    std::lock_guard<std::mutex> lock(mutex_);
    operations_.push_back({lane, std::move(text), std::move(accesses), lanes_[lane]});
  }

  const std::vector<Operation>& operations() const { return operations_; }

  // The first two operations on the same memory, of which one writes and none is before the other.
  std::string FirstRace() const {
    for (size_t i = 0; i < operations_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Operation &a = operations_[i], &b = operations_[j];
        if (Before(a, b) || Before(b, a) || !Conflict(a, b)) continue;
        return Describe(a) + " beside " + Describe(b);
      }
    }
    return "";
  }

 private:
  static bool Before(const Operation& a, const Operation& b) {
    return b.before[a.lane] >= a.before[a.lane];
  }
  static std::string Describe(const Operation& a) {
    return "rank " + std::to_string(a.lane / kNumStreams) + " stream " +
           std::to_string(a.lane % kNumStreams) + " " + a.text;
  }
  static bool Conflict(const Operation& a, const Operation& b) {
    for (const MemoryAccess& x : a.accesses) {
      for (const MemoryAccess& y : b.accesses) {
        if ((x.writes || y.writes) && Overlap(x.block, y.block)) return true;
      }
    }
    return false;
  }
  static bool Overlap(const Bytes2D& a, const Bytes2D& b) {
    if (a.columns * a.height == 0 || b.columns * b.height == 0) return false;
    auto begin = [](const Bytes2D& x, size_t c) {
      return static_cast<char*>(x.data) + c * x.pitch;
    };
    if (begin(a, a.columns - 1) + a.height <= begin(b, 0)) return false;
    if (begin(b, b.columns - 1) + b.height <= begin(a, 0)) return false;
    for (size_t i = 0; i < a.columns; ++i) {
      for (size_t j = 0; j < b.columns; ++j) {
        if (begin(a, i) < begin(b, j) + b.height && begin(b, j) < begin(a, i) + a.height)
          return true;
      }
    }
    return false;
  }

  std::mutex mutex_;
  std::vector<Clock> lanes_;
  std::map<const char*, std::pair<std::string, size_t>> memory_;
  std::vector<Operation> operations_;
};

// What a rank's operations are written into.
class Recorder {
 public:
  Recorder(Recording& recording, int rank) : recording_(recording), rank_(rank) {}

  struct Point : Event {
    Clock before;
  };

  int lane(Stream stream) const { return rank_ * kNumStreams + static_cast<int>(stream); }
  int rank() const { return rank_; }
  Recording& recording() { return recording_; }

  void Record(Stream stream, Event* event) {
    static_cast<Point*>(event)->before = recording_.clock(lane(stream));
  }
  void Wait(Stream stream, const Event& event) {
    const Clock& before = static_cast<const Point&>(event).before;
    Clock& clock = recording_.clock(lane(stream));
    for (size_t i = 0; i < before.size(); ++i) clock[i] = std::max(clock[i], before[i]);
  }

  template <typename T>
  static MemoryAccess Read(const T* data, int64_t ld, int64_t rows, int64_t columns) {
    return {Block(data, ld, rows, columns), false};
  }
  template <typename T>
  static MemoryAccess Write(const T* data, int64_t ld, int64_t rows, int64_t columns) {
    return {Block(data, ld, rows, columns), true};
  }
  template <typename... Values>
  void Add(Stream stream, const char* name, std::vector<MemoryAccess> accesses,
           const Values&... values) {
    std::ostringstream text;
    text << name;
    for (const MemoryAccess& access : accesses) {
      const Bytes2D& b = access.block;
      text << " " << recording_.PlaceOf(b.data) << ":" << b.pitch << ":" << b.height << "x"
           << b.columns << (access.writes ? "!" : "");
    }
    ((text << " " << values), ...);
    recording_.Add(lane(stream), text.str(), std::move(accesses));
  }

 private:
  Recording& recording_;
  const int rank_;
};

template <typename T>
class RecordingBlas : public Blas<T> {
  using R = Real<T>;

 public:
  RecordingBlas(Recorder& to, Blas<T>& real) : to_(to), real_(real) {}

  Status Gemm(Stream s, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override {
    const bool ta = op_a != Op::kNone, tb = op_b != Op::kNone;
    to_.Add(s, "gemm",
            {to_.Read(a, lda, ta ? k : m, ta ? m : k), to_.Read(b, ldb, tb ? n : k, tb ? k : n),
             to_.Write(c, ldc, m, n)},
            int(op_a), int(op_b), alpha, beta);
    return real_.Gemm(s, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  Status Herk(Stream s, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override {
    to_.Add(s, "herk", {to_.Read(a, lda, n, k), to_.Write(c, ldc, n, n)}, alpha, beta);
    return real_.Herk(s, n, k, alpha, a, lda, beta, c, ldc);
  }
  Status SolveRight(Stream s, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, const T* b,
                    int64_t ldb, T* x, int64_t ldx) override {
    to_.Add(s, "solve", {to_.Read(l, ldl, n, n), to_.Read(b, ldb, m, n), to_.Write(x, ldx, m, n)},
            int(op));
    return real_.SolveRight(s, op, m, n, l, ldl, b, ldb, x, ldx);
  }
  Status Potrf(Stream s, int64_t n, T* a, int64_t lda, int64_t offset, int32_t* info) override {
    to_.Add(s, "potrf", {to_.Write(a, lda, n, n), to_.Write(info, 1, 1, 1)}, offset);
    return real_.Potrf(s, n, a, lda, offset, info);
  }
  Status ConjTranspose(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                       int64_t ldb) override {
    to_.Add(s, "transpose", {to_.Read(a, lda, m, n), to_.Write(b, ldb, n, m)});
    return real_.ConjTranspose(s, m, n, a, lda, b, ldb);
  }
  Status MirrorLower(Stream s, int64_t n, T* a, int64_t lda) override {
    to_.Add(s, "mirror", {to_.Write(a, lda, n, n)});
    return real_.MirrorLower(s, n, a, lda);
  }
  Status Conjugate(Stream s, int64_t m, int64_t n, T* a, int64_t lda) override {
    to_.Add(s, "conjugate", {to_.Write(a, lda, m, n)});
    return real_.Conjugate(s, m, n, a, lda);
  }
  Status SetZero(Stream s, int64_t m, int64_t n, T* a, int64_t lda) override {
    to_.Add(s, "zero", {to_.Write(a, lda, m, n)});
    return real_.SetZero(s, m, n, a, lda);
  }
  Status AddLogDet(Stream s, int64_t n, const T* l, int64_t ldl, R* sum) override {
    to_.Add(s, "logdet", {to_.Read(l, ldl, n, n), to_.Write(sum, 1, 1, 1)});
    return real_.AddLogDet(s, n, l, ldl, sum);
  }
  Status Add(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, T* b, int64_t ldb) override {
    to_.Add(s, "add", {to_.Read(a, lda, m, n), to_.Write(b, ldb, m, n)});
    return real_.Add(s, m, n, a, lda, b, ldb);
  }
  Status StoreInverse(Stream s, int64_t n, const T* v, int64_t ldv, T* a, int64_t lda) override {
    to_.Add(s, "store inverse", {to_.Read(v, ldv, n, n), to_.Write(a, lda, n, n)});
    return real_.StoreInverse(s, n, v, ldv, a, lda);
  }
  Status LoadInverse(Stream s, int64_t n, bool transposed, const T* a, int64_t lda, T* l,
                     T* v) override {
    to_.Add(s, transposed ? "load inverse transposed" : "load inverse",
            {to_.Read(a, lda, n, n), to_.Write(l, n, n, n), to_.Write(v, n, n, n)});
    return real_.LoadInverse(s, n, transposed, a, lda, l, v);
  }

 protected:
  Status DoTrsm(Stream s, Side side, Op op, Triangle triangle, int64_t m, int64_t n, const T* a,
                int64_t lda, T* b, int64_t ldb) override {
    const int64_t order = side == Side::kLeft ? m : n;
    to_.Add(s, "trsm", {to_.Read(a, lda, order, order), to_.Write(b, ldb, m, n)}, int(side),
            int(op));
    return real_.Trsm(s, side, op, m, n, a, lda, b, ldb, triangle);
  }
  Status DoTrmm(Stream s, Side side, Op op, Triangle triangle, int64_t m, int64_t n, const T* a,
                int64_t lda, T* b, int64_t ldb) override {
    const int64_t order = side == Side::kLeft ? m : n;
    to_.Add(s, "trmm", {to_.Read(a, lda, order, order), to_.Write(b, ldb, m, n)}, int(side),
            int(op));
    return real_.Trmm(s, side, op, m, n, a, lda, b, ldb, triangle);
  }
  Status DoTrtri(Stream s, Triangle triangle, int64_t n, const T* a, int64_t lda, T* inverse,
                 int64_t ld) override {
    to_.Add(s, "trtri", {to_.Read(a, lda, n, n), to_.Write(inverse, ld, n, n)});
    return real_.Trtri(s, n, a, lda, inverse, ld, triangle);
  }

 private:
  Recorder& to_;
  Blas<T>& real_;
};

template <typename T>
class RecordingSolver : public MatrixSolver<T> {
 public:
  RecordingSolver(Recorder& to, MatrixSolver<T>& real) : to_(to), real_(real) {}

  Status Syevd(Stream s, bool vectors, int64_t n, T* a, int64_t lda, Real<T>* w,
               int32_t* info) override {
    to_.Add(s, "syevd", {to_.Write(a, lda, n, n), to_.Write(w, n, n, 1), to_.Write(info, 1, 1, 1)});
    return real_.Syevd(s, vectors, n, a, lda, w, info);
  }

 private:
  Recorder& to_;
  MatrixSolver<T>& real_;
};

class RecordingStatus : public StatusKernels {
 public:
  RecordingStatus(Recorder& to, StatusKernels& real) : to_(to), real_(real) {}

  Status InitInfo(Stream s, int32_t* info) override {
    to_.Add(s, "init info", {to_.Write(info, 1, 1, 1)});
    return real_.InitInfo(s, info);
  }
  Status Digest(Stream s, const void* words, int64_t count, int32_t* digest) override {
    to_.Add(s, "digest",
            {to_.Read(static_cast<const int32_t*>(words), count, count, 1),
             to_.Write(digest, 1, 1, 1)});
    return real_.Digest(s, words, count, digest);
  }
  Status ReduceInfo(Stream s, const int32_t* pairs, int64_t stride, int64_t count,
                    int32_t* status) override {
    to_.Add(s, "reduce", {to_.Read(pairs, stride, 2, count), to_.Write(status, 1, 1, 1)});
    return real_.ReduceInfo(s, pairs, stride, count, status);
  }
  Status SumReals(Stream s, const float* terms, int64_t stride, int64_t count,
                  float* sum) override {
    to_.Add(s, "sum", {to_.Read(terms, stride, 1, count), to_.Write(sum, 1, 1, 1)});
    return real_.SumReals(s, terms, stride, count, sum);
  }
  Status SumReals(Stream s, const double* terms, int64_t stride, int64_t count,
                  double* sum) override {
    to_.Add(s, "sum", {to_.Read(terms, stride, 1, count), to_.Write(sum, 1, 1, 1)});
    return real_.SumReals(s, terms, stride, count, sum);
  }
#define JAXMG_POISON_IF(T)                                                                  \
  Status PoisonIf(Stream s, const int32_t* status, int64_t m, int64_t n, T* a, int64_t lda) \
      override {                                                                            \
    to_.Add(s, "poison", {to_.Read(status, 1, 1, 1), to_.Write(a, lda, m, n)});             \
    return real_.PoisonIf(s, status, m, n, a, lda);                                         \
  }
  JAXMG_FOR_EACH_DTYPE(JAXMG_POISON_IF)
#undef JAXMG_POISON_IF

 private:
  Recorder& to_;
  StatusKernels& real_;
};

class RecordingDevice : public Device {
 public:
  RecordingDevice(std::unique_ptr<Device> real, const Tuning& tuning, Recording& recording,
                  int rank)
      : real_(std::move(real)),
        tuning_(tuning),
        to_(recording, rank),
        status_kernels_(to_, real_->status()),
        of_dtype_(*this, *this, *this, *this) {
    Offer(status_kernels_);
    std::apply([this](auto&... each) { (Offer(each.blas, each.blas, each.solver), ...); },
               of_dtype_);
  }

  Tuning tuning() const override { return tuning_; }
  // So many events, records and waits: what a host is busy with beside operations.
  int64_t events() const { return events_; }

  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    JAXMG_RETURN_IF_ERROR(real_->Allocate(bytes, buffer));
    to_.recording().Name("workspace" + std::to_string(to_.rank()), (*buffer)->data(), bytes);
    return Status::Ok();
  }
  Status NewEvent(std::shared_ptr<Event>* event) override {
    ++events_;
    *event = std::make_shared<Recorder::Point>();
    return Status::Ok();
  }
  Status Record(Stream stream, Event* event) override {
    ++events_;
    to_.Record(stream, event);
    return Status::Ok();
  }
  Status Wait(Stream stream, const Event& event) override {
    ++events_;
    to_.Wait(stream, event);
    return Status::Ok();
  }
  Status Synchronize() override { return real_->Synchronize(); }

  Status Copy(Stream s, const Bytes2D& target, const Bytes2D& source) override {
    to_.Add(s, "copy", {{source, false}, {target, true}});
    return real_->Copy(s, target, source);
  }
  Status FillInt32(Stream s, int32_t* data, int64_t count, int32_t value) override {
    to_.Add(s, "fill", {to_.Write(data, count, count, 1)}, value);
    return real_->FillInt32(s, data, count, value);
  }

 private:
  template <typename T>
  struct OfDtype {
    explicit OfDtype(RecordingDevice& device)
        : blas(device.to_, device.real_->blas<T>()),
          solver(device.to_, device.real_->solver<T>()) {}
    RecordingBlas<T> blas;
    RecordingSolver<T> solver;
  };

  const std::unique_ptr<Device> real_;
  const Tuning tuning_;
  Recorder to_;
  int64_t events_ = 0;
  RecordingStatus status_kernels_;
  PerDtype<OfDtype> of_dtype_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_RECORDING_DEVICE_H_
