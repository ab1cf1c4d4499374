// Interrupts: SIGINT (Ctrl-C) fails the calls of this process that are under way.
//
//   SIGINT ──► handler: counts the signal, calls the handler that it replaces, wakes the watcher
//   watcher ─► asks the program whether SIGINT should interrupt calls
//           ─► aborts the calls that began before the signal, on all their ranks
//
// The handler is installed when a call begins, and only in place of the handler that
// WatchInterrupts saw. Ranks learn of an abort at the next step of their Flow and in any wait for
// another rank. A program that made a call before the signal is interrupted at its next call.
// Executions that make their first call after the signal are not affected.
#ifndef JAXMG_XLA_FFI_COMM_INTERRUPTS_H_
#define JAXMG_XLA_FFI_COMM_INTERRUPTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/in_process.h"

namespace jaxmg {

// A rank's part in a call, from its start to its end.
class CallUnderWay {
 public:
  // Fails the call for ranks that have not met yet. `site` is the one passed to the constructor.
  using FailWaiting = void (*)(const void* site, const Status& status) noexcept;

  // Returns the text that follows "interrupted by SIGINT (Ctrl-C)" in the error of the call.
  using Where = std::string (*)(const void* site);

  // `run`: the execution of the program that contains the call. `routine` and `site` must outlive
  // the object. Allocates no memory.
  CallUnderWay(const char* routine, int64_t run, const void* site, FailWaiting fail,
               Where where) noexcept;
  ~CallUnderWay();
  CallUnderWay(const CallUnderWay&) = delete;
  CallUnderWay& operator=(const CallUnderWay&) = delete;

  // Records that the ranks of the call have met in `group`.
  void Join(const std::shared_ptr<InProcessGroup>& group) noexcept;

  // Returns the error of the call if it was interrupted, else Ok.
  Status Interruption() const noexcept;

  // Called with the outcome of the call. If another process was interrupted, waits briefly for this
  // process's signal: a launcher or a terminal sends it to all processes of a job.
  void AwaitOwnSignal(const Status& outcome) noexcept;

 private:
  friend void InterruptCalls(int64_t signals) noexcept;
  void Interrupt() noexcept;

  const char* const routine_;
  const void* const site_;
  const FailWaiting fail_;
  const Where where_;
  CallUnderWay *previous_ = nullptr, *next_ = nullptr;
  int64_t begun_ = 0;  // the number of signals at the first call of the execution
  Status interrupted_;
  std::shared_ptr<InProcessGroup> group_;
};

// Fails the calls of executions that began before signal number `signals`, counted from 1.
void InterruptCalls(int64_t signals) noexcept;

// Returns the number of signals that the handler has received.
int64_t CountInterrupts() noexcept;

// Starts to watch SIGINT. For each signal the watcher's thread calls `wanted`, and interrupts calls
// if it returns true. Returns false, and watches nothing, if SIGINT has no handler function now.
bool WatchInterrupts(bool (*wanted)());

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_INTERRUPTS_H_
