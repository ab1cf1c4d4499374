// Runs the threads of a block as fibers of one thread. A fiber runs until it waits at a barrier.
// System threads take ten times as long, mostly for switching between threads. After each barrier
// the fibers run in another order. A kernel with a missing __syncthreads computes the same numbers
// in every run, and these are mostly wrong. Included only by host_cuda.h.
#ifndef JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_FIBERS_H_
#define JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_FIBERS_H_

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace host_cuda {

struct Fiber {
  ucontext_t context;
  bool ended = false;
  // The fiber waits until *word differs from `old`. It doesn't wait if `word` is null.
  const int* word = nullptr;
  int old = 0;
};

inline ucontext_t scheduler;
inline Fiber* running;
inline const std::function<void()>* program;

inline void SwitchToOthers() { swapcontext(&running->context, &scheduler); }

// Also yields to other processes, which may run other blocks.
inline void Yield() {
  SwitchToOthers();
  std::this_thread::yield();
}

// A barrier of fibers, which doesn't wait for fibers that have returned.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void Wait() {
    if (++waiting_ == threads_) return Next();
    running->word = &round_;
    running->old = round_;
    SwitchToOthers();
    running->word = nullptr;
  }
  void Leave() {
    if (--threads_ == waiting_ && threads_ > 0) Next();
  }

 private:
  void Next() {
    waiting_ = 0;
    ++round_;
  }

  int threads_, waiting_ = 0, round_ = 0;
};

constexpr unsigned kMostThreads = 1024;
constexpr size_t kStackBytes = 256 << 10;

// Returns memory for the stacks of a block. The next block reuses it.
inline char* Stacks() {
  static void* const stacks = mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) std::abort();
  return static_cast<char*>(stacks);
}

inline void RunFiber() {
  (*program)();
  running->ended = true;
}

// Runs `body` as threads 0 to count - 1. Calls `enter` with a thread's number whenever the thread
// starts or resumes.
inline void RunThreads(unsigned count, const std::function<void(unsigned)>& enter,
                       const std::function<void()>& body) {
  if (count > kMostThreads) std::abort();
  static std::minstd_rand random;
  program = &body;
  std::vector<Fiber> fibers(count);
  for (unsigned i = 0; i < count; ++i) {
    ucontext_t& context = fibers[i].context;
    getcontext(&context);
    context.uc_stack.ss_sp = Stacks() + i * kStackBytes;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = &scheduler;
    makecontext(&context, &RunFiber, 0);
  }
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (unsigned left = count; left > 0;) {
    std::shuffle(order.begin(), order.end(), random);
    for (const unsigned i : order) {
      Fiber& fiber = fibers[i];
      if (fiber.ended || (fiber.word != nullptr && *fiber.word == fiber.old)) continue;
      enter(i);
      running = &fiber;
      swapcontext(&scheduler, &fiber.context);
      left -= fiber.ended;
    }
  }
}

}  // namespace host_cuda

#endif  // JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_FIBERS_H_
