#include "tests/cc/support/devices/recording_device.h"

#include <complex>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/forwarding_blas.h"
#include "tests/cc/support/devices/recording_eigen.h"
#include "tests/cc/support/devices/recording_lu.h"
#include "tests/cc/support/devices/recording_matrix.h"
#include "tests/cc/support/devices/wrapped_kernels.h"

namespace jaxmg::testing {
namespace {

template <typename T>
class RecordingBlas : public ForwardingBlas<T> {
 public:
  RecordingBlas(Recorder& to, Blas<T>& real) : ForwardingBlas<T>(real), to_(to) {}

 protected:
  Status Run(Stream s, const char* name, std::vector<MemoryAccess> accesses,
             const std::string& scalars, std::function<Status()> work) override {
    if (scalars.empty()) {
      to_.Add(s, name, std::move(accesses));
    } else {
      to_.Add(s, name, std::move(accesses), scalars);
    }
    return work();
  }

 private:
  Recorder& to_;
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
  Status KeepNegative(Stream s, const int32_t* status, int32_t* failure) override {
    to_.Add(s, "keep negative", {to_.Read(status, 1, 1, 1), to_.Write(failure, 1, 1, 1)});
    return real_.KeepNegative(s, status, failure);
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
#define JAXMG_MULTIPLY(T)                                                                       \
  Status Multiply(Stream s, const T* factors, int64_t stride, int64_t count, T* product)        \
      override {                                                                                \
    to_.Add(s, "multiply", {to_.Read(factors, stride, 1, count), to_.Write(product, 1, 1, 1)}); \
    return real_.Multiply(s, factors, stride, count, product);                                  \
  }
  JAXMG_FOR_EACH_DTYPE(JAXMG_MULTIPLY)
#undef JAXMG_MULTIPLY
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

class RecordsOperations : public RecordingDevice {
 public:
  RecordsOperations(std::unique_ptr<Device> real, const Tuning& tuning, Recording& recording,
                    int rank)
      : real_(std::move(real)),
        tuning_(tuning),
        to_(recording, rank),
        status_kernels_(to_, real_->status()),
        kernels_(to_, *real_) {
    Offer(status_kernels_);
    kernels_.ForEachDtype([this](auto&&... all) { Offer(all...); });
  }

  Tuning tuning() const override { return tuning_; }
  int64_t events() const override { return events_; }

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
  const std::unique_ptr<Device> real_;
  const Tuning tuning_;
  Recorder to_;
  int64_t events_ = 0;
  RecordingStatus status_kernels_;
  WrappedKernels<Recorder, RecordingBlas, RecordingSolver, RecordingPanel, RecordingChase,
                 RecordingSecular, RecordingLu, RecordingMatrix>
      kernels_;
};

}  // namespace

std::unique_ptr<RecordingDevice> NewRecordingDevice(std::unique_ptr<Device> real,
                                                    const Tuning& tuning, Recording& recording,
                                                    int rank) {
  return std::make_unique<RecordsOperations>(std::move(real), tuning, recording, rank);
}

}  // namespace jaxmg::testing
