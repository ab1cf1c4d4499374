// The singular values of a general matrix, by all ranks:
//
//   A ──bidiagonal_band.h──► B, as a Hermitian band ──chase.h──► Tri ──divide.h──► its eigenvalues
//
// The upper half of the eigenvalues are the singular values (LAPACK's gesvd without vectors). Their
// errors are of the size of rounding times the largest singular value.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_GESVD_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_GESVD_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// The band and its tridiagonal matrix, and the workspace of a stage.
template <typename T>
struct GesvdSpace : RoutineSpace<T> {
  GesvdSpace(const Sizes& sizes, const Ranks& ranks);

  Piece<T> band, tridiagonal, stage;
};

// Returns an error unless A is square, without padding, and tiles of the band's width divide each
// rank's rows.
template <typename T>
Status CheckGesvd(const Sizes& sizes, const Ranks& ranks);

// A routine (routines.h). w (n): the singular values, ascending, on every rank. NaN if *status is
// not 0. The operand's block is overwritten.
template <typename T>
Status GesvdRoutine(const RankContext& context, const Operand<T>& operand, Real<T>* w);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_GESVD_H_
