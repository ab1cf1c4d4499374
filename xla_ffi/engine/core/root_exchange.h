// Gathers arrays on one rank of a call, and scatters this rank's arrays to all ranks. A
// computation that one rank does for all starts with a gather and ends with a scatter.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_ROOT_EXCHANGE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_ROOT_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// An array of `whole` bytes. Each rank has `part` bytes of it, in rank order; the last parts may be
// shorter, or empty. If `part` equals `whole`, each rank has the whole array.
struct RootPiece {
  const void* source;
  void* target;
  int64_t part, whole;
};

// A rank's pieces, in the same order on all ranks. With `gathers` the sources are parts, and the
// target of one rank, the root, becomes the whole array. Otherwise the root's source is the whole
// array, and the targets become parts. Bytes of a target beyond the end of the array don't change.
struct RootExchange {
  bool gathers;
  std::vector<RootPiece> pieces;
  // Whether this rank is the root; null: rank 0 is.
  int32_t* is_root = nullptr;
  std::shared_ptr<const char[]> memory = nullptr;  // that of the sources, if the exchange owns it
};

// Returns the exchange of a rank that goes on before others arrive: a copy that owns its sources.
// Sets `is_root` to 0.
RootExchange LeaveSources(const RootExchange& exchange);

// Runs the exchange; the root is rank 0. All ranks must call it with the same sizes, and all return
// the same Status (routines.h).
Status RootExchangeRoutine(const RankContext& context, const RootExchange& exchange);

// As RootExchangeRoutine, by one rank for all ranks of its process, which share its memory. The
// root is rank 0, or the one that `is_root` says.
Status RootExchangeForAll(const RankContext& alone, const std::vector<RootExchange>& exchanges);

// Gathers on the rank `last`, which calls it, and sets its `is_root`.
Status RootGatherOnLast(const RankContext& alone, const std::vector<RootExchange>& exchanges,
                        int last);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_ROOT_EXCHANGE_H_
