#include "xla_ffi/comm/interrupts.h"

#include <semaphore.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "xla_ffi/comm/monitor.h"

namespace jaxmg {
namespace {

using SignalHandler = void (*)(int);

// The longest time between another process's interrupt and this process's own signal.
constexpr Seconds kSignalsApart(0.5);

// The state that the signal handler uses. A handler may call almost nothing.
std::atomic<int64_t> signal_count{0};
std::atomic<SignalHandler> replaced{nullptr};
sem_t signalled;
static_assert(std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<SignalHandler>::is_always_lock_free);

void OnSignal(int number) {
  const int saved = errno;
  signal_count.fetch_add(1);
  // The replaced handler comes first: when a call returns because of the signal, the main thread
  // must already have the signal.
  if (const SignalHandler handler = replaced.load()) handler(number);
  sem_post(&signalled);
  errno = saved;
}

// Replaces the process's handler `from` with `to`. Leaves any other handler in place.
void Replace(SignalHandler from, SignalHandler to) noexcept {
  struct sigaction now = {}, before = {};
  if (sigaction(SIGINT, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != from) return;
  now.sa_handler = to;
  if (sigaction(SIGINT, &now, &before) != 0) return;
  // Another thread changed the handler in between.
  if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != from) {
    sigaction(SIGINT, &before, nullptr);
  }
}

// An execution of a program, and the count of signals at its first call.
struct Execution {
  int64_t run = 0, begun = -1;  // -1: none
};

struct Calls {
  Monitor monitor;
  CallUnderWay* first = nullptr;
  bool watches = false;
  int64_t interrupted = 0;  // the number of the last signal that interrupted calls
  // The last executions, which make the calls of a loop one unit. 64 suffice, because XLA runs
  // fewer at a time.
  std::array<Execution, 64> executions;
  size_t next_execution = 0;

  int64_t BeginningOf(int64_t run) noexcept {
    for (const Execution& known : executions) {
      if (known.begun >= 0 && known.run == run) return known.begun;
    }
    const Execution added = {run, signal_count.load()};
    executions[next_execution] = added;
    next_execution = (next_execution + 1) % executions.size();
    return added.begun;
  }
};

Calls& TheCalls() { return Forever<Calls>(); }

}  // namespace

CallUnderWay::CallUnderWay(const char* routine, int64_t run, const void* site, FailWaiting fail,
                           Where where) noexcept
    : routine_(routine), site_(site), fail_(fail), where_(where) {
  Calls& calls = TheCalls();
  auto lock = calls.monitor.Lock();
  if (calls.first == nullptr && calls.watches) Replace(replaced.load(), OnSignal);
  begun_ = calls.BeginningOf(run);
  next_ = calls.first;
  if (next_ != nullptr) next_->previous_ = this;
  calls.first = this;
  if (begun_ < calls.interrupted) Interrupt();
}

CallUnderWay::~CallUnderWay() {
  Calls& calls = TheCalls();
  auto lock = calls.monitor.Lock();
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : calls.first) = next_;
}

void CallUnderWay::Join(const std::shared_ptr<InProcessGroup>& group) noexcept {
  auto lock = TheCalls().monitor.Lock();
  group_ = group;
  if (!interrupted_.ok()) group->Abort(interrupted_);
}

Status CallUnderWay::Interruption() const noexcept {
  auto lock = TheCalls().monitor.Lock();
  return interrupted_;
}

void CallUnderWay::AwaitOwnSignal(const Status& outcome) noexcept {
  if (outcome.code() != Code::kCancelled) return;
  Calls& calls = TheCalls();
  auto lock = calls.monitor.Lock();
  if (!calls.watches) return;
  calls.monitor.Wait(lock, {kSignalsApart}, [&] { return !interrupted_.ok(); });
}

// Requires the lock of the calls.
void CallUnderWay::Interrupt() noexcept {
  interrupted_ = Guarded([&] {
    return Error(Code::kCancelled, routine_, ": interrupted by SIGINT (Ctrl-C)", where_(site_));
  });
  if (group_ != nullptr) {
    group_->Abort(interrupted_);
  } else {
    fail_(site_, interrupted_);
  }
}

void InterruptCalls(int64_t signals) noexcept {
  Calls& calls = TheCalls();
  auto lock = calls.monitor.Lock();
  calls.interrupted = std::max(calls.interrupted, signals);
  for (CallUnderWay* call = calls.first; call != nullptr; call = call->next_) {
    if (call->begun_ < signals && call->interrupted_.ok()) call->Interrupt();
  }
  calls.monitor.Notify();
}

int64_t CountInterrupts() noexcept { return signal_count.load(); }

bool WatchInterrupts(bool (*wanted)()) {
  Calls& calls = TheCalls();
  auto lock = calls.monitor.Lock();
  if (calls.watches) return true;
  struct sigaction now = {};
  if (sigaction(SIGINT, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
      now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) {
    return false;
  }
  if (sem_init(&signalled, 0, 0) != 0) return false;
  std::thread([wanted] {
    for (;;) {
      if (sem_wait(&signalled) != 0) continue;  // interrupted by another signal
      const int64_t signals = signal_count.load();
      if (wanted()) InterruptCalls(signals);
    }
  }).detach();
  replaced.store(now.sa_handler);
  calls.watches = true;
  return true;
}

}  // namespace jaxmg
