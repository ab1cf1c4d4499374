// The devices' tunings, in one place and free of their libraries, so that every plugin can say how
// a call would be laid out on any of them.
#ifndef JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
#define JAXMG_XLA_FFI_DEVICE_TUNINGS_H_

#include <atomic>
#include <cstdint>

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// Which ranks solve an eigenproblem: by the order of the matrix, one by its device's solver, or
// all by the engine. For a process that sets it, before its first call.
enum class Eigensolver { kAuto, kOne, kAll };

inline std::atomic<Eigensolver>& EigensolverSetting() {
  static std::atomic<Eigensolver> eigensolver{Eigensolver::kAuto};
  return eigensolver;
}

inline void ChooseEigensolver(Tuning* tuning) {
  const Eigensolver chosen = EigensolverSetting();
  if (chosen == Eigensolver::kAuto) return;
  tuning->ShareEigenproblemsFrom(chosen == Eigensolver::kAll ? 1 : 0);
}

inline Tuning HostTuning() {
  Tuning tuning;
  tuning.borrow_panels = true;
  tuning.spread_eigen = 8192;
  tuning.spread_values = 4096;
  tuning.spread_complex = 2048;
  tuning.resident_bytes = int64_t{1} << 20;
  ChooseEigensolver(&tuning);
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
  tuning.parts_order = 16384;
  tuning.exchange_bytes = int64_t{64} << 20;
  tuning.inverse_order = 1024;
  tuning.syevd_matrices = tuning.syevd_value_matrices = 4.2;
  tuning.band_width = kMostBand;
  tuning.band_width_complex128 = kMostBandComplex128;
  tuning.triangle_columns = 4096;
  tuning.sweep_group = kGroupSweeps;
  tuning.sweep_bundle = 1024;
  tuning.spread_eigen = 5120;
  tuning.spread_values = 4608;
  tuning.spread_complex = 4096;
  tuning.stages_alone = 6144;
  ChooseEigensolver(&tuning);
  return tuning;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
