// QR of a tall matrix A = Q R that lies on the ranks by rows, of which no row moves: ranks exchange
// n x n matrices alone.
//
// A rank's rows, read column by column, are M = A^T, n x block. With L = R^T, which lies in memory
// as the caller's R does,
//
//   G = M M^H = L L^H    summed over the ranks in their order        Q^T = L^-1 M
//
//   seminormal equations   where Q isn't wanted but Q^H b is, and A is well conditioned: x by
//                          L L^H and once more of its residual; Q^H b = R x. (A. Bjorck, Linear
//                          Algebra Appl. 88/89, 1987)
//   CholeskyQR2            the above, and the same again of Q: orthogonal to rounding where the
//                          second G is I to less than a quarter, up to a condition of about 1e8 of
//                          A with columns of one length. (Y. Yamamoto, Y. Nakatsukasa, Y.
//                          Yanagisawa, T. Fukaya, ETNA 44, 2015)
//   shifted CholeskyQR3    with a pass of G + shift I before the two, up to about 1e15. (T. Fukaya
//                          et al., SIAM J. Sci. Comput. 42, 2020)
//   TSQR                   Householder's QR of each rank's rows, and one of all R's: for every A.
//                          (J. Demmel, L. Grigori, M. Hoemmen, J. Langou, SIAM J. Sci. Comput. 34,
//                          2012)
//
// Each is tried if the one before it doesn't do. All ranks decide by the same numbers, those of
// rank 0, for which the host waits once a pass. The diagonal of R is real and not negative, so that
// Q and R of an A of full rank don't depend on the number of ranks.
//
// Over all ranks m n^2 multiplications and additions by the seminormal equations, 3 m n^2 by
// CholeskyQR2 (2 m n^2 without Q), 5 m n^2 with a shift, some 6 m n^2 by TSQR.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_TALL_QR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_TALL_QR_H_

#include <cstdint>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/qr/tall_space.h"

namespace jaxmg {

template <typename T>
struct TallQrProblem {
  TallSizes sizes;
  const T* a;      // this rank's rows of A: block x n, row-major
  const T* b;      // this rank's rows of right-hand sides: block x nrhs
  const T* below;  // further x n, the same on every rank: the last rows of A, zeros in b
  T* q;            // this rank's rows of Q; those of `below` are not computed
  T* r;            // n x n, the same on every rank
  T* c;            // Q^H b, n x nrhs, likewise
  // With right-hand sides R is that of A 2^-power, and c that of b 2^-powers, one for each of them.
  // Without, the squares of A's entries must neither overflow nor underflow.
  int32_t* power;
  int32_t* powers;
};

// Every rank calls it with the same sizes, of n > 0, and with at least n rows on all ranks
// together. All return the same Status, as in routines.h. Where A is not finite, all but the powers
// is NaN. Workspace: TallQrSpace. Enqueued on all streams, kMain last.
template <typename T>
Status TallQrRoutine(const RankContext& context, const TallQrProblem<T>& problem);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_TALL_QR_H_
