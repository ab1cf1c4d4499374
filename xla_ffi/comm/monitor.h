// Monitor: a mutex and a condition variable for state that several threads share.
#ifndef JAXMG_XLA_FFI_COMM_MONITOR_H_
#define JAXMG_XLA_FFI_COMM_MONITOR_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>

namespace jaxmg {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// How long to wait for another thread.
struct WaitPolicy {
  // The limit of the whole wait. An infinite value, or one beyond ten years, means no limit.
  Seconds limit;
  // How long to spin before giving up the processor. Waking a thread takes longer than many waits
  // between ranks, but spinning takes the processor from other threads.
  Seconds spin = Seconds(0);
  // Whether to let other threads run between two looks: they may be those that are waited for.
  bool yields = false;
};

// How long a call waits for its ranks before it prints which ones are missing.
inline constexpr std::chrono::seconds kBeforeNotice(10);

inline Clock::time_point Deadline(Seconds limit) {
  constexpr Seconds kLongest = std::chrono::hours(24 * 365 * 10);
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(limit, kLongest));
}

class Monitor {
 public:
  std::unique_lock<std::mutex> Lock() { return std::unique_lock<std::mutex>(mutex_); }

  // Wakes the waiting threads after a change. Requires the lock.
  void Notify() noexcept {
    changes_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }

  // Waits until `condition` holds; returns false if the limit passes first. Evaluates the condition
  // under the lock, and releases the lock in between.
  template <typename Condition>
  bool Wait(std::unique_lock<std::mutex>& lock, const WaitPolicy& policy, Condition condition) {
    if (condition()) return true;
    const Clock::time_point spun = Deadline(std::min(policy.spin, policy.limit));
    while (Clock::now() < spun) {
      const uint32_t seen = changes_.load(std::memory_order_relaxed);
      lock.unlock();
      while (changes_.load(std::memory_order_acquire) == seen && Clock::now() < spun) {
        if (policy.yields) std::this_thread::yield();
      }
      lock.lock();
      if (condition()) return true;
    }
    return changed_.wait_until(lock, Deadline(policy.limit), condition);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint32_t> changes_{0};
};

// Returns the process's single instance of T, which is constructed at the first call. It uses no
// heap memory and is never destroyed, because threads of the runtime may use it while the process
// exits.
template <typename T>
T& Forever() {
  alignas(T) static unsigned char storage[sizeof(T)];
  static T* object = new (storage) T;
  return *object;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_MONITOR_H_
