// Iterations on stacks of matrices of one shape, computed by one device alone. Optimizers need them
// for many matrices at once. Matrices are row-major, as in device/stacks/stack_kernels.h.
//
// All matrices take as many steps as the slowest one: the host reads a norm of each matrix and
// stops when all have converged.
#ifndef JAXMG_XLA_FFI_ENGINE_STACKS_ITERATIONS_H_
#define JAXMG_XLA_FFI_ENGINE_STACKS_ITERATIONS_H_

#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// X := A / |A| in the Frobenius norm, for each of `count` matrices of `size` elements; zeros if A
// is zero. Entries may have any magnitude. X may be A.
template <typename T>
Status NormalizeStack(Device& device, int64_t count, int64_t size, const T* a, T* x);

// roots := (A + epsilon w I)^(-1/p), where w is the largest eigenvalue, for each of `count`
// Hermitian positive semidefinite n x n matrices. Uses the coupled Newton iteration, which updates
// M = H^p A along with H (C.-H. Guo and N. J. Higham, A Schur-Newton method for the matrix pth root
// and its inverse, 2006, equation (1.2)). A root is NaN if the iteration doesn't converge. Memory:
// six stacks.
template <typename T>
Status InverseRootsOfStack(Device& device, int64_t count, int64_t n, int64_t p, double epsilon,
                           const T* a, T* roots);

// Computes U of A = U H for each of `count` n x n matrices. U has orthonormal columns, whatever the
// rank of A. Uses QDWH (engine/svd/qdwh.h) with weights for which a Cholesky factorization is as
// accurate as a QR decomposition. Unless h is null, sets it to H / 2^e, where e is the matrix's
// exponent from StackElements::Scale, which is written to `exponents`. Memory: four stacks.
template <typename T>
Status PolarOfStack(Device& device, int64_t count, int64_t n, const T* a, T* u, T* h,
                    int32_t* exponents);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_STACKS_ITERATIONS_H_
