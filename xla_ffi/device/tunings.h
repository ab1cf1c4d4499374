// The tunings of all devices, independent of their libraries, so that every plugin can plan calls
// for any device.
#ifndef JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
#define JAXMG_XLA_FFI_DEVICE_TUNINGS_H_

#include <atomic>
#include <cstdint>

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// Which ranks solve an eigenproblem: kAuto decides by the order of the matrix, kOne uses the
// device's solver on one rank, kAll the engine on all ranks. A setting of the process, for tests
// and measurements.
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

// Whether one rank of several CPU devices computes for all where LAPACK is faster alone. A setting
// of the process, for tests and measurements.
inline std::atomic<bool>& WholeMatricesSetting() {
  static std::atomic<bool> whole{true};
  return whole;
}

inline Tuning HostTuning() {
  Tuning tuning;
  tuning.borrow_panels = true;
  tuning.whole_lu_order = int64_t{1} << 40;  // LAPACK's own factorization is the fastest
  tuning.spread_eigen = 8192;
  tuning.spread_values = 4096;
  tuning.spread_complex = 2048;
  tuning.resident_bytes = int64_t{1} << 20;
  tuning.small_on_one = true;
  if (WholeMatricesSetting()) {
    tuning.whole_solve_order = 256;
    tuning.whole_svd_order = 4096;
    tuning.whole_qr_columns = 2048;
    tuning.whole_qr_elements = int64_t{1} << 17;
  }
  ChooseEigensolver(&tuning);
  return tuning;
}

// Measured on an H200 (docs/laboratory.md).
inline Tuning CudaTuning() {
  Tuning tuning;
  tuning.panel_block = kSolveColumns;
  tuning.chain = true;
  tuning.group_columns = 4096;
  tuning.update_depth = 2048;
  tuning.usual_tile = 1024;
  tuning.least_tiles = 1;
  tuning.qr_tile = 512;
  tuning.qr_wide_order = 49152;
  tuning.wide_lu_order = 49152;
  tuning.quarter_lu_order = 20480;  // on two H200
  tuning.half_lu_order = 28672;
  tuning.whole_order = 12288;
  tuning.whole_lu_order = 4096;
  tuning.whole_lu_order_float32 = 8192;
  tuning.library_lu_order = 8192;
  tuning.library_lu_order_double = 1536;
  tuning.whole_inverse_order = 4096;
  tuning.gather_to_solve = 7168;
  tuning.gather_to_invert = 1024;
  tuning.parts_order = 16384;
  tuning.swap_bytes = int64_t{16} << 20;
  tuning.exchange_bytes = int64_t{64} << 20;
  tuning.inverse_order = 1024;
  tuning.few_right_hand_sides = 16;
  tuning.right_hand_sides_at_once = 4;
  tuning.syevd_matrices = tuning.syevd_value_matrices = 4.2;
  tuning.band_width = kMostBand;
  tuning.band_width_complex128 = kMostBandComplex128;
  tuning.triangle_columns = 4096;
  tuning.sweep_group = kGroupSweeps;
  tuning.sweep_bundle = 1024;
  tuning.spread_eigen = 5120;
  tuning.spread_values = 4608;
  tuning.spread_complex = 4096;
  tuning.stages_alone = 5120;
  tuning.stages_alone_values = 4096;
  ChooseEigensolver(&tuning);
  return tuning;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
