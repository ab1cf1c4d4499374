// gesv: solves A x = b for a general square A. Getrf (getrf.h) takes the right-hand sides as
// further rows of M; one sweep with L follows (getrs.h).
//
// The stored M = A^T is factored, P M = L U. So partial pivoting interchanges columns of A. The
// bound on the growth of elements is the same as for interchanges of rows.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GESV_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GESV_H_

#include "xla_ffi/engine/core/for_all.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// Resolves the precision of the products of LU and QR. For kF16x3 it returns kScaledF16x3, whose
// products scale their factors: no scaling of a general matrix bounds both its elements and those
// of its factors. Devices without such products get kBf16x6, which is as accurate.
template <typename T>
Precision LuPrecision(Precision requested, int64_t n, const Tuning& tuning);

// Returns the tiles in which Getrf factors a matrix of n rows that is stored in `tiles`. On one
// rank, where the memory layout doesn't depend on the tiles, it may be a single tile.
template <typename T>
Tiles TilesToFactor(const Tiles& tiles, int64_t n, const Tuning& tuning);

// The right-hand sides and results of A x = b.
template <typename T>
struct GeneralSolution {
  int64_t nrhs;
  T* x;                  // n x nrhs, row-major: b on entry, the solution on exit, on every rank
  Real<T>* log_abs;      // log |det A|
  T* sign;               // det A / |det A|
  const T* b = nullptr;  // if not null, copied to x first
  bool check_b = false;  // whether to check that all ranks have the same b; the status reports a
                         // difference
};

// The workspace of Getrf, an overflow tile, pivots and this rank's columns of x; on the root also
// the matrix if it is gathered.
template <typename T>
struct GesvSpace : RoutineSpace<T> {
  GesvSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Precision precision;
  Piece<T> local = {};  // right-hand sides of this rank's tiles
  Piece<int32_t> pivots = {};
};

// A routine (routines.h). *status is LAPACK's info of getrf, or kNotFinite. If it is k > 0, U(k, k)
// is exactly zero: x has infinity and NaN, as substitution returns them, the logarithm is
// -infinity, and the sign is 0. If it is negative, x and the determinant are NaN. Workspace:
// GesvSpace.
template <typename T>
Status GesvRoutine(const RankContext& context, const Operand<T>& operand,
                   const GeneralSolution<T>& solution);

// As GesvRoutine, by one rank for all ranks of its process (for_all.h).
template <typename T>
Status GesvForAll(const RankContext& alone,
                  const std::vector<SolveOfAll<T, GeneralSolution<T>>>& parts);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GESV_H_
