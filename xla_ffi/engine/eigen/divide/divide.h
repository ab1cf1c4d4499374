// Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix by divide and conquer
// (LAPACK's stedc), with the rows of the eigenvectors distributed over the ranks.
//
// A matrix torn in two halves is a rank-one modification of their eigenproblems: with eigenvalues D
// and eigenvectors Q = diag(Q1, Q2) of the halves, it is Q (D + rho z z^T) Q^T. z consists of a row
// of Q1 and one of Q2, and the eigenvectors U of the inner matrix, of order k after deflation,
// follow from O(k) numbers. So each rank computes its rows of Q U independently, and no merge moves
// a matrix. The ranks of a merge exchange z and D, then their shares of the roots and of the
// refined z. Without deflation this takes 4/3 n^3 operations, distributed by rows, nearly all in
// products.
//
// Sources: Cuppen 1981; Gu and Eisenstat, A divide-and-conquer algorithm for the symmetric
// tridiagonal eigenproblem, 1995 (the refined z, which makes U orthogonal); Rutter 1994 (deflation,
// and grouping of columns); Li, LAPACK working note 89, 1993 (roots).
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_H_

#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

struct DivideTuning {
  // Matrices of at most this order are solved on the host instead of being torn.
  int64_t leaf = 32;
  // The number of eigenvectors of a merge that are computed and multiplied at a time.
  int64_t panel = 512;
  // Iteration limits: sweeps per eigenvalue of a leaf (usually two are needed) and evaluations per
  // root (usually four).
  int leaf_sweeps = 30;
  int evaluations = 100;
};

// The bytes of workspace that a rank needs in addition to its vectors.
struct DivideBytes {
  int64_t device;
  int64_t host;  // of memory from AllocateOnHost
};
template <typename R>
DivideBytes DivideWorkspace(int64_t n, int64_t block, bool vectors,
                            const DivideTuning& tuning = {});

struct DivideSpace {
  void* device;
  void* host;
};

// One rank's rows of the eigenvectors of eigenvalues [first, last) in ascending order: rows [rank *
// block, min((rank + 1) * block, n)). Both matrices hold these rows and n columns. ld is at most
// max(block, 1), and block times the number of ranks is at least n. The vectors are written to the
// first last - first columns of q.
template <typename R>
struct EigenvectorRows {
  int64_t first, last;
  R *q, *work;
  int64_t ld;
};

// The matrix has the diagonal d (n) and the off-diagonal e (n - 1), both in host memory and equal
// on all ranks. Overwrites d with the eigenvalues, ascending and bitwise equal on all ranks.
// Without `vectors`, computes only the eigenvalues, in O(n^2) operations, because a merge then
// needs only the first and the last row of its vectors.
//
// Sets *info to i + 1 on every rank, and does no further work, if d_i or e_i is not finite. If an
// iteration reaches its limit, *info is positive on at least one rank and the results are undefined
// on all. Otherwise it is 0. All work runs on kMain; `space` must not change before that work is
// complete.
//
// The host waits for its device once per level of the tree (log2(n / leaf) levels), for z and the
// eigenvalues of the previous level, and once for the eigenvalues of the last level.
template <typename R>
Status DivideAndConquer(const RankContext& context, int64_t n, int64_t block, R* d, const R* e,
                        const EigenvectorRows<R>* vectors, const DivideSpace& space, int32_t* info,
                        const DivideTuning& tuning = {});

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_H_
