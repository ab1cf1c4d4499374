// Kernels for the panels of orthogonal reductions.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_QR_KERNELS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_QR_KERNELS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/qr/panel.cuh"
#include "xla_ffi/device/cuda/qr/register_panel.cuh"

namespace jaxmg::kernels {

#define QR_KERNELS(T, R, letter)                                                                   \
  KERNEL __launch_bounds__(kPanelThreads, 1) jaxmg_factor_panel_##letter(                          \
      Index m, int n, T* a, Index lda, T* t, Index ldt, unsigned* arrivals, T* sums, R* largest) { \
    PanelFactor<T, 32>(m, n, a, lda, t, ldt, arrivals, sums, largest).Run();                       \
  }                                                                                                \
  KERNEL __launch_bounds__(kPanelThreads, 1) jaxmg_factor_panel_in_registers_##letter(             \
      Index m, int n, T* a, Index lda, T* t, Index ldt, T* numbers) {                              \
    RegisterPanel<T>(m, n, a, lda, t, ldt, numbers).Run();                                         \
  }                                                                                                \
  KERNEL jaxmg_pack_band_##letter(Index m, Index n, Index k, const T* a, Index lda, T* band,       \
                                  Index ldb) {                                                     \
    PackBand(m, n, k, a, lda, band, ldb);                                                          \
  }                                                                                                \
  KERNEL jaxmg_unpack_reflectors_##letter(Index m, Index k, const T* a, Index lda, T* v,           \
                                          Index ldv) {                                             \
    UnpackReflectors(m, k, a, lda, v, ldv);                                                        \
  }

QR_KERNELS(float, float, s)
QR_KERNELS(double, double, d)
QR_KERNELS(cuComplex, float, c)
QR_KERNELS(cuDoubleComplex, double, z)
#undef QR_KERNELS

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_QR_KERNELS_CUH_
