// gels: linear least squares of full rank. The factorization multiplies the right-hand sides by Q^H
// as it proceeds (geqrf.h); a sweep with R gives x. A system with fewer equations than unknowns is
// M^T x = b; its shortest solution is conj(Q) R^-T b.
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
  T* diagonal;           // m: the diagonal of R
  const T* b = nullptr;  // if not null, copied to x first
  bool check_b = false;  // whether to check that all ranks have the same b; the status reports a
                         // difference
};

// The workspace of Geqrf and MultiplyRight, and an overflow tile. `factors`: the panels' T;
// `local`: the right-hand sides of this rank's tiles; `sums`: this rank's contributions to the
// right-hand sides of other ranks' tiles.
template <typename T>
struct GelsSpace : RoutineSpace<T> {
  GelsSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Precision precision;
  Piece<T> factors, local, sums;
};

// A routine (routines.h) for n >= m. *status is 0, kDifferentOperands, or kNotFinite if A is not
// finite. All results are NaN if *status is negative. If R has a zero on its diagonal, x is
// infinity or NaN, as substitution returns it. Workspace: GelsSpace.
template <typename T>
Status GelsRoutine(const RankContext& context, const Operand<T>& operand,
                   const LeastSquares<T>& problem);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_GELS_H_
