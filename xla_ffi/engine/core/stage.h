// Stage: a part of an algorithm, for those who watch the progress of a call (device/progress.h).
//
//   Stage stage(device, "factor", tiles, FactorWork(n), kShrinks);
//   for (int64_t k = 0; k < tiles; ++k) {
//     ...
//     stage.Done(Stream::kMain, k + 1);
//   }
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_STAGE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_STAGE_H_

#include <cstdint>

#include "xla_ffi/device/progress.h"

namespace jaxmg {

// The exponent of 1 - x, which is the work that remains after a share x of the steps: of steps that
// are alike, of a substitution, and of a factorization.
enum Remaining { kAlike = 1, kNarrows = 2, kShrinks = 3 };

class Stage {
 public:
  // `operations`: an estimate of the stage's share of the call, in the unit of AnnounceWork.
  Stage(Device& device, const char* name, int64_t steps, double operations,
        Remaining remaining = kAlike) noexcept
      : device_(device), progress_(device.progress()) {
    if (progress_ != nullptr) progress_->BeginStage(name, steps, operations, remaining);
  }
  ~Stage() {
    if (progress_ != nullptr) progress_->EndStage();
  }
  Stage(const Stage&) = delete;

  // Records that `step` steps are done once the device has done the work that the stream has now.
  // All calls of a stage name the same stream.
  void Done(Stream stream, int64_t step) noexcept {
    if (progress_ != nullptr) progress_->Reached(device_, stream, step);
  }

 private:
  Device& device_;
  CallProgress* const progress_;  // null unless progress is wanted
};

// Sets the operations of all stages of a call.
inline void AnnounceWork(Device& device, double operations) noexcept {
  if (device.progress() != nullptr) device.progress()->Announce(operations);
}

// Operations of algorithms on real matrices, of all ranks together; complex ones have a common
// factor.
inline double FactorWork(int64_t n) { return static_cast<double>(n) * n * n / 3; }
inline double SolveWork(int64_t n, int64_t nrhs) { return static_cast<double>(n) * n * nrhs; }
inline double LuWork(int64_t m, int64_t n) {
  const double rows = static_cast<double>(m), least = static_cast<double>(m < n ? m : n);
  return least * (rows * static_cast<double>(n) - (rows + n) * least / 2 + least * least / 3) * 2;
}
inline double QrWork(int64_t rows, int64_t columns) { return 2 * LuWork(rows, columns); }
inline double ProductWork(int64_t m, int64_t n, int64_t k) {
  return 2.0 * static_cast<double>(m) * n * k;
}
// Of eigenproblems: the reduction to a band, bulge chasing, divide and conquer, and the product of
// eigenvectors with one factor of n x n. One rank chases while the others wait, and memory limits
// it; the factors stand for both.
inline double BandWork(int64_t n) { return 6 * FactorWork(n); }
inline double ChaseWork(int64_t n, int64_t band, int ranks) {
  constexpr double kSlower = 4;
  return kSlower * ranks * 6 * SolveWork(n, band);
}
inline double DivideWork(int64_t n, bool vectors) {
  return vectors ? 4 * FactorWork(n) : SolveWork(n, 1);
}
inline double BackWork(int64_t n, int64_t columns) { return ProductWork(n, columns, n); }
inline double EigenWork(int64_t n, int64_t band, int ranks, int64_t columns) {
  return BandWork(n) + ChaseWork(n, band, ranks) + DivideWork(n, columns > 0) +
         3 * BackWork(n, columns);
}
// Of a polar decomposition, whose number of iterations depends on the matrix.
inline double PolarWork(int64_t n) { return 60 * FactorWork(n); }

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_STAGE_H_
