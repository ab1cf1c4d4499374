// potrf: Cholesky factorization M = L L^H of a distributed Hermitian matrix, right-looking, with
// look-ahead, on a 1 x P grid of tile columns.
//
//   for each tile column k:
//     owner of k:  factor the diagonal tile, solve the panel below it, send the panel
//     owner of k+1, as soon as it has panel k:  update tile column k+1 and factor it; the diagonal
//                  tile first, so that the rest is updated while that tile is factored
//     everyone:    update its other tile columns beyond k with panel k
//
// The factor of k+1 is thus under way while the updates of k still run (Kurzak, Luszczek, Dongarra:
// look-ahead in LAPACK Working Note 201). n^3/3 operations; a rank sends or receives n^2/2
// elements in all.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRF_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRF_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/cholesky/diagonal.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/right_hand_sides.h"

namespace jaxmg {

// Elements of workspace: two batches of panels, and those of their rows that meet this rank's
// tiles, each only where the tuning needs them; and the parts of both, where products are made of
// those.
template <typename T>
int64_t PotrfWorkspace(const Tiles& tiles, int64_t rows, Precision precision, const Tuning& tuning);

// Right-hand sides in row form are further rows of M, which take part in every panel, so that the
// forward substitution Y = X L^-H costs no pass of its own.
//
// Needs `matrix` square and block-cyclic, its lower triangle valid. Replaces that by L, and leaves
// this rank's columns of X L^-H in x.local; x.data is used up. *info becomes the smallest order of
// a leading minor that is not positive definite that this rank saw, and *log_det (real, may be
// null) grows by this rank's share of log(det M); both are device memory that the caller has set.
// Panels and updates are computed in `precision`; diagonal tiles and right-hand sides never in a
// lower one than T's. Enqueued on all streams, kMain last; a single tile on kMain alone.
//
// After a failure L and Y have NaN, unless there is a single tile and the caller `spoils` all
// results itself.
template <typename T>
Status Potrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const RightHandSides<T>& x, T* workspace, int32_t* info, Real<T>* log_det,
             bool spoils = false);

// Whether right-hand sides are solved for in place, each substitution being one operation on the
// whole of L: where that is a single tile and they are few.
inline bool SolvesInPlace(const Tiles& tiles, int64_t count, const Tuning& tuning) {
  const bool few = count <= std::max<int64_t>(tuning.right_hand_sides_at_once, 1);
  return tiles.ranks() == 1 && tiles.nonempty() == 1 && (few || tuning.panel_block == 0);
}

// Reserves what Potrf takes of the device beside its workspace.
template <typename T>
Status ReservePotrf(Device& device, const Matrix<T>& matrix);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRF_H_
