// The eigenproblem of a small symmetric tridiagonal matrix, on the host.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_TRIDIAGONAL_LEAF_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_TRIDIAGONAL_LEAF_H_

#include <cstdint>

namespace jaxmg {

// Overwrites d (n) with the eigenvalues, ascending, and destroys e (n - 1). Multiplies q (rows x n)
// by the matrix of eigenvectors from the right. The elements of d and e must be at most about 1.
// Returns false if eigenvalues need more than `sweeps` sweeps on average; q is orthogonal even
// then. Uses implicit QR with Wilkinson's shifts (Golub and Van Loan, Matrix computations, section
// 8.3).
template <typename R>
bool SolveLeaf(int64_t n, R* d, R* e, int64_t rows, R* q, int64_t ldq, int sweeps);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_TRIDIAGONAL_LEAF_H_
