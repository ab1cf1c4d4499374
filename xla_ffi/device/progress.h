// Progress: how far the calls of this process have come, for those who watch long calls.
//
//   algorithm ─► Stage (engine/core/stage.h): its steps and their operations
//             ─► CallProgress of the call's first rank: enqueues the number of each step's end
//   device ────► writes this number to host memory when it has done the step
//   watcher ───► TakeProgress: reads the numbers, at any time, on any thread
//
// Nothing is recorded unless SetProgressWanted(true) was called: a stage then costs one branch.
#ifndef JAXMG_XLA_FFI_DEVICE_PROGRESS_H_
#define JAXMG_XLA_FFI_DEVICE_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "xla_ffi/device/device.h"

namespace jaxmg {

void SetProgressWanted(bool wanted) noexcept;
bool ProgressWanted() noexcept;

// The properties of a call that a watcher sees. `routine` has static lifetime.
struct CallDescription {
  const char* routine;
  int64_t n;
  int ranks;
};

// A call under way, or one that has ended since it was last taken.
struct ProgressSnapshot {
  int64_t call;  // a number that is unique in this process
  CallDescription of;
  const char* stage;    // "" before the first
  int64_t step, steps;  // of the stage: how many are done, and how many it has
  double fraction;      // of the call's operations that are done; negative: unknown
  double seconds;       // since the device began with the call
  bool ended, ok;
};

// Returns the calls under way, oldest first, and those that have ended since a snapshot of them was
// taken.
std::vector<ProgressSnapshot> TakeProgress();

// The progress of one call. The thread of the call's first rank records, another one takes
// snapshots.
class CallProgress {
 public:
  CallProgress(const CallDescription& of, uint32_t* word);

  // Sets the operations of all stages of the call. More of them may follow, as in iterations whose
  // number is unknown. Without it the call has one stage.
  void Announce(double operations) noexcept;

  // `remaining` is the exponent of 1 - x, which is the work that remains after a share x of the
  // steps: 1 if all steps are alike, 3 for a factorization. Stages within stages are ignored.
  void BeginStage(const char* name, int64_t steps, double operations, int remaining) noexcept;
  // Records that `step` steps are done once the device has reached this point of the stream.
  // Successive points must be in order on the device.
  void Reached(Device& device, Stream stream, int64_t step) noexcept;
  void EndStage() noexcept;

  // Marks the beginning of the call. Returns false if the device can't write marks.
  bool Begin(Device& device) noexcept;
  // Marks the end of the call, at which kMain waits for all other streams.
  void End(Device& device, bool ok) noexcept;

 private:
  friend class ProgressBoard;
  struct Mark {
    const char* stage;
    int64_t step, steps;
    double done;  // operations
  };
  bool Put(Device& device, Stream stream, const Mark& mark) noexcept;
  bool ended() const noexcept;
  ProgressSnapshot Look(double now);

  const CallDescription of_;
  uint32_t* const word_;  // the number of marks that the device has reached
  int64_t call_ = 0;
  std::mutex mutex_;
  std::vector<Mark> marks_;
  double begun_, total_ = 0;
  bool announced_ = false;
  std::atomic<bool> failed_{false};
  bool seen_ = false;  // a snapshot was taken while the call was under way
  // Of the recording thread only:
  int depth_ = 0;
  Mark now_ = {"", 0, 0, 0};
  double before_ = 0, operations_ = 0;  // of the earlier stages, and of this one
  int remaining_ = 1;
};

// Records the progress of a call during its lifetime, if it is wanted and this is the rank that
// reports.
class ReportedCall {
 public:
  ReportedCall(Device* device, const CallDescription& of, bool reports) noexcept;
  // Ends the call if it has not ended, as after an exception.
  ~ReportedCall() { End(Status::Fixed(Code::kInternal, "the call was left by an exception")); }
  ReportedCall(const ReportedCall&) = delete;
  // Only the first call has an effect.
  void End(const Status& status) noexcept;

 private:
  Device* const device_;
  std::shared_ptr<CallProgress> progress_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PROGRESS_H_
