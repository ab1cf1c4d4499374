// Updates of a kept Cholesky factor (factor.h): the factor of A + V V^H or A - V V^H from that of
// A, where V is n x k.
//
// With M = conj(A) = L L^H and X = V^T = conj(V)^H (k x n, column-major; the row form of
// right_hand_sides.h), a unitary Q with [L X^H] Q = [new L, 0] gives the update. Q is a product of
// block reflectors I - [I; Y] T [I; Y]^H, one for each block of b columns of L. A block reflector
// changes these columns of L, from their diagonal on, and all rows of X^H from there on:
//
//   for each block j of columns:
//     Generate:  W with L_jj W = X_j^H (downdate) or (new L_jj) W = X_j^H (update), |W| <= 1, and
//                the lower triangular C with C C^H + W W^H = I. T = I + C^H, Y = W^H T^-1.
//     Apply:     [L_i, X_i^H] of all rows i below becomes [L_i, X_i^H] Q, by products with
//                Z = L_i + X_i^H Y
//
// A downdate L' has [L' X^H] Q = [L, 0], so C = chol(I - W W^H) fails exactly if the result isn't
// positive definite; new L_jj = L_jj C, and rows below are solved with C. As the new rows of X^H
// are computed from the new rows of L, errors stay those of the factorization of A (the mixed
// downdating of A. W. Bojanczyk, R. P. Brent, P. Van Dooren and F. R. de Hoog, SIAM J. Matrix Anal.
// Appl. 8, 1987).
// An update has C = (new L_jj)^-1 L_jj, where new L_jj is the Cholesky factor of L_jj L_jj^H +
// X_j^H X_j. A second factorization, of C C^H + W W^H, makes rows [C W] orthonormal to working
// precision also if L_jj is ill-conditioned (CholeskyQR2). The reflector's T and Y follow from C
// and W without cancellation (Householder reconstruction: G. Ballard et al., J. Parallel Distrib.
// Comput. 85, 2015).
//
// 2 n^2 k + n^2 b flops (a downdate: 3 n^2 k + n^2 b / 2), of which a rank has those of its tile
// columns. Only X moves between ranks, from the owner of a tile column to that of the next: first
// the part for the next diagonal tile, then the rest, so that the next owner begins while this one
// continues below.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_UPDATE_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_UPDATE_H_

#include "xla_ffi/engine/cholesky/factor.h"

namespace jaxmg {

// The shape of an update: the columns of V that are applied in one pass over L, the order of a
// block, and the number of blocks in a tile column.
struct UpdateShape {
  int64_t count, block, blocks;
};

template <typename T>
struct UpdateSpace : RoutineSpace<T> {
  UpdateSpace(const Sizes& sizes, int64_t k, const Ranks& ranks);

  UpdateShape shape;
  Piece<T> x;           // rows of X
  Piece<T> reflectors;  // those of two tile columns
  Piece<T> diagonal;    // matrices of a block's order
  Piece<T> near, far;   // rows of Z: those of the next tile, and all others
  InversesSpace<T> inverses;
};

// A routine (routines.h). Overwrites the factor of A by that of A + V V^H, or of A - V V^H with
// `downdate`. v is V (n x k, row-major, on every rank). First copies `source` and `overflow`, of
// the factor of A, unless they are null or the factor's own. If the result isn't positive definite,
// the factor and *log_det become NaN and *status the order of its first leading minor that isn't.
template <typename T>
Status UpdateRoutine(const RankContext& context, const Operand<T>& factor, const T* overflow,
                     bool downdate, int64_t k, const T* v, Real<T>* log_det);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_UPDATE_H_
