// Streams as threads, for async_device.h.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_WORKERS_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_WORKERS_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

// A flag that one stream sets once and other streams wait for.
class Signal {
 public:
  void Set() {
    std::lock_guard<std::mutex> lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool IsSet() {
    std::lock_guard<std::mutex> lock(mutex_);
    return set_;
  }
  void Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

// An event: represents its last Record, as in CUDA. A wait for an event that was never recorded
// returns at once.
class AsyncEvent : public Event {
 public:
  std::shared_ptr<Signal> signal;
};

// A thread that runs its tasks in order. One task in 16, chosen at random, starts 0.2 ms late.
class Worker {
 public:
  explicit Worker(unsigned seed) : random_(seed), thread_([this] { Run(); }) {}
  ~Worker() {
    Enqueue(nullptr);
    thread_.join();
  }
  void Enqueue(std::function<Status()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_one();
  }
  Status Drain() {
    auto done = std::make_shared<Signal>();
    Enqueue([done] {
      done->Set();
      return Status::Ok();
    });
    done->Await();
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  void Run() {
    for (;;) {
      std::function<Status()> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!work) return;
      if (random_() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      const Status status = work();
      std::lock_guard<std::mutex> lock(mutex_);
      if (failure_.ok()) failure_ = status;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> queue_;
  Status failure_;
  std::minstd_rand random_;
  std::thread thread_;  // last, because the thread uses the other members
};

using Workers = std::array<std::unique_ptr<Worker>, kNumStreams>;

inline Status Later(Workers& workers, Stream stream, std::function<Status()> work) {
  workers[static_cast<int>(stream)]->Enqueue(std::move(work));
  return Status::Ok();
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_WORKERS_H_
