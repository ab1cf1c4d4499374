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

#include "tests/cc/recorder.h"
#include "tests/cc/recording_eigen.h"
#include "tests/cc/recording_lu.h"
#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

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
  PartsShape parts() const override { return real_.parts(); }
  Status Split(Stream s, Side side, bool turned, int64_t m, int64_t n, const T* a, int64_t lda,
               Part* parts, int64_t ld) override {
    const PartsShape shape = real_.parts();
    const int64_t rows = (turned ? n : m) * (side == Side::kLeft ? shape.rows : 1);
    to_.Add(s, "split",
            {to_.Read(a, lda, m, n), to_.Write(parts, ld, rows, shape.Depth(turned ? m : n))},
            int(side), turned);
    return real_.Split(s, side, turned, m, n, a, lda, parts, ld);
  }
  Status GemmOfParts(Stream s, int64_t m, int64_t n, int64_t depth, R alpha, const Part* a,
                     int64_t lda, const Part* b, int64_t ldb, R beta, T* c, int64_t ldc) override {
    to_.Add(s, "gemm of parts",
            {to_.Read(a, lda, m * real_.parts().rows, depth), to_.Read(b, ldb, n, depth),
             to_.Write(c, ldc, m, n)},
            alpha, beta);
    return real_.GemmOfParts(s, m, n, depth, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  Status Scale(Stream s, bool lower, bool divide, int64_t m, int64_t n, const R* left,
               const R* right, T* a, int64_t lda) override {
    // What it reads is as long as x, or as what is null: nothing.
    to_.Add(s, "scale",
            {to_.Read(left, 1, left != nullptr ? m : 0, 1),
             to_.Read(right, 1, right != nullptr ? n : 0, 1), to_.Write(a, lda, m, n)},
            lower, divide);
    return real_.Scale(s, lower, divide, m, n, left, right, a, lda);
  }
  Status RowLargest(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, R* largest) override {
    to_.Add(s, "row largest", {to_.Read(a, lda, m, n), to_.Write(largest, m, m, 1)});
    return real_.RowLargest(s, m, n, a, lda, largest);
  }
  Status PowersOfTwo(Stream s, bool root, int64_t n, R* x) override {
    to_.Add(s, "powers of two", {to_.Write(x, n, n, 1)}, root);
    return real_.PowersOfTwo(s, root, n, x);
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
    std::apply(
        [this](auto&... each) { (Offer(each.by_precision(), each.solver, each.eigen(), &each.lu), ...); },
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
          bf16x3(device.to_, device.real_->blas<T>(Precision::kBf16x3)),
          bf16x6(device.to_, device.real_->blas<T>(Precision::kBf16x6)),
          f16x3(device.to_, device.real_->blas<T>(Precision::kF16x3)),
          solver(device.to_, device.real_->solver<T>()),
          panel(device.to_, *device.real_->eigen<T>().panel),
          chase(device.to_, *device.real_->eigen<T>().chase),
          secular(device.to_, *device.real_->eigen<T>().secular),
          lu(device.to_, device.real_->lu<T>()) {}
    BlasByPrecision<T> by_precision() { return {&blas, &blas, &bf16x3, &bf16x6, &f16x3}; }
    EigenKernels<T> eigen() { return {&panel, &chase, &secular}; }
    RecordingBlas<T> blas, bf16x3, bf16x6, f16x3;
    RecordingSolver<T> solver;
    RecordingPanel<T> panel;
    RecordingChase<T> chase;
    RecordingSecular<T> secular;
    RecordingLu<T> lu;
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
