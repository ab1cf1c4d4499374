// Panels of orthogonal reductions: QR with its reflectors in compact WY form.
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

  // A = Q R by Householder reflectors, A m x n, of which there are k = min(m, n). R takes the place
  // of A on and above the diagonal; below it are the columns of V (m x k, unit lower trapezoidal).
  // Q = I - V T V^H, T (k x k) upper triangular, with zeros below its diagonal. (LAPACK's xGEQRT.)
  // Panels are narrow: n is at most some dozens.
  virtual Status QrPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t,
                         int64_t ldt) = 0;
  // v (m x k) := V from such a panel, with its ones and zeros.
  virtual Status UnpackReflectors(Stream stream, int64_t m, int64_t k, const T* a, int64_t lda,
                                  T* v, int64_t ldv) = 0;
  // The columns of a band from a tile column that was reduced: n columns, from the diagonal on, of
  // which the first m rows are the band's; R (k x n, upper) comes below those. band (ldb rows, n
  // columns) := what is below the diagonal of each, from it on, and zeros; diagonals become real.
  virtual Status PackBand(Stream stream, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
                          T* band, int64_t ldb) = 0;
  // *first becomes the smallest of itself and offset + k, k the first column (from 1) where the
  // lower trapezoid of an m x n block is not finite.
  virtual Status CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                             int64_t offset, int32_t* first) = 0;
  // b := a, m x n, of the dtype's real numbers.
  virtual Status FromReal(Stream stream, int64_t m, int64_t n, const Real<T>* a, int64_t lda, T* b,
                          int64_t ldb) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PANEL_KERNELS_H_
