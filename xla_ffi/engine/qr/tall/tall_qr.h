// QR of a tall matrix A = Q R that is distributed by rows. No row moves: ranks exchange only n x n
// matrices.
//
// A rank's rows, read as column-major, are M = A^T, n x block. With L = R^T, which is stored as the
// caller's R,
//
//   G = M M^H = L L^H    summed over the ranks in their order        Q^T = L^-1 M
//
//   seminormal equations   if Q^H b is requested but not Q, and A is well conditioned: x is solved
//                          with L L^H and corrected once by the solution for its residual; Q^H b =
//                          R x. (A. Bjorck, Linear Algebra Appl. 88/89, 1987)
//   CholeskyQR2            the factorization above, repeated for the resulting Q. Orthogonal to
//                          rounding if the second G differs from I by less than a quarter, up to a
//                          condition of about 1e8 of A with columns scaled to one length. (Y.
//                          Yamamoto, Y. Nakatsukasa, Y. Yanagisawa, T. Fukaya, ETNA 44, 2015)
//   shifted CholeskyQR3    a pass with G + shift I before these two; up to a condition of about
//                          1e15. (T. Fukaya et al., SIAM J. Sci. Comput. 42, 2020)
//   TSQR                   Householder's QR of each rank's rows, and of the stack of all R. Works
//                          for every A. (J. Demmel, L. Grigori, M. Hoemmen, J. Langou, SIAM J. Sci.
//                          Comput. 34, 2012)
//
// Each is tried if the previous one fails. All ranks decide by the same numbers, those of rank 0.
// The host waits for them once per pass. The diagonal of R is real and nonnegative, so Q and R of
// an A of full rank don't depend on the number of ranks.
//
// Flops over all ranks: m n^2 for the seminormal equations, 3 m n^2 for CholeskyQR2 (2 m n^2
// without Q), 5 m n^2 with a shift, about 6 m n^2 for TSQR.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_QR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_QR_H_

#include <cstdint>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/qr/tall/tall_space.h"

namespace jaxmg {

template <typename T>
struct TallQrProblem {
  TallSizes sizes;
  const T* a;      // this rank's rows of A: block x n, row-major
  const T* b;      // this rank's rows of right-hand sides: block x nrhs
  const T* below;  // further x n, equal on all ranks: the last rows of A; b is zero there
  T* q;            // this rank's rows of Q; the rows of `below` are not computed
  T* r;            // n x n, equal on all ranks
  T* c;            // Q^H b, n x nrhs, equal on all ranks
  // With right-hand sides, r is the R of 2^-power A, and column i of c is Q^H (2^-powers[i] b_i).
  // Without, the squares of A's entries must neither overflow nor underflow.
  int32_t* power;
  int32_t* powers;
};

// Every rank calls it with the same sizes, with n > 0 and at least n rows over all ranks. All
// return the same Status, as in routines.h. If A is not finite, all results except the powers are
// NaN. Workspace: TallQrSpace. Enqueued on all streams, kMain last.
template <typename T>
Status TallQrRoutine(const RankContext& context, const TallQrProblem<T>& problem);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_TALL_TALL_QR_H_
