// The eigenproblem of a small symmetric tridiagonal matrix, on the host.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_TRIDIAGONAL_LEAF_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_TRIDIAGONAL_LEAF_H_

#include <cstdint>

namespace jaxmg {

// d (n) becomes the eigenvalues, ascending, and e (n - 1) is used up. The columns of q (rows x n)
// are multiplied with the eigenvectors: the identity becomes these. Elements are at most about 1.
// False where more than `sweeps` sweeps an eigenvalue would be needed; q is orthogonal even so. By
// implicit QR with Wilkinson's shifts (Golub and Van Loan, Matrix computations, section 8.3).
template <typename R>
bool SolveLeaf(int64_t n, R* d, R* e, int64_t rows, R* q, int64_t ldq, int sweeps);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_TRIDIAGONAL_LEAF_H_
