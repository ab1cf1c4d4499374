// A matrix whose rows lie on ranks becomes one whose columns do, and back: what eigenvectors go
// through on their way from divide and conquer to the caller.
//
// A rank has its columns conjugated and transposed, as rows side by side. A product from the left
// then takes a few of the matrix's rows from one piece of memory, and what goes to a caller, whose
// arrays are row-major, is in its order already.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_EXCHANGE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_EXCHANGE_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/subset.h"

namespace jaxmg {

// How rows, or columns, are shared: in contiguous blocks of `block`, rank by rank; the last ones
// may hold fewer, or none.
struct Shares {
  int64_t count;
  int64_t block;

  int64_t begin(int rank) const { return std::min(rank * block, count); }
  int64_t width(int rank) const { return begin(rank + 1) - begin(rank); }
};

// As many eigenvectors on each rank.
inline Shares SharesOf(const Subset& subset, int ranks) {
  return {subset.count(), (subset.count() + ranks - 1) / ranks};
}

// Elements of staging at least, as many on each rank; more makes fewer messages.
inline int64_t LeastStaging(const Shares& rows) { return 3 * rows.block; }

// q (this rank's rows x columns.count, leading dimension ldq) to z (this rank's columns x
// rows.count), of T. Enqueued on kMain; q may change after it.
template <typename T>
Status RowsToColumns(const RankContext& context, const Shares& rows, const Shares& columns,
                     const Real<T>* q, int64_t ldq, T* z, T* staging, int64_t staging_size);

// z (this rank's columns x rows.count) to a (columns.count x this rank's rows): the conjugate
// transpose of those rows. Enqueued on kMain; z may change after it.
template <typename T>
Status ColumnsToRows(const RankContext& context, const Shares& rows, const Shares& columns,
                     const T* z, T* a);

// The way back: `a`, as ColumnsToRows has it, to z. Enqueued on kMain; a may change after it.
template <typename T>
Status RowsToColumns(const RankContext& context, const Shares& rows, const Shares& columns,
                     const T* a, T* z);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_EXCHANGE_H_
