// A distributed matrix as a whole on one rank, and back: for what one rank does alone.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_GATHER_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_GATHER_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/redistribute.h"

namespace jaxmg {

// The rank that has the whole matrix.
inline constexpr int kRoot = 0;

// `columns` columns of `rows` elements in contiguous blocks of `block` columns, rank by rank.
template <typename T>
struct Blocks {
  int64_t rows;
  int64_t columns;
  int64_t block;
  T* data;  // this rank's

  int64_t begin(int rank) const { return std::min(rank * block, columns); }
  int64_t width(int rank) const { return begin(rank + 1) - begin(rank); }
};

// Each rank's columns to their places in `whole`, rows x columns on the root: all of them, or, of
// the lower region, those rows that begin with the block's first diagonal element. Enqueued on
// kMain; the blocks may change after WaitAllSent.
template <typename T>
Status GatherBlocks(const RankContext& context, const Blocks<T>& blocks, Region region, T* whole);

// The columns of `whole` to the ranks' blocks. Enqueued on kMain; `whole` may change after it.
template <typename T>
Status Scatter(const RankContext& context, const T* whole, const Blocks<T>& blocks);

// all (size * count, on every rank) := every rank's `part` (count), in rank order. Every rank calls
// it with the same count; all return the same Status, as in routines.h.
template <typename T>
Status AllGatherRoutine(const RankContext& context, int64_t count, const T* part, T* all);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_GATHER_H_
