// potrs: back substitution on the distributed factor.
//
// The right-hand sides are in row form (see potrf.h): with A = conj(M), A x = b is X M = B, so
// after potrf's Y = X L^-H there remains X L = Y. From the last tile column to the first, its
// owner solves with the diagonal tile and sends the result to all, and every rank subtracts its
// product with one row of tiles of L from what it holds. nrhs * n^2 multiply-adds over all ranks.
#ifndef JAXMG_XLA_FFI_ENGINE_POTRS_H_
#define JAXMG_XLA_FFI_ENGINE_POTRS_H_

#include "xla_ffi/engine/matrix.h"
#include "xla_ffi/engine/potrf.h"

namespace jaxmg {

// Needs what Potrf left in `matrix` and x.share; x.data becomes X M^-1 on every rank,
// the share is used up. Enqueued on kMain.
template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const RightHandSides<T>& x);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_POTRS_H_
