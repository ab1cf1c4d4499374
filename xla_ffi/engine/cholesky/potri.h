// potri: computes the inverse of M from its distributed Cholesky factor, in place.
//
// LAPACK's two steps are sweeps. In each step of a sweep all ranks gather a row or a column of
// tiles, and every rank multiplies it with its own columns in one large GEMM:
//
//   trtri   V = L^-H:      V_k,: := L_kk^-H acc_k,:     acc_i,: -= L_ki^H V_k,:   for i < k
//   lauum   M^-1 = W^H W:  X_k,: := W_kk^H W_k,: + W_>k,k^H W_>k,:                with W = V^H
//
// V is stored above the diagonal, which the factor doesn't need, from the last row of tiles to the
// first. Then it is transposed. Solving L W = I for W itself would save the transposition. But X
// needs an inverse for which W L - I is small, and L W = I makes L W - I small (Du Croz and Higham,
// IMA J. Numer. Anal. 12, 1992). For a smooth kernel of condition 1e11 the residual of X would be
// at least 10^4 times as large.
//
// V_k,: is computed by a TRSM with the whole tile, on GPUs too, where potrf computes panels by
// products and SolveRight. It is a small part of the work.
//
// n^3/3 flops each. No rank waits for the arithmetic of another rank: all data to send exist at the
// start of a sweep.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRI_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRI_H_

#include "xla_ffi/engine/cholesky/equilibrate.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Returns the number of elements of workspace: two tile columns, a tile, and the workspace of
// Equilibration.
template <typename T>
int64_t PotriWorkspace(const Tiles& tiles, int64_t rows, Precision precision) {
  return (2 * rows + tiles.width()) * tiles.width() + Equilibration<T>::Workspace(tiles, precision);
}

// Overwrites the factor L (block-cyclic) with the lower triangle of M^-1. Also overwrites the
// elements above the diagonal. The large products are computed in `precision`. Enqueued on kMain
// and kCopy, kMain last.
template <typename T>
Status Potri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace);

// One region for the workspace of Potrf and of Potri, and an overflow tile; on the root also the
// matrix if it is gathered.
template <typename T>
struct PotriSpace : RoutineSpace<T> {
  PotriSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// Moves the lower triangle of the frame's tiles back to blocks, and mirrors it above the diagonal.
template <typename T>
Status UntileHermitian(Frame<T>& frame);

// A routine (routines.h). Overwrites the block with the rows of the inverse of A, or with NaN if
// *status is not 0. Workspace: PotriSpace.
template <typename T>
Status PotriRoutine(const RankContext& context, const Operand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRI_H_
