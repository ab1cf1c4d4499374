// gesv: A x = b, A general and square: getrf.h with the right-hand sides as further rows of its
// panels, then one sweep with L (getrs.h).
//
// M = A^T is factored as it lies, P M = L U, so partial pivoting is that of A^T: interchanges are
// of columns of A, and the bound of the growth is the same.
#ifndef JAXMG_XLA_FFI_ENGINE_LU_GESV_H_
#define JAXMG_XLA_FFI_ENGINE_LU_GESV_H_

#include "xla_ffi/engine/core/for_all.h"
#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// Resolves the precision of the products of LU and QR. Three products of float16 parts scale their
// factors, since no scaling of a general matrix bounds its elements and those of its factors; six
// of bfloat16 parts, which are as accurate, replace them on devices without such products.
template <typename T>
Precision LuPrecision(Precision requested, int64_t n, const Tuning& tuning);

// The tiles in which an m x n matrix is factored that lies in `tiles`: on one rank, where all tiles
// lie the same, it may be a single one.
template <typename T>
Tiles TilesToFactor(const Tiles& tiles, int64_t n, const Tuning& tuning);

// What A x = b is solved for, and the determinant.
template <typename T>
struct GeneralSolution {
  int64_t nrhs;
  T* x;                  // n x nrhs, row-major: b on entry, the solution on exit, on every rank
  Real<T>* log_abs;      // log |det A|
  T* sign;               // det A / |det A|
  const T* b = nullptr;  // where the right-hand sides are to be copied from, if they aren't in x
  bool check_b = false;  // ranks may have brought different ones, which is a status
};

// Two panels, an overflow tile, pivots and this rank's columns of x; on rank 0 the matrix, where it
// is gathered there.
template <typename T>
struct GesvSpace : RoutineSpace<T> {
  GesvSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Precision precision;
  Piece<T> local = {};  // right-hand sides of this rank's tiles
  Piece<int32_t> pivots = {};
};

// As the routines of routines.h. *status is LAPACK's info of getrf, or kNotFinite. Where it is k >
// 0, U(k, k) is exactly zero: x is what substitution gives, infinity and NaN, the logarithm
// -infinity and the sign 0. Where it is negative, x and the determinant are NaN. Workspace:
// GesvSpace.
template <typename T>
Status GesvRoutine(const RankContext& context, const Operand<T>& operand,
                   const GeneralSolution<T>& solution);

// The same by one rank for all ranks of its process (for_all.h).
template <typename T>
Status GesvForAll(const RankContext& alone,
                  const std::vector<SolveOfAll<T, GeneralSolution<T>>>& parts);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LU_GESV_H_
