// potrs: solves A x = b for a Hermitian positive definite A. Potrf (potrf.h) takes the right-hand
// sides as further rows of M; back substitution follows (substitution.h).
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRS_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRS_H_

#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/for_all.h"
#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// The right-hand sides and results of A x = b.
template <typename T>
struct Solution {
  int64_t nrhs;
  T* x;                  // n x nrhs, row-major: b on entry, the solution on exit, on every rank
  Real<T>* log_det;      // log det A
  const T* b = nullptr;  // if not null, copied to x first
  bool check_b = false;  // whether to check that all ranks have the same b; the status reports a
                         // difference
};

// The workspace of Potrf, an overflow tile, inverses and this rank's columns of x; on the root also
// the matrix if it is gathered.
template <typename T>
struct PotrsSpace : RoutineSpace<T> {
  PotrsSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Precision precision;
  // Whether the right-hand sides are solved in x itself (SolvesInPlace).
  bool in_place;
  // The order of the diagonal blocks that are inverted (substitution.h). 0: none, as for a single
  // right-hand side, for which inverses take longer than they save.
  int64_t inverse_order;
  Piece<T> local = {};     // the right-hand sides of this rank's tiles
  Piece<T> inverses = {};  // workspace of InvertDiagonals and DiagonalSolver
};

// A routine (routines.h). If *status is not 0, x and the logarithm are NaN. Workspace: PotrsSpace.
template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand,
                    const Solution<T>& solution);

// As PotrsRoutine, by one rank for all ranks of its process (for_all.h).
template <typename T>
Status PotrsForAll(const RankContext& alone, const std::vector<SolveOfAll<T, Solution<T>>>& parts);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_POTRS_H_
