// What one device alone does with a whole matrix, where no algorithm of tiles does it.
#ifndef JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_
#define JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// Of one dtype. Each solver has a Reserve beside it, which takes the memory that it needs beside
// its operands until the call is over, so that a lack of it shows before the ranks have begun.
template <typename T>
class MatrixSolver {
 public:
  virtual ~MatrixSolver() = default;

  // Eigenvalues (ascending) and, if wanted, eigenvectors of a Hermitian matrix of which the lower
  // triangle is read; the vectors replace it. *info as LAPACK's.
  virtual Status Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, Real<T>* w,
                       int32_t* info) = 0;
  virtual Status ReserveSyevd(Stream, bool /*vectors*/, int64_t /*n*/, T* /*a*/, int64_t /*lda*/,
                              Real<T>* /*w*/) {
    return Status::Ok();
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_
