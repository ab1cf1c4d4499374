// host_solve: one block column's part of a substitution with a Cholesky factor in host memory.
//
// The tile columns are streamed from host memory, by each rank its own. A transfer takes far longer
// than the operations with its tile column, so the ranks work one after the other.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_SOLVE_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_SOLVE_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

template <typename T>
struct HostSolveOperand {
  HostShape shape;      // nrhs: of x
  const int32_t* call;  // HostCall, in device memory
  T* x;                 // n x nrhs, row-major, equal on all ranks
  const T* x_source;    // copied to x first
  FindHostMatrix find;
  const T* cache = nullptr;  // as HostPotrfOperand, after the factorization
  int64_t cached = 0;
};

// The workspace of a call: streamed tile columns.
template <typename T>
struct HostSolveSpace {
  explicit HostSolveSpace(const HostShape& shape);

  Pieces pieces;
  Piece<T> panels;
};

// A routine (routines.h). x holds X in row form (right_hand_sides.h). Direction 0, for block
// columns from the first to the last: Y_j := X_j L_jj^-H, and subtracts Y_j L_ij^H from X_i for all
// i > j. Direction 1, from the last to the first: Z_j := (Y_j - sum over i > j of Z_i L_ij)
// L_jj^-1.
template <typename T>
Status HostSolveRoutine(const RankContext& context, const HostSolveOperand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_SOLVE_H_
