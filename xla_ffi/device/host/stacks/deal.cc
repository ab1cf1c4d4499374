#include "xla_ffi/device/host/stacks/deal.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "xla_ffi/base/floating_point.h"
#include "xla_ffi/device/host/lapack.h"

namespace jaxmg {
namespace {

// A thread's start takes about as long as this number of operations on a core.
constexpr double kOperationsOfThread = 2e5;

// With fewer operations, several threads don't speed BLAS up.
constexpr double kOperationsOfMany = 2e6;

std::atomic<int> active{0};

class Active {
 public:
  Active() : before(active.fetch_add(1)) {}
  ~Active() { active.fetch_sub(1); }
  const int before;
};

// Returns the number of cores that this thread may run on, but at most BLAS's number of threads,
// which is lower during another device's deal.
int Cores() {
  const int threads = UnsharedBlasThreads();
  const int most = threads == 0 ? std::numeric_limits<int>::max() : threads;
  return std::clamp(HostCores(), 1, std::max(most, 1));
}

}  // namespace

int ThreadsOfDeal(int64_t count, double operations, int cores, int active) {
  const double worth = count * operations / kOperationsOfThread;
  const auto most = static_cast<int64_t>(std::min(worth, 1024.0));
  return static_cast<int>(std::max<int64_t>(1, std::min({count, most, int64_t{cores} - active})));
}

Status DealOut(int64_t count, double operations,
               const std::function<Status(int64_t begin, int64_t end)>& function) {
  if (count == 0) return Status::Ok();
  const Active others;
  const int cores = Cores();
  const int threads = ThreadsOfDeal(count, operations, cores, others.before);
  // A few matrices that are each enough work for all cores are left to BLAS's threads.
  const bool deals = count >= cores || operations < kOperationsOfMany;
  constexpr int kOneThreadEach = std::numeric_limits<int>::max();
  const BlasThreadShare share(deals ? kOneThreadEach : 1);
  if (!deals) return Guarded([&] { return function(0, count); });
  // A few parts per thread, because some threads may be slower than others.
  const int64_t part = std::max<int64_t>(1, count / (4 * threads));
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  Status failure;
  auto work = [&] {
    for (;;) {
      const int64_t begin = next.fetch_add(part);
      if (begin >= count) return;
      Status status = Guarded([&] { return function(begin, std::min(begin + part, count)); });
      if (status.ok()) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      if (failure.ok()) failure = std::move(status);
      next = count;
    }
  };
  std::vector<std::thread> helpers;
  JAXMG_RETURN_IF_ERROR(Guarded([&] {
    helpers.reserve(threads - 1);
    return Status::Ok();
  }));
  for (int i = 1; i < threads; ++i) {
    try {
      helpers.emplace_back([&] {
        const DefaultFloatingPoint mode;
        work();
      });
    } catch (const std::exception&) {
      break;  // no thread, or no memory for one: this thread does that work
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  return failure;
}

}  // namespace jaxmg
