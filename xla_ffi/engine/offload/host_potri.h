// host_potri: one block column of the inverse of a matrix in host memory, from its Cholesky factor.
//
// From the last block column to the first, block column j of Z = M^-1 follows from that of L and
// from the block columns of Z after it (A. M. Erisman and W. F. Tinney, Comm. ACM 18, 1975):
//
//   B = L_>j,j L_jj^-1,   Z_>j,j = -Z_>j,>j B,   Z_jj = L_jj^-H L_jj^-1 - B^H Z_>j,j
//
// Z replaces L in host memory. Only its lower triangle is there: each panel that is streamed is
// multiplied twice, for its rows and, as its adjoint, for its columns.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_POTRI_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_POTRI_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/plan.h"
#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// The workspace of a call on one rank: streamed panels, tile columns of B from other ranks, and the
// workspace of Potri, one after the other; and an element of each rank.
template <typename T>
struct HostPotriSpace {
  HostPotriSpace(const HostShape& shape, const Ranks& ranks);

  Pieces pieces;
  Piece<T> words, panels;
};

template <typename T>
struct HostPotriOperand {
  HostShape shape;
  const int32_t* call;  // HostCall, in device memory
  // Two buffers as those of HostPotrfOperand. `a` is workspace. `z` gets the block column: this
  // rank's tile columns, each from its diagonal tile down; the elements above the diagonal are
  // undefined. What is in them before doesn't matter.
  T* a;
  T* z;
  FindHostMatrix find;
};

// A routine (routines.h). Reads block column j of `factor` and replaces it by that of the inverse.
// Later block columns have been replaced by calls before. M must be positive definite: there is no
// status.
template <typename T>
Status HostPotriRoutine(const RankContext& context, const HostPotriOperand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_POTRI_H_
