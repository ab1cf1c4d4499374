// syevd: eigenvalues and eigenvectors of a distributed Hermitian matrix by the device's own LAPACK
// on rank 0. The matrix is gathered there, so that rank needs memory for the whole matrix and, with
// vectors, for LAPACK's workspace of about 2 n^2 elements.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_SYEVD_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_SYEVD_H_

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// `matrix` must be M = conj(A) in contiguous blocks with a valid lower triangle. Writes the
// eigenvalues, ascending, to `w` (n, on every rank). With `vectors`, overwrites the blocks with
// columns of U^H, where M U = U diag(w). Read as rows, these are the rows of V = conj(U), and A V =
// V diag(w). `gathered` holds n x n elements on rank 0, `staging` one tile on each rank. Sets *info
// to LAPACK's info on rank 0.
template <typename T>
Status Syevd(const RankContext& context, const Matrix<T>& matrix, bool vectors, T* gathered,
             T* staging, Real<T>* w, int32_t* info);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_SYEVD_H_
