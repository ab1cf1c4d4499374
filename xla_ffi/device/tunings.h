// The devices' tunings, in one place and free of their libraries, so that every plugin can say how
// a call would be laid out on any of them.
#ifndef JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
#define JAXMG_XLA_FFI_DEVICE_TUNINGS_H_

#include <atomic>
#include <cstdint>

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// Tuning::spread_eigen of the host: for a process that sets it, before its first call.
inline std::atomic<int64_t>& HostSpreadEigen() {
  static std::atomic<int64_t> from{8192};
  return from;
}

inline Tuning HostTuning() {
  Tuning tuning;
  tuning.borrow_panels = true;
  tuning.spread_eigen = HostSpreadEigen();
  tuning.resident_bytes = int64_t{1} << 20;
  return tuning;
}

// As measured on H200: see docs/performance.md.
inline Tuning CudaTuning() {
  Tuning tuning;
  tuning.panel_block = kSolveColumns;
  tuning.chain = true;
  tuning.group_columns = 4096;
  tuning.update_depth = 2048;
  tuning.usual_tile = 1024;
  tuning.least_tiles = 1;
  tuning.whole_order = 12288;
  tuning.gather_to_solve = 7168;
  tuning.gather_to_invert = 1024;
  tuning.exchange_bytes = int64_t{64} << 20;
  tuning.inverse_order = 1024;
  tuning.syevd_matrices = tuning.syevd_value_matrices = 4.2;
  return tuning;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
