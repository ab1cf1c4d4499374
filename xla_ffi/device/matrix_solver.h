// MatrixSolver: one device's solvers for a whole matrix.
#ifndef JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_
#define JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// The solvers of one dtype. A solver may have a Reserve function, which allocates its workspace
// until the end of the call, so that an allocation fails before the ranks start to work.
template <typename T>
class MatrixSolver {
 public:
  virtual ~MatrixSolver() = default;

  // Computes the eigenvalues (ascending) and, if `vectors`, the eigenvectors of a Hermitian matrix.
  // Reads the lower triangle; the vectors overwrite the matrix. *info is LAPACK's.
  virtual Status Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, Real<T>* w,
                       int32_t* info) = 0;
  virtual Status ReserveSyevd(Stream, bool /*vectors*/, int64_t /*n*/, T* /*a*/, int64_t /*lda*/,
                              Real<T>* /*w*/) {
    return Status::Ok();
  }

  // Computes the singular value decomposition M = U S V^H of a matrix m x n with k = min(m, n), and
  // overwrites the matrix. If `vectors`, s (k) is in descending order, u receives U (m x k) and vh
  // V^H (k x n). Otherwise s is in ascending order, and u and vh may be null. *info is LAPACK's, or
  // kNotFinite. Required only of devices whose Tuning has a Svd::whole_order.
  virtual Status Gesvd(Stream, bool /*vectors*/, int64_t /*m*/, int64_t /*n*/, T* /*a*/,
                       int64_t /*lda*/, Real<T>* /*s*/, T* /*u*/, int64_t /*ldu*/, T* /*vh*/,
                       int64_t /*ldvh*/, int32_t* /*info*/) {
    return Status::Fixed(Code::kInternal, "the device has no singular value decomposition");
  }

  // Computes the QR decomposition M = Q R, m >= n, with reflectors. r := R with zeros below its
  // diagonal and, if `with_q`, a := Q (m x n). *info := kNotFinite if M isn't finite. Required only
  // of devices whose Tuning has Qr::whole_columns.
  virtual Status Qr(Stream, bool /*with_q*/, int64_t /*m*/, int64_t /*n*/, T* /*a*/,
                    int64_t /*lda*/, T* /*r*/, int64_t /*ldr*/, int32_t* /*info*/) {
    return Status::Fixed(Code::kInternal, "the device has no QR decomposition");
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_MATRIX_SOLVER_H_
