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

  // The singular value decomposition M = U S V^H of a matrix m x n, which is overwritten, with k =
  // min(m, n). With `vectors` s (k) is in descending order, u holds U (m x k) and vh V^H (k x n);
  // without, s is in ascending order, and u and vh may be null. *info is LAPACK's, or kNotFinite.
  // Only devices whose Tuning has a whole_svd_order need it.
  virtual Status Gesvd(Stream, bool /*vectors*/, int64_t /*m*/, int64_t /*n*/, T* /*a*/,
                       int64_t /*lda*/, Real<T>* /*s*/, T* /*u*/, int64_t /*ldu*/, T* /*vh*/,
                       int64_t /*ldvh*/, int32_t* /*info*/) {
    return Status::Fixed(Code::kInternal, "the device has no singular value decomposition");
  }

  // The QR decomposition M = Q R, m >= n, by reflectors. r := R with zeros below its diagonal, and
  // with `with_q` a := Q (m x n). *info := kNotFinite if M isn't finite. Only devices whose Tuning
  // has whole_qr_columns need it.
  virtual Status Qr(Stream, bool /*with_q*/, int64_t /*m*/, int64_t /*n*/, T* /*a*/,
                    int64_t /*lda*/, T* /*r*/, int64_t /*ldr*/, int32_t* /*info*/) {
    return Status::Fixed(Code::kInternal, "the device has no QR decomposition");
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_
