// Exchanges a matrix between a distribution by rows and one by columns. Eigenvectors pass through
// it from divide and conquer to the caller.
//
// A rank stores its columns as their conjugate transpose. Then a few rows of the matrix, which a
// product from the left needs, are contiguous, and results have the order of the caller's row-major
// arrays.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_EXCHANGE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_EXCHANGE_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/subset.h"

namespace jaxmg {

// A distribution of `count` rows or columns in contiguous blocks of `block`, rank by rank. The last
// blocks may be shorter, or empty.
struct Distribution {
  int64_t count;
  int64_t block;

  int64_t begin(int rank) const { return std::min(rank * block, count); }
  int64_t width(int rank) const { return begin(rank + 1) - begin(rank); }
};

// Returns the distribution that spreads the eigenvectors of a subset evenly.
inline Distribution DistributionOf(const Subset& subset, int ranks) {
  return {subset.count(), (subset.count() + ranks - 1) / ranks};
}

// The minimum number of elements of staging, equal on all ranks. More staging means fewer messages.
inline int64_t MinimumStaging(const Distribution& rows) { return 3 * rows.block; }

// Converts q (this rank's rows x columns.count, leading dimension ldq) to z (this rank's columns x
// rows.count) of type T. Enqueued on kMain; q may change afterwards.
template <typename T>
Status RowsToColumns(const RankContext& context, const Distribution& rows,
                     const Distribution& columns, const Real<T>* q, int64_t ldq, T* z, T* staging,
                     int64_t staging_size);

// Converts z (this rank's columns x rows.count) to a (columns.count x this rank's rows), the
// conjugate transpose of those rows. Enqueued on kMain; z may change afterwards.
template <typename T>
Status ColumnsToRows(const RankContext& context, const Distribution& rows,
                     const Distribution& columns, const T* z, T* a);

// The inverse of ColumnsToRows. Enqueued on kMain; a may change afterwards.
template <typename T>
Status RowsToColumns(const RankContext& context, const Distribution& rows,
                     const Distribution& columns, const T* a, T* z);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_EXCHANGE_H_
