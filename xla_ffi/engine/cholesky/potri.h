// potri: the inverse of M from its distributed factor, in place.
//
// LAPACK's two steps, each as a sweep in which a row or a column of tiles is gathered by all ranks
// and every rank does one large GEMM with it on its own columns:
//
//   trtri   V = L^-H:      V_k,: := L_kk^-H acc_k,:     acc_i,: -= L_ki^H V_k,:   for i < k
//   lauum   M^-1 = W^H W:  X_k,: := W_kk^H W_k,: + W_>k,k^H W_>k,:                with W = V^H
//
// V grows above the diagonal, where the factor has nothing, from the last row of tiles to the
// first; then it is transposed. W itself from L W = I would save that, but X needs an inverse for
// which W L - I is small, which is another thing (Du Croz and Higham, IMA J. Numer. Anal. 12,
// 1992): for a smooth kernel of condition 1e11 its residual is 10^4 times as large and more.
//
// V_k,: is a TRSM with the whole tile on GPUs too, where potrf makes its panels by products and
// SolveRight: it is a small part of the whole.
//
// n^3/3 operations each. No rank waits on another's arithmetic: all that is sent is there from the
// start of a sweep.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRI_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRI_H_

#include "xla_ffi/engine/cholesky/equilibrate.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Elements of workspace: two tile columns and a tile, and what equilibration needs.
template <typename T>
int64_t PotriWorkspace(const Tiles& tiles, int64_t rows, Precision precision) {
  return (2 * rows + tiles.width()) * tiles.width() + Equilibration<T>::Workspace(tiles, precision);
}

// Replaces the factor L (block-cyclic) by the lower triangle of M^-1; nothing is left of what lay
// above the diagonal. The large products are computed in `precision`. Enqueued on kMain and kCopy,
// kMain last.
template <typename T>
Status Potri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace);

// Panels of Potrf or tile columns of Potri, and an overflow tile; on rank 0 the matrix, where it is
// gathered there.
template <typename T>
struct PotriSpace : RoutineSpace<T> {
  PotriSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
};

// The lower triangle of tiles back to blocks, and its image above the diagonal.
template <typename T>
Status UntileHermitian(Frame<T>& frame);

// As the routines of routines.h. The block becomes the rows of the inverse of A, NaN where *status
// is not 0. Workspace: PotriSpace.
template <typename T>
Status PotriRoutine(const RankContext& context, const Operand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRI_H_
