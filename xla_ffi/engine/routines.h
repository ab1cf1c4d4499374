// The routines as one rank runs them from a caller's block of rows to its results: workspace,
// agreement, redistribution, the algorithm, the status. What a handler calls.
//
// A is Hermitian, row-major, in blocks of rows; each rank's block, read column by column, is a
// block of columns of M = conj(A). Only A's upper triangle is read, which is M's lower one.
#ifndef JAXMG_XLA_FFI_ENGINE_ROUTINES_H_
#define JAXMG_XLA_FFI_ENGINE_ROUTINES_H_

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// What A x = b is solved for.
template <typename T>
struct Solution {
  int64_t nrhs;
  T* x;                  // n x nrhs, row-major: b on entry, the solution on exit, on every rank
  Real<T>* log_det;      // log det A
  const T* b = nullptr;  // where the right-hand sides are to be copied from, if they aren't in x
  bool check_b = false;  // ranks may have brought different ones, which is a status
};

// Every rank calls the same routine with the same sizes. All return the same Status: either all of
// them have enqueued everything (Stream::kMain last) or all failed. Where *status is not 0, the
// results are NaN.

// Workspace (docs/memory.md): panels as the device's tuning asks for, an overflow tile and this
// rank's share of x; on rank 0 the matrix, where it is gathered there.
template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand,
                    const Solution<T>& solution);

// The block becomes the rows of the inverse of A. Workspace: that of PotrsRoutine without x, but at
// least two tile columns.
template <typename T>
Status PotriRoutine(const RankContext& context, const Operand<T>& operand);

// w (n): the eigenvalues, ascending. The block becomes the rows of V if `vectors`. Workspace where
// all ranks share the work: EigenSpace; where one does it: A whole on that one (and LAPACK's own),
// and on every rank a tile column.
template <typename T>
Status SyevdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                    Real<T>* w);

// The same, but v becomes the block's rows of those eigenvectors alone: block x subset.count(),
// row-major, no part of the operand's block, which is overwritten.
template <typename T>
Status SyevxRoutine(const RankContext& context, const Operand<T>& operand, const Subset& subset,
                    Real<T>* w, T* v);

// `block` rows of `columns` elements on each rank: contiguous to block-cyclic tiles of `tile` rows,
// or back. Needs `tile` to divide `block`. Copied from `source` first, if that is given.
template <typename T>
Status CyclicRoutine(const RankContext& context, int64_t block, int64_t columns, int64_t tile,
                     bool inverse, T* a, const T* source = nullptr);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_ROUTINES_H_
