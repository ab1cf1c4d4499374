// host_getrs: one block column's part of a substitution with LU factors in host memory
// (host_getrf.h).
//
// As in host_solve.h, tile columns are streamed, by each rank its own, and the ranks work one after
// the other.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_GETRS_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_GETRS_H_

#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// The substitutions of host_getrs, as HostCall::direction, for X in row form (right_hand_sides.h).
// Each takes all block columns, from the first to the last (up) or from the last to the first.
enum class LuSweep : int32_t {
  kUpper,           // X := X U^-1, up
  kLower,           // X := X L^-1 with all interchanges, down
  kLowerTrans,      // X := X L^-T after all interchanges, up
  kLowerConjTrans,  // the same with conjugates
  kUpperTrans,      // X := X U^-T, down
  kUpperConjTrans,
};
inline constexpr int32_t kLuSweeps = 6;

template <typename T>
struct HostGetrsOperand {
  HostShape shape;        // whole; nrhs: of x
  const int32_t* call;    // HostCall, in device memory
  T* x;                   // n x nrhs, row-major, equal on all ranks
  const T* x_source;      // copied to x first
  const int32_t* pivots;  // as HostGetrfOperand
  FindHostMatrix find;
  const T* cache = nullptr;  // as HostGetrfOperand, after the factorization
  int64_t cached = 0;
};

// The workspace of a call: streamed tile columns.
template <typename T>
struct HostGetrsSpace {
  explicit HostGetrsSpace(const HostShape& shape);

  Pieces pieces;
  Piece<T> panels;
};

// A routine (routines.h).
template <typename T>
Status HostGetrsRoutine(const RankContext& context, const HostGetrsOperand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_GETRS_H_
