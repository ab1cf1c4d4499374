// potrf: Cholesky factorization M = L L^H of a distributed Hermitian matrix, right-looking, with
// look-ahead, on a 1 x P grid of tile columns.
//
//   for each tile column k:
//     owner of k:  factor the diagonal tile, solve the panel below it, send the panel
//     owner of k+1, as soon as it has panel k:  update tile column k+1 and factor it; the diagonal
//                  tile first, so that the rest is updated while that tile is factored
//     everyone:    update its other tile columns after k with panel k
//
// So tile column k+1 is factored while the updates with panel k still run (Kurzak, Luszczek,
// Dongarra: look-ahead in LAPACK Working Note 201). n^3/3 flops. Each rank sends or receives n^2/2
// elements in all.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRF_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRF_H_

#include <algorithm>
#include <cstdint>
#include <functional>

#include "xla_ffi/engine/cholesky/diagonal.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/right_hand_sides.h"

namespace jaxmg {

// How Potrf treats columns that are a part of a larger matrix.
struct PartOfMatrix {
  // Rows of the columns below the square. They are solved and updated as the rows above them.
  int64_t rows_below = 0;
  // The number of columns of the larger matrix before these, which *info counts too.
  int64_t order = 0;
  // If not null, called for each tile column of this rank once the steps that compute it are
  // enqueued. May add steps that read the column, as `diagonal` and, below that tile, `below`.
  std::function<void(Flow& flow, int64_t k, Data& diagonal, Data& below)> stores = nullptr;
};

// Returns the number of elements of workspace (PanelRegions, Equilibration): two batches of panels,
// and copies of their rows that match this rank's tiles, each only if the tuning requires it; and
// the parts of both if products consist of parts (parts.h).
template <typename T>
int64_t PotrfWorkspace(const Tiles& tiles, int64_t rows, Precision precision, const Tuning& tuning);

// Overwrites the lower triangle of `matrix`, which must be square (but see PartOfMatrix) and
// block-cyclic, with L. Panels
// and updates are computed in `precision`, diagonal tiles and right-hand sides at least in the
// precision of T. *info becomes the smallest order of a leading minor that this rank found not to
// be positive definite. Adds this rank's share of log(det M) to *log_det unless it is null. Both
// are device memory that the caller has initialized.
//
// Right-hand sides in row form (right_hand_sides.h) are further rows of M and take part in every
// panel, so the forward substitution Y = X L^-H needs no separate pass. x.local becomes this rank's
// columns of Y; x.data is overwritten.
//
// After a failure L and Y contain NaN. With `spoils` this need not hold for a single tile, because
// the caller then fills all results with NaN itself. Enqueued on all streams, kMain last; for a
// single tile only on kMain.
template <typename T>
Status Potrf(const RankContext& context, Precision precision, const Matrix<T>& matrix,
             const RightHandSides<T>& x, T* workspace, int32_t* info, Real<T>* log_det,
             bool spoils = false, const PartOfMatrix& part = {});

// Returns whether each substitution is one operation with all of L, in place in the right-hand
// sides. This requires a single tile and, if Tuning::Cholesky::panel_block is set, few right-hand
// sides.
inline bool SolvesInPlace(const Tiles& tiles, int64_t count, const Tuning& tuning) {
  const bool few = count <= std::max<int64_t>(tuning.lu.right_hand_sides_at_once, 1);
  return tiles.ranks() == 1 && tiles.nonempty() == 1 && (few || tuning.cholesky.panel_block == 0);
}

// Reserves the device's resources that Potrf needs in addition to its workspace.
template <typename T>
Status ReservePotrf(Device& device, const Matrix<T>& matrix);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRF_H_
