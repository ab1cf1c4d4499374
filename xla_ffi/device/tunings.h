// The tunings of all devices, independent of their libraries, so that every plugin can plan calls
// for any device.
#ifndef JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
#define JAXMG_XLA_FFI_DEVICE_TUNINGS_H_

#include <atomic>
#include <cstdint>

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/tuning.h"

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
  tuning->eigen.ShareFrom(chosen == Eigensolver::kAll ? 1 : 0);
}

// Whether one of several CPU devices computes for all ranks if LAPACK on one rank is faster. A
// setting of the process, for tests and measurements.
inline std::atomic<bool>& WholeMatricesSetting() {
  static std::atomic<bool> whole{true};
  return whole;
}

inline Tuning HostTuning() {
  Tuning tuning;
  tuning.borrow_panels = true;
  tuning.resident_bytes = int64_t{1} << 20;
  tuning.lu.whole_order = int64_t{1} << 40;  // LAPACK's own factorization is the fastest
  tuning.qr.small_on_one = true;
  if (WholeMatricesSetting()) {
    tuning.whole_solve_order = 256;
    tuning.svd.whole_order = 4096;
    tuning.qr.whole_columns = 2048;
    tuning.qr.whole_elements = int64_t{1} << 17;
  }
  tuning.eigen.spread = 8192;
  tuning.eigen.spread_values = 4096;
  tuning.eigen.spread_complex = 2048;
  ChooseEigensolver(&tuning);
  return tuning;
}

// Measured on an H200 (docs/laboratory.md).
inline Tuning CudaTuning() {
  Tuning tuning;
  tuning.chain = true;
  tuning.usual_tile = 1024;
  tuning.least_tiles = 1;
  tuning.exchange_bytes = int64_t{64} << 20;
  tuning.few_right_hand_sides = 16;
  tuning.gather_to_solve = 7168;
  tuning.gather_to_invert = 1024;

  tuning.products.parts_order = 16384;

  tuning.cholesky.panel_block = kSolveColumns;
  tuning.cholesky.group_columns = 4096;
  tuning.cholesky.update_depth = 2048;
  tuning.cholesky.whole_order = 12288;
  tuning.cholesky.inverse_order = 1024;
  tuning.cholesky.update_block = 256;

  tuning.offload.chunk = 2048;
  tuning.offload.columns = 12288;

  tuning.lu.whole_order = 4096;
  tuning.lu.whole_order_float32 = 8192;
  tuning.lu.library_order = 8192;
  tuning.lu.library_order_double = 1536;
  tuning.lu.wide_order = 49152;
  tuning.lu.quarter_order = 20480;  // on two H200
  tuning.lu.half_order = 28672;
  tuning.lu.whole_inverse_order = 4096;
  tuning.lu.swap_bytes = int64_t{16} << 20;
  tuning.lu.right_hand_sides_at_once = 4;

  tuning.ldl.tile = 256;

  tuning.qr.tile = 512;
  tuning.qr.wide_order = 49152;

  tuning.eigen.spread = 5120;
  tuning.eigen.spread_values = 4608;
  tuning.eigen.spread_complex = 4096;
  tuning.eigen.stages_alone = 5120;
  tuning.eigen.stages_alone_values = 4096;
  tuning.eigen.band_width = kMostBand;
  tuning.eigen.band_width_complex128 = kMostBandComplex128;
  tuning.eigen.triangle_columns = 4096;
  tuning.eigen.sweep_group = kGroupSweeps;
  tuning.eigen.sweep_bundle = 1024;
  tuning.eigen.syevd_matrices = tuning.eigen.syevd_value_matrices = 4.2;
  ChooseEigensolver(&tuning);
  return tuning;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_TUNINGS_H_
