// Gathers a distributed matrix on one rank, and scatters it.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_GATHER_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_GATHER_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/redistribute.h"

namespace jaxmg {

// The rank on which matrices are gathered.
inline constexpr int kRoot = 0;

// `columns` columns of `rows` elements in contiguous blocks of `block` columns, rank by rank.
template <typename T>
struct Blocks {
  int64_t rows;
  int64_t columns;
  int64_t block;
  T* data;  // this rank's block

  int64_t begin(int rank) const { return std::min(rank * block, columns); }
  int64_t width(int rank) const { return begin(rank + 1) - begin(rank); }
};

// Copies each rank's columns to `whole` (rows x columns, on the root). Region::kLower copies only
// the rows from the block's first diagonal element on. Enqueued on kMain; the blocks may change
// after WaitAllSent.
template <typename T>
Status GatherBlocks(const RankContext& context, const Blocks<T>& blocks, Region region, T* whole);

// Copies the columns of `whole` to the ranks' blocks. Enqueued on kMain; `whole` may change
// afterwards.
template <typename T>
Status Scatter(const RankContext& context, const T* whole, const Blocks<T>& blocks);

// Concatenates `part` (count) of all ranks, in rank order, to `all` (size * count) on every rank.
// All ranks must call it with the same count, and all return the same Status (routines.h).
template <typename T>
Status AllGatherRoutine(const RankContext& context, int64_t count, const T* part, T* all);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_GATHER_H_
