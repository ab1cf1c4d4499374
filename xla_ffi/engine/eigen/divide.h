// Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix by divide and conquer (what
// LAPACK calls stedc), with rows of the eigenvectors on the ranks.
//
// A matrix that is torn in two is a merge of rank one of its halves' eigenproblems: with D their
// eigenvalues and Q = diag(Q1, Q2), it is Q (D + rho z z^T) Q^T. z is a row of Q1 and one of Q2,
// and the eigenvectors U of the inner matrix, of order k after deflation, follow from O(k) numbers.
// So each rank computes its rows of Q U alone: no merge moves a matrix. Between the ranks of a
// merge pass z and D, and then each one's share of the roots and of the refined z; all others are
// left alone. 4/3 n^3 operations without deflation in n/P rows each, nearly all in products.
//
// Sources: Cuppen 1981; Gu and Eisenstat, A divide-and-conquer algorithm for the symmetric
// tridiagonal eigenproblem, 1995 (the refined z, which makes U orthogonal); Rutter 1994 (deflation,
// and grouping of columns); Li, LAPACK working note 89, 1993 (roots).
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_H_

#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

struct DivideTuning {
  // Matrices of at most this order are not torn, but solved on the host.
  int64_t leaf = 32;
  // Eigenvectors of a merge that are made, and multiplied with, at a time.
  int64_t panel = 512;
  // Limits: sweeps an eigenvalue of a leaf, of which two are usual, and evaluations a root, of
  // which four are.
  int leaf_sweeps = 30;
  int evaluations = 100;
};

// Bytes that a rank needs beside its vectors.
struct DivideBytes {
  int64_t device;
  int64_t host;  // from AllocateOnHost
};
template <typename R>
DivideBytes DivideWorkspace(int64_t n, int64_t block, bool vectors,
                            const DivideTuning& tuning = {});

struct DivideSpace {
  void* device;
  void* host;
};

// One rank's rows of the eigenvectors that belong to eigenvalues [first, last), ascending: rows
// [rank * block, (rank + 1) * block) as far as there are as many. Both matrices have room for these
// rows and n columns, ld is at most max(block, 1), and block times the number of ranks at least n.
// The vectors come to the first last - first columns of q.
template <typename R>
struct EigenvectorRows {
  int64_t first, last;
  R *q, *work;
  int64_t ld;
};

// d (n) and e (n - 1), in the host's memory and the same on every rank, are the matrix; d becomes
// the eigenvalues, ascending, the same bits on every rank. Without `vectors` these alone, in O(n^2)
// operations: of the vectors of every merge only the first row and the last one are kept.
//
// *info becomes i + 1, on every rank, where d_i or e_i is not finite, and nothing else is done;
// where an iteration came to its limit it is positive on a rank at least, and the results are of no
// use on any; else 0. All of it runs on kMain, and vectors are there when the stream's work so far
// is done: the space may not change before.
//
// The host waits for its device once a level of the tree (log2(n / leaf) levels), for z and the
// eigenvalues of the level before, and once more for the last level's.
template <typename R>
Status DivideAndConquer(const RankContext& context, int64_t n, int64_t block, R* d, const R* e,
                        const EigenvectorRows<R>* vectors, const DivideSpace& space, int32_t* info,
                        const DivideTuning& tuning = {});

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_H_
