// host_potrf: one block column of the Cholesky factor of a matrix in host memory.
//
// Left-looking: block column j is updated with all block columns before it, which are streamed from
// host memory, and then factored as a whole (potrf.h). While it is updated, block column j + 1 is
// loaded; while it is factored, its tile columns go to host memory one by one.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_POTRF_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_POTRF_H_

#include <array>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/plan.h"
#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// The workspace of a call on one rank: records, streamed panels (later the panels of Potrf), their
// rows that match this rank's columns, and this rank's columns of x.
template <typename T>
struct HostPotrfSpace {
  HostPotrfSpace(const HostShape& shape, Precision products, const Ranks& ranks);

  Precision precision;  // of products with streamed panels
  Pieces pieces;
  Piece<char> records;
  Piece<T> panels, factor, local;
  int64_t split_bytes = 0;  // as RoutineSpace
};

template <typename T>
struct HostPotrfOperand {
  HostShape shape;
  Precision products;
  const int32_t* call;  // HostCall, in device memory
  // Block columns of even and of odd index: rank_columns() columns of ld() elements, of which the
  // first is in the first row of the block column. Copied from `source` first.
  std::array<T*, 2> a;
  std::array<const T*, 2> source;
  T* x;  // n x nrhs, row-major: b on entry; then Y = B L^-H up to the end of this block column
  const T* x_source;
  Real<T>* log_det;  // this block column's share
  int32_t* status;   // as Outcome; counts the columns of the whole matrix
  FindHostMatrix find;
  // Memory for the part of the factor that stays on the device (host_cache.h); may be empty.
  T* cache = nullptr;
  const T* cache_source = nullptr;
  int64_t cached = 0;
};

// A routine (routines.h). If the matrix has a source in host memory, block column 0 is loaded, and
// each call loads the next block column; otherwise the caller fills the buffers. If *status is not
// 0, x and the logarithm are NaN, and so is the rest of the factor.
template <typename T>
Status HostPotrfRoutine(const RankContext& context, const HostPotrfOperand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_POTRF_H_
