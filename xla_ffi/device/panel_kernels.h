// PanelKernels: the operations of orthogonal reductions on panels. Reflectors are in compact WY
// form.
#ifndef JAXMG_XLA_FFI_DEVICE_PANEL_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_PANEL_KERNELS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

template <typename T>
class PanelKernels {
 public:
  virtual ~PanelKernels() = default;

  // Computes A = Q R with k = min(m, n) Householder reflectors; A is m x n. R overwrites A on and
  // above the diagonal; the columns of V (m x k, unit lower trapezoidal) overwrite it below. Q = I
  // - V T V^H; T (k x k) is upper triangular, with zeros below its diagonal (LAPACK's xGEQRT).
  // Panels are narrow: n is at most a few dozen.
  virtual Status QrPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t,
                         int64_t ldt) = 0;
  // v (m x k) := V of a panel after QrPanel, including its ones and zeros.
  virtual Status UnpackReflectors(Stream stream, int64_t m, int64_t k, const T* a, int64_t lda,
                                  T* v, int64_t ldv) = 0;
  // Extracts the columns of a band from a reduced tile column: n columns from the diagonal on.
  // Their first m rows belong to the band, and R (k x n, upper) is below these. Each column of band
  // (ldb x n) becomes the elements from the diagonal down, then zeros. The diagonal becomes real.
  virtual Status PackBand(Stream stream, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
                          T* band, int64_t ldb) = 0;
  // *first := min(*first, offset + k), where k is the first column (from 1) in which the lower
  // trapezoid of an m x n block is not finite.
  virtual Status CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                             int64_t offset, int32_t* first) = 0;
  // b := a, m x n, where a is real.
  virtual Status FromReal(Stream stream, int64_t m, int64_t n, const Real<T>* a, int64_t lda, T* b,
                          int64_t ldb) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PANEL_KERNELS_H_
