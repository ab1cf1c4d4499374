#include "tests/cc/support/devices/async_device.h"

#include <atomic>
#include <complex>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/async_eigen.h"
#include "tests/cc/support/devices/async_lu.h"
#include "tests/cc/support/devices/async_matrix.h"
#include "tests/cc/support/devices/async_workers.h"
#include "tests/cc/support/devices/forwarding_blas.h"
#include "tests/cc/support/devices/wrapped_kernels.h"

namespace jaxmg::testing {
namespace {

template <typename T>
class AsyncBlas : public ForwardingBlas<T> {
 public:
  AsyncBlas(Workers& workers, Blas<T>& real) : ForwardingBlas<T>(real), workers_(workers) {}

 protected:
  Status Run(Stream s, const char*, std::vector<MemoryAccess>, const std::string&,
             std::function<Status()> work) override {
    return Later(workers_, s, std::move(work));
  }

 private:
  Workers& workers_;
};

template <typename T>
class AsyncSolver : public MatrixSolver<T> {
 public:
  AsyncSolver(Workers& workers, MatrixSolver<T>& real) : workers_(workers), real_(real) {}

  Status Syevd(Stream s, bool vectors, int64_t n, T* a, int64_t lda, Real<T>* w,
               int32_t* info) override {
    return Later(workers_, s, [=] { return real_.Syevd(s, vectors, n, a, lda, w, info); });
  }

 private:
  Workers& workers_;
  MatrixSolver<T>& real_;
};

class AsyncStatus : public StatusKernels {
 public:
  AsyncStatus(Workers& workers, StatusKernels& real) : workers_(workers), real_(real) {}

  Status InitInfo(Stream s, int32_t* info) override {
    return Later(workers_, s, [=] { return real_.InitInfo(s, info); });
  }
  Status Digest(Stream s, const void* words, int64_t count, int32_t* digest) override {
    return Later(workers_, s, [=] { return real_.Digest(s, words, count, digest); });
  }
  Status ReduceInfo(Stream s, const int32_t* pairs, int64_t stride, int64_t count,
                    int32_t* status) override {
    return Later(workers_, s, [=] { return real_.ReduceInfo(s, pairs, stride, count, status); });
  }
  Status KeepNegative(Stream s, const int32_t* status, int32_t* failure) override {
    return Later(workers_, s, [=] { return real_.KeepNegative(s, status, failure); });
  }
  Status SumReals(Stream s, const float* terms, int64_t stride, int64_t count,
                  float* sum) override {
    return Later(workers_, s, [=] { return real_.SumReals(s, terms, stride, count, sum); });
  }
  Status SumReals(Stream s, const double* terms, int64_t stride, int64_t count,
                  double* sum) override {
    return Later(workers_, s, [=] { return real_.SumReals(s, terms, stride, count, sum); });
  }
#define JAXMG_MULTIPLY(T)                                                                          \
  Status Multiply(Stream s, const T* factors, int64_t stride, int64_t count, T* product)           \
      override {                                                                                   \
    return Later(workers_, s, [=] { return real_.Multiply(s, factors, stride, count, product); }); \
  }
  JAXMG_FOR_EACH_DTYPE(JAXMG_MULTIPLY)
#undef JAXMG_MULTIPLY
#define JAXMG_POISON_IF(T)                                                                  \
  Status PoisonIf(Stream s, const int32_t* status, int64_t m, int64_t n, T* a, int64_t lda) \
      override {                                                                            \
    return Later(workers_, s, [=] { return real_.PoisonIf(s, status, m, n, a, lda); });     \
  }
  JAXMG_FOR_EACH_DTYPE(JAXMG_POISON_IF)
#undef JAXMG_POISON_IF

 private:
  Workers& workers_;
  StatusKernels& real_;
};

class AsyncDevice : public Device {
 public:
  AsyncDevice(std::unique_ptr<Device> real, const Tuning& tuning)
      : real_(std::move(real)),
        tuning_(tuning),
        workers_(NewWorkers()),
        status_kernels_(workers_, real_->status()),
        kernels_(workers_, *real_) {
    Offer(status_kernels_);
    kernels_.ForEachDtype([this](auto&&... all) { Offer(all...); });
  }
  ~AsyncDevice() override { (void)Synchronize(); }

  Tuning tuning() const override { return tuning_; }

  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    struct Borrowed : Buffer {
      explicit Borrowed(void* data) : Buffer(data) {}
    };
    std::unique_ptr<Buffer> owned;
    JAXMG_RETURN_IF_ERROR(real_->Allocate(bytes, &owned));
    *buffer = std::make_unique<Borrowed>(owned->data());
    buffers_.push_back(std::move(owned));
    return Status::Ok();
  }

  Status NewEvent(std::shared_ptr<Event>* event) override {
    *event = std::make_shared<AsyncEvent>();
    return Status::Ok();
  }
  Status Record(Stream stream, Event* event) override {
    auto signal = std::make_shared<Signal>();
    static_cast<AsyncEvent*>(event)->signal = signal;
    return Later(workers_, stream, [signal] {
      signal->Set();
      return Status::Ok();
    });
  }
  Status Wait(Stream stream, const Event& event) override {
    if (event.passed()) return Status::Ok();
    if (const SharedEvent* shared = event.shared()) {
      return Later(workers_, stream, [there = *shared] {
        while (static_cast<int32_t>(__atomic_load_n(there.word(), __ATOMIC_ACQUIRE) -
                                    there.count()) < 0) {
          std::this_thread::yield();
        }
        return Status::Ok();
      });
    }
    auto signal = static_cast<const AsyncEvent&>(event).signal;
    if (!signal) return Status::Ok();
    return Later(workers_, stream, [signal] {
      signal->Await();
      return Status::Ok();
    });
  }
  Status RecordShared(Stream stream, const SharedEvent& event) override {
    return Later(workers_, stream,
                 [this, stream, event] { return real_->RecordShared(stream, event); });
  }
  Status AwaitOnHost(const Event& event) override {
    if (const auto signal = static_cast<const AsyncEvent&>(event).signal) signal->Await();
    return Status::Ok();
  }
  Status HasPassed(const Event& event, bool* passed) override {
    const auto signal = static_cast<const AsyncEvent&>(event).signal;
    *passed = !signal || signal->IsSet();
    return Status::Ok();
  }
  Status Synchronize() override {
    Status first;
    for (auto& worker : workers_) {
      const Status status = worker->Drain();
      if (first.ok()) first = status;
    }
    return first;
  }

  Status Copy(Stream s, const Bytes2D& target, const Bytes2D& source) override {
    return Later(workers_, s, [=] { return real_->Copy(s, target, source); });
  }
  Status FillInt32(Stream s, int32_t* data, int64_t count, int32_t value) override {
    return Later(workers_, s, [=] { return real_->FillInt32(s, data, count, value); });
  }

 private:
  static Workers NewWorkers() {
    static std::atomic<unsigned> seed{1};
    Workers workers;
    for (auto& worker : workers) worker = std::make_unique<Worker>(seed++);
    return workers;
  }

  const std::unique_ptr<Device> real_;
  const Tuning tuning_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Workers workers_;
  AsyncStatus status_kernels_;
  WrappedKernels<Workers, AsyncBlas, AsyncSolver, AsyncPanel, AsyncChase, AsyncSecular, AsyncLu,
                 AsyncMatrix>
      kernels_;
};

}  // namespace

std::unique_ptr<Device> NewAsyncDevice(std::unique_ptr<Device> real, const Tuning& tuning) {
  return std::make_unique<AsyncDevice>(std::move(real), tuning);
}

}  // namespace jaxmg::testing
