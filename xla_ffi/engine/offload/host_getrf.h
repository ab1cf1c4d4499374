// host_getrf: one block column of the LU factorization, with partial pivoting, of a matrix in host
// memory.
//
// Left-looking: block column j is updated with all block columns before it, one after the other:
// its rows are interchanged by the pivots of block column k, U_kj = L_kk^-1 C_k is solved for, and
// L_k U_kj is subtracted below. Then getrf.h factors it from its diagonal down. Every block column
// of L stays in the order of rows of its own step, so nothing in host memory is interchanged, and
//
//   M = P_0^T L_0 P_1^T L_1 ... U
//
// where L_k is the identity with block column k of L, and P_k are the interchanges of its rows.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_GETRF_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_GETRF_H_

#include <array>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/plan.h"
#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// The workspace of a call on one rank: records, streamed panels (later the workspace of Getrf), and
// this rank's columns of x.
template <typename T>
struct HostGetrfSpace {
  HostGetrfSpace(const HostShape& shape, Precision products, const Ranks& ranks);

  Precision precision;  // of products
  Pieces pieces;
  Piece<char> records;
  Piece<T> panels, local;
  int64_t split_bytes = 0;  // as RoutineSpace
};

template <typename T>
struct HostGetrfOperand {
  HostShape shape;  // whole
  Precision products;
  const int32_t* call;  // HostCall, in device memory
  // Block columns of even and of odd index: rank_columns() columns of ld() elements. Copied from
  // `source` first.
  std::array<T*, 2> a;
  std::array<const T*, 2> source;
  T* x;  // n x nrhs, row-major: b on entry; then Y = B U^-1 up to the end of this block column
  const T* x_source;
  // n: those of a block column count from its first row (lu_kernels.h). The call needs those of
  // the earlier block columns and writes its own.
  int32_t* pivots;
  const int32_t* pivots_source;
  Real<T>* log_abs;  // this block column's share of log |det A|
  T* sign;           // its factor of the determinant's sign, or phase
  int32_t* status;   // as GesvRoutine; counts the columns of this block column
  FindHostMatrix find;
  // Memory for the part of L that stays on the device (host_cache.h); may be empty.
  T* cache = nullptr;
  const T* cache_source = nullptr;
  int64_t cached = 0;
};

// A routine (routines.h). If the matrix has a source in host memory, block column 0 is loaded, and
// each call loads the next block column; otherwise the caller fills the buffers. On one rank a call
// stores the block column of the call before it, and the last call its own, too; several ranks
// store theirs at the end of each call. A zero pivot ends nothing: the status of that call is
// positive. If it is negative, x and the determinant are NaN.
template <typename T>
Status HostGetrfRoutine(const RankContext& context, const HostGetrfOperand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_GETRF_H_
