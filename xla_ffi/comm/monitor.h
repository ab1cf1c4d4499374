// Monitor: state that several threads share, and waits for it to change.
#ifndef JAXMG_XLA_FFI_COMM_MONITOR_H_
#define JAXMG_XLA_FFI_COMM_MONITOR_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>

namespace jaxmg {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// How long to wait for another thread.
struct Patience {
  // In all. What is infinite, or longer than anybody lives to see, is no limit.
  Seconds limit;
  // At first without giving the processor away. Waking up takes longer than many a wait between
  // ranks, but somebody else may need the processor.
  Seconds spin = Seconds(0);
};

inline Clock::time_point Deadline(Seconds limit) {
  constexpr Seconds kLongest = std::chrono::hours(24 * 365 * 10);
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(limit, kLongest));
}

class Monitor {
 public:
  std::unique_lock<std::mutex> Lock() { return std::unique_lock<std::mutex>(mutex_); }

  // To be called with the lock held, after a change.
  void Changed() noexcept {
    changes_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }

  // Whether `condition` came to hold in time. It is looked at under the lock, which is given up
  // meanwhile.
  template <typename Condition>
  bool Wait(std::unique_lock<std::mutex>& lock, const Patience& patience, Condition condition) {
    if (condition()) return true;
    const Clock::time_point spun = Deadline(std::min(patience.spin, patience.limit));
    while (Clock::now() < spun) {
      const uint32_t seen = changes_.load(std::memory_order_relaxed);
      lock.unlock();
      while (changes_.load(std::memory_order_acquire) == seen && Clock::now() < spun) {
      }
      lock.lock();
      if (condition()) return true;
    }
    return changed_.wait_until(lock, Deadline(patience.limit), condition);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint32_t> changes_{0};
};

// The only T of the process, made when first asked for. It takes no memory of the heap, and is
// never destroyed: threads of the runtime may still use it when the process ends.
template <typename T>
T& Forever() {
  alignas(T) static unsigned char storage[sizeof(T)];
  static T* object = new (storage) T;
  return *object;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_MONITOR_H_
