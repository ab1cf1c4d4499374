// Runs the threads of a block as real threads. They are slower than fibers, but sanitizers
// understand them, and ThreadSanitizer reports every missing __syncthreads. Included only by
// host_cuda.h.
#ifndef JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_THREADS_H_
#define JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_THREADS_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace host_cuda {

inline void Yield() { std::this_thread::yield(); }

// A barrier of threads, which doesn't wait for threads that have returned.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = round_;
    if (++waiting_ == threads_) {
      Next();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
  }
  void Leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--threads_ == waiting_ && threads_ > 0) Next();
  }

 private:
  void Next() {
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int threads_, waiting_ = 0, round_ = 0;
};

// Runs `body` as threads 0 to count - 1. Each thread first calls `enter` with its number.
inline void RunThreads(unsigned count, const std::function<void(unsigned)>& enter,
                       const std::function<void()>& body) {
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < count; ++thread) {
    threads.emplace_back([&, thread] {
      enter(thread);
      body();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace host_cuda

#endif  // JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_THREADS_H_
