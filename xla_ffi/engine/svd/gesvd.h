// The singular values of a general matrix, computed by all ranks:
//
//   A ──bidiagonal_band.h──► B, as a Hermitian band ──chase.h──► Tri ──divide.h──► its eigenvalues
//
// The eigenvalues are the singular values with both signs; the upper half is returned (LAPACK's
// gesvd without vectors). Errors are of the size of rounding times the largest singular value.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_GESVD_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_GESVD_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// The band, its tridiagonal matrix, and one workspace that the stages use in turn.
template <typename T>
struct GesvdSpace : RoutineSpace<T> {
  GesvdSpace(const Sizes& sizes, const Ranks& ranks);

  Piece<T> band, tridiagonal, stage;
};

// Returns an error unless A is square, without padding, and tiles of the band's width divide each
// rank's rows.
template <typename T>
Status CheckGesvd(const Sizes& sizes, const Ranks& ranks);

// A routine (routines.h). Sets w (n) to the singular values, ascending, on every rank; to NaN if
// *status is not 0. Overwrites the operand's block.
template <typename T>
Status GesvdRoutine(const RankContext& context, const Operand<T>& operand, Real<T>* w);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_GESVD_H_
