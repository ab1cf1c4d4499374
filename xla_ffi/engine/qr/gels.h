// gels: linear least squares of full rank. The right-hand sides travel along with the factorization
// (geqrf.h), which multiplies them by Q^H; a sweep with R gives x. A system with fewer equations
// than unknowns is M^T x = b, whose shortest solution is conj(Q) R^-T b.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_GELS_H_
#define JAXMG_XLA_FFI_ENGINE_QR_GELS_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/qr/qr_factor.h"

namespace jaxmg {

template <typename T>
struct LeastSquares {
  System system;
  int64_t nrhs;
  T* x;                  // n x nrhs, row-major: b on entry, the solution on exit (QrSolveRoutine)
  T* diagonal;           // m: R's
  const T* b = nullptr;  // where the right-hand sides are to be copied from, if they aren't in x
  bool check_b = false;  // ranks may have brought different ones, which is a status
};

// What Geqrf and MultiplyRight need, T, an overflow tile; right-hand sides of this rank's tiles,
// and what it has to add to those of others.
template <typename T>
struct GelsSpace : RoutineSpace<T> {
  GelsSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Precision precision;
  Piece<T> factors, local, sums;
};

// As the routines of routines.h, for n >= m. *status is 0, kDifferentOperands, or kNotFinite where
// A is not finite; where it is negative all is NaN. Where R's diagonal has a zero, x is what
// substitution gives, infinity and NaN. Workspace: GelsSpace.
template <typename T>
Status GelsRoutine(const RankContext& context, const Operand<T>& operand,
                   const LeastSquares<T>& problem);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_GELS_H_
