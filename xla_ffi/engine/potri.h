// potri: the inverse of M from its distributed factor, in place.
//
// LAPACK's two steps, each as a sweep in which tile column k is sent to all ranks once and every
// rank does one large GEMM with it on its columns 0..k:
//
//   trtri   W = L^-1:      W_k,: := L_kk^-1 acc_k,:     acc_i,: -= L_ik W_k,:   for i > k
//   lauum   M^-1 = W^H W:  X_k,: := W_kk^H W_k,: + W_>k,k^H W_>k,:
//
// Both orders ascend, so that a tile column is still whole when its turn to be sent comes. n^3/3
// operations each. No rank waits on another's arithmetic: all tile columns are there from the
// start of a sweep.
#ifndef JAXMG_XLA_FFI_ENGINE_POTRI_H_
#define JAXMG_XLA_FFI_ENGINE_POTRI_H_

#include "xla_ffi/engine/matrix.h"

namespace jaxmg {

// Elements of workspace: two tile columns.
template <typename T>
int64_t PotriWorkspace(const Tiles& tiles, int64_t rows) {
  return 2 * rows * tiles.width();
}

// Replaces the factor L (block-cyclic) by the lower triangle of M^-1. Products below the diagonal
// tiles are computed in `precision`. Enqueued on kMain and kCopy, kMain last.
template <typename T>
Status Potri(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             T* workspace);

// Fills the upper triangle of a Hermitian matrix in contiguous blocks from its lower one.
// Workspace: one tile column.
template <typename T>
Status Symmetrize(const RankContext& context, const Matrix<T>& matrix, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_POTRI_H_
