// Arrays to the first rank of a call, and arrays of that to all: what is around a computation that
// one rank does for all.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_ROOT_EXCHANGE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_ROOT_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// An array of `whole` bytes of which each rank has `part` bytes, one rank's behind another's. The
// last parts may be shorter, or empty. If both are equal, each rank has the whole array.
struct RootPiece {
  const void* source;
  void* target;
  int64_t part, whole;
};

// A rank's pieces, in the same order on all ranks. With `gathers` the sources are parts, and the
// first rank's target becomes the whole array. Otherwise the first rank's source is the whole
// array, and the targets become parts. What of a target is beyond the array stays as it is.
struct RootExchange {
  bool gathers;
  std::vector<RootPiece> pieces;
};

// All ranks must call it with the same sizes, and all return the same Status (routines.h).
Status RootExchangeRoutine(const RankContext& context, const RootExchange& exchange);

// The same by one rank of a process for all, whose memory it shares.
Status RootExchangeForAll(const RankContext& alone, const std::vector<RootExchange>& exchanges);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_ROOT_EXCHANGE_H_
