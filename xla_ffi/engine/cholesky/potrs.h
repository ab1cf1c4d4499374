// potrs: A x = b, A Hermitian positive definite: potrf.h with the right-hand sides as further rows
// of its panels, then back substitution (substitution.h).
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRS_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRS_H_

#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/for_all.h"
#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// What A x = b is solved for.
template <typename T>
struct Solution {
  int64_t nrhs;
  T* x;                  // n x nrhs, row-major: b on entry, the solution on exit, on every rank
  Real<T>* log_det;      // log det A
  const T* b = nullptr;  // where the right-hand sides are to be copied from, if they aren't in x
  bool check_b = false;  // ranks may have brought different ones, which is a status
};

// Panels as the device's tuning asks for, an overflow tile and this rank's columns of x; on rank 0
// the matrix, where it is gathered there.
template <typename T>
struct PotrsSpace : RoutineSpace<T> {
  PotrsSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Precision precision;
  // Whether right-hand sides are solved for in x itself (potrf.h).
  bool in_place;
  // Of the diagonal blocks that are inverted to be solved with (substitution.h); 0: none, as for a
  // single right-hand side, which isn't worth an inverse.
  int64_t inverse_order;
  Piece<T> local = {};     // right-hand sides of this rank's tiles
  Piece<T> inverses = {};  // of diagonal tiles
};

// As the routines of routines.h. Where *status is not 0, x and the logarithm are NaN. Workspace:
// PotrsSpace.
template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand,
                    const Solution<T>& solution);

// The same by one rank for all ranks of its process (for_all.h).
template <typename T>
Status PotrsForAll(const RankContext& alone, const std::vector<SolveOfAll<T, Solution<T>>>& parts);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRS_H_
