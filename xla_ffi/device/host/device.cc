#include "xla_ffi/device/host/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "xla_ffi/device/host/blas.h"
#include "xla_ffi/device/host/eigen/chase.h"
#include "xla_ffi/device/host/eigen/secular.h"
#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/device/host/lu.h"
#include "xla_ffi/device/host/matrix.h"
#include "xla_ffi/device/host/panel.h"
#include "xla_ffi/device/host/solver.h"
#include "xla_ffi/device/host/stacks/elements.h"
#include "xla_ffi/device/host/stacks/stacks.h"
#include "xla_ffi/device/timeline.h"
#include "xla_ffi/device/tunings.h"

namespace jaxmg {
namespace {

class HostStatus : public StatusKernels {
 public:
  Status InitInfo(Stream, int32_t* info) override {
    *info = kNoInfo;
    return Status::Ok();
  }

  Status Digest(Stream, const void* words, int64_t count, int32_t* digest) override {
    // The factors are odd, so that a change of any single word changes the digest.
    uint32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t word;
      std::memcpy(&word, static_cast<const char*>(words) + i * sizeof(word), sizeof(word));
      sum += word * static_cast<uint32_t>(2 * i + 1);
    }
    *digest = static_cast<int32_t>(sum);
    return Status::Ok();
  }

  Status ReduceInfo(Stream, const int32_t* pairs, int64_t stride, int64_t count,
                    int32_t* status) override {
    int32_t least = kNoInfo;
    for (int64_t i = 0; i < count; ++i) {
      least = std::min(least, pairs[i * stride]);
      if (pairs[i * stride + 1] != pairs[1]) least = std::min(least, kDifferentOperands);
    }
    *status = least == kNoInfo ? 0 : least;
    return Status::Ok();
  }

  Status KeepNegative(Stream, const int32_t* status, int32_t* failure) override {
    *failure = std::min(*status, 0);
    return Status::Ok();
  }

  Status SumReals(Stream, const float* terms, int64_t stride, int64_t count, float* sum) override {
    return Sum(terms, stride, count, sum);
  }
  Status SumReals(Stream, const double* terms, int64_t stride, int64_t count,
                  double* sum) override {
    return Sum(terms, stride, count, sum);
  }

#define JAXMG_MULTIPLY(T)                                                                         \
  Status Multiply(Stream, const T* factors, int64_t stride, int64_t count, T* product) override { \
    *product = T(1);                                                                              \
    for (int64_t i = 0; i < count; ++i) *product *= factors[i * stride];                          \
    return Status::Ok();                                                                          \
  }
  JAXMG_FOR_EACH_DTYPE(JAXMG_MULTIPLY)
#undef JAXMG_MULTIPLY

#define JAXMG_POISON_IF(T)                                                                \
  Status PoisonIf(Stream, const int32_t* status, int64_t m, int64_t n, T* a, int64_t lda) \
      override {                                                                          \
    if (*status != 0) FillWithNaN(m, n, a, lda);                                          \
    return Status::Ok();                                                                  \
  }
  JAXMG_FOR_EACH_DTYPE(JAXMG_POISON_IF)
#undef JAXMG_POISON_IF

 private:
  template <typename R>
  static Status Sum(const R* terms, int64_t stride, int64_t count, R* sum) {
    R total = 0;
    for (int64_t i = 0; i < count; ++i) total += terms[i * stride];
    *sum = total;
    return Status::Ok();
  }
};

template <typename T>
struct HostOperations {
  HostBlas<T> blas, bf16x3{Precision::kBf16x3}, bf16x6{Precision::kBf16x6},
      f16x3{Precision::kF16x3}, scaled_f16x3{Precision::kScaledF16x3};
  HostSolver<T> solver;
  HostPanel<T> panel{blas};
  HostChase<T> chase{blas};
  HostSecular<T> secular;
  HostLu<T> lu;
  HostMatrix<T> matrix;
  HostStacks<T> stacks{blas, solver};
  HostElements<T> elements;
  BlasByPrecision<T> by_precision() {
    return {&blas, &blas, &bf16x3, &bf16x6, &f16x3, &blas, &scaled_f16x3};
  }
  EigenKernels<T> eigen() { return {&panel, &chase, &secular}; }
};

class HostBuffer : public Buffer {
 public:
  HostBuffer(size_t alignment, size_t size) : Buffer(std::aligned_alloc(alignment, size)) {}
  ~HostBuffer() override { std::free(data_); }
};

class LentBuffer : public Buffer {
 public:
  LentBuffer(void* data, const std::function<void(void*)>& free) : Buffer(data), free_(free) {}
  ~LentBuffer() override { free_(data_); }

 private:
  const std::function<void(void*)> free_;
};

class HostDevice : public Device {
 public:
  explicit HostDevice(HostAllocator allocator) : allocator_(std::move(allocator)) {
    Offer(status_kernels_);
    std::apply(
        [this](auto&... each) {
          (Offer(each.by_precision(), each.solver, each.eigen(), &each.lu, &each.matrix,
                 &each.stacks, &each.elements),
           ...);
        },
        of_dtype_);
  }

  Tuning tuning() const override { return HostTuning(); }

  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    if (allocator_.allocate) {
      void* data = nullptr;
      JAXMG_RETURN_IF_ERROR(allocator_.allocate(std::max<size_t>(bytes, 1), &data));
      *buffer = std::make_unique<LentBuffer>(data, allocator_.free);
      return Status::Ok();
    }
    // Requests large pages: every call has a new workspace, and page faults on small pages would
    // take as long as filling it.
    constexpr size_t kLargePage = size_t{2} << 20;
    const size_t alignment = bytes >= 2 * kLargePage ? kLargePage : 64;
    const size_t size = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    if (size >= bytes) *buffer = std::make_unique<HostBuffer>(alignment, size);
    if (size < bytes || (*buffer)->data() == nullptr) {
      buffer->reset();
      return Error(Code::kResourceExhausted, "out of memory: ", bytes, " bytes of workspace");
    }
    if (alignment == kLargePage) madvise((*buffer)->data(), size, MADV_HUGEPAGE);
    return Status::Ok();
  }

  Status NewEvent(std::shared_ptr<Event>* event) override {
    // All enqueued work is already complete, so all events are the same object.
    static const std::shared_ptr<Event>* done =
        new std::shared_ptr<Event>(std::make_shared<Event>());
    *event = *done;
    return Status::Ok();
  }
  Status Record(Stream, Event*) override { return Status::Ok(); }
  Status Wait(Stream, const Event&) override { return Status::Ok(); }
  Status RecordShared(Stream, const SharedEvent& event) override {
    __atomic_store_n(event.word(), event.count(), __ATOMIC_RELEASE);
    return Status::Ok();
  }
  Status Synchronize() override { return Status::Ok(); }

  Status Copy(Stream, const Bytes2D& target, const Bytes2D& source) override {
    if (source.height == 0 || source.columns == 0) return Status::Ok();  // its pointer may be null
    const char* from = static_cast<const char*>(source.data);
    char* to = static_cast<char*>(target.data);
    if (source.pitch == source.height && target.pitch == target.height) {
      std::memcpy(to, from, source.height * source.columns);
      return Status::Ok();
    }
    for (size_t j = 0; j < source.columns; ++j) {
      std::memcpy(to + j * target.pitch, from + j * source.pitch, source.height);
    }
    return Status::Ok();
  }

  void BeginRange(Stream stream, const char* name, int64_t index) override {
    if (!timeline_wanted_) return;
    open_.Open(stream, ranges_.size());
    ranges_.push_back({name, index, stream, SteadySeconds(), 0});
  }
  void EndRange(Stream stream) override {
    if (timeline_wanted_) ranges_[open_.Close(stream)].end = SteadySeconds();
  }
  std::vector<TimelineRange> TakeRanges() override { return std::move(ranges_); }

  void BeginAlone() override { threads_.emplace(); }
  void EndAlone() override { threads_.reset(); }

  Status FillInt32(Stream, int32_t* data, int64_t count, int32_t value) override {
    std::fill_n(data, count, value);
    return Status::Ok();
  }

 private:
  const HostAllocator allocator_;
  const bool timeline_wanted_ = TimelineWanted();
  std::vector<TimelineRange> ranges_;
  OpenRanges open_;
  std::optional<BlasThreadsOfAll> threads_;
  HostStatus status_kernels_;
  PerDtype<HostOperations> of_dtype_;
};

}  // namespace

std::unique_ptr<Device> NewHostDevice(HostAllocator allocator) {
  return std::make_unique<HostDevice>(std::move(allocator));
}

}  // namespace jaxmg
