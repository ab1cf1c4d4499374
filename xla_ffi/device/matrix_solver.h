// MatrixSolver: solvers of one device for a whole matrix.
#ifndef JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_
#define JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// The solvers of one dtype. Each solver has a Reserve function, which allocates its workspace until
// the call is over, so that an allocation fails before the ranks start to work.
template <typename T>
class MatrixSolver {
 public:
  virtual ~MatrixSolver() = default;

  // Computes the eigenvalues (ascending) and, with `vectors`, the eigenvectors of a Hermitian
  // matrix. Reads the lower triangle; the vectors overwrite the matrix. *info is LAPACK's.
  virtual Status Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, Real<T>* w,
                       int32_t* info) = 0;
  virtual Status ReserveSyevd(Stream, bool /*vectors*/, int64_t /*n*/, T* /*a*/, int64_t /*lda*/,
                              Real<T>* /*w*/) {
    return Status::Ok();
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_
