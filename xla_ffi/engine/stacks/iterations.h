// Iterations on stacks of matrices, all of one shape, that one device computes for itself: what
// optimizers need of many matrices at once. Matrices are row-major, as in device/stack_kernels.h.
//
// All matrices take the steps of the one that needs most. Which step is the last depends on a norm
// of each matrix, which the host reads once a step.
#ifndef JAXMG_XLA_FFI_ENGINE_STACKS_ITERATIONS_H_
#define JAXMG_XLA_FFI_ENGINE_STACKS_ITERATIONS_H_

#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// X := A / |A| in the Frobenius norm for each of `count` matrices of `size` elements, whatever
// their range; zeros where A is zero. X may be A.
template <typename T>
Status NormalizeStack(Device& device, int64_t count, int64_t size, const T* a, T* x);

// roots := (A + epsilon w I)^(-1/p) for each of `count` Hermitian matrices, n x n and positive
// semidefinite, w the largest eigenvalue: by the coupled Newton iteration (C.-H. Guo and N. J.
// Higham, A Schur-Newton method for the matrix pth root and its inverse, 2006, (1.2) there, with M
// = H^p A beside H). NaN where it doesn't converge. Memory: six stacks.
template <typename T>
Status InverseRootsOfStack(Device& device, int64_t count, int64_t n, int64_t p, double epsilon,
                           const T* a, T* roots);

// U with orthonormal columns, whatever the rank of A, of A = U H for each of `count` matrices, n x
// n, by QDWH (engine/svd/qdwh.h) with weights for which a Cholesky factorization is as good as a QR
// decomposition. Unless h is null it becomes H / 2^e, e the exponents of StackElements::Scale.
// Memory: four stacks.
template <typename T>
Status PolarOfStack(Device& device, int64_t count, int64_t n, const T* a, T* u, T* h,
                    int32_t* exponents);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_STACKS_ITERATIONS_H_
