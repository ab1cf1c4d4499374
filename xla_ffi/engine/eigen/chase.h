// The second stage of an eigensolver in two stages: reduces a Hermitian band matrix to a real
// symmetric tridiagonal one by chasing bulges, B = Q Tri Q^H, and multiplies Q by a matrix whose
// columns are distributed. (Bischof, Lang and Sun 2000; Haidar, Ltaief and Dongarra 2011.)
//
// One rank chases: 6 n^2 b operations, four times as many in complex arithmetic. It distributes the
// reflectors, n^2 / 2 numbers, to the ranks, some sweeps at a time. The back-transformation takes 2
// n^2 (1 + group / b) operations per column of the matrix. It multiplies each rank's columns by
// blocks of a group's reflectors. The owner of reflectors broadcasts them while the previous ones
// are applied.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_CHASE_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_CHASE_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// The sweeps over a band of order n with b subdiagonals. They are chased and sent in bundles of
// `bundle` sweeps, which are stored on the ranks in turn, and applied in groups of `group` sweeps.
// A bundle consists of whole groups. (A bundle should have more sweeps than the device runs at a
// time. The blocks of a group are b + group - 1 rows by group columns.)
//
// A bundle is contiguous in memory: first its vectors, rows x width, column-major, from the first
// row that one of them reaches; then steps x width factors tau (chase_kernels.h).
struct ChaseShape {
  ChaseShape(int64_t n, int64_t b, int64_t group, int64_t bundle, int ranks)
      : n(n),
        b(std::clamp<int64_t>(b, 1, std::max<int64_t>(n - 1, 1))),
        group(group),
        bundle((bundle + group - 1) / group * group),
        ranks(ranks) {}

  int64_t sweeps() const { return std::max<int64_t>(n - 1, 0); }
  int64_t bundles() const { return (sweeps() + bundle - 1) / bundle; }
  // Properties of bundle k.
  int64_t first(int64_t k) const { return k * bundle; }
  int64_t width(int64_t k) const { return std::min(bundle, sweeps() - first(k)); }
  int64_t rows(int64_t k) const { return std::max<int64_t>(n - 1 - first(k), 0); }
  int64_t steps(int64_t k) const { return StepsOf(first(k)); }
  int64_t elements(int64_t k) const { return (rows(k) + steps(k)) * width(k); }
  int owner(int64_t k) const { return static_cast<int>(k % ranks); }
  // The offset of a bundle in its owner's memory, and the elements of all bundles of a rank.
  int64_t offset(int64_t k) const { return Sum(owner(k), k); }
  int64_t stored(int rank) const { return Sum(rank, bundles()); }
  // The number of reflectors of a sweep.
  int64_t StepsOf(int64_t sweep) const { return std::max<int64_t>(n - 1 - sweep + b - 1, 0) / b; }

  const int64_t n, b, group, bundle;
  const int ranks;

 private:
  int64_t Sum(int rank, int64_t end) const {
    int64_t sum = 0;
    for (int64_t k = rank; k < end; k += ranks) sum += elements(k);
    return sum;
  }
};

// Return the elements of workspace of ChaseBulges on a rank, and of ApplyChase for `columns`
// columns.
int64_t ChaseWorkspace(const ChaseShape& shape, int rank, bool vectors);
int64_t ApplyChaseWorkspace(const ChaseShape& shape, int64_t columns);

// Reduces `band` (rank 0 only, in the format of chase_kernels.h; overwritten) to a tridiagonal
// matrix. Every rank gets its diagonal d (n) and its off-diagonal e (n - 1). With `vectors`, writes
// this rank's bundles, shape.stored(rank) elements, to `bundles`. All arrays are in device memory.
// d and e are bitwise equal on all ranks, and with or without vectors.
template <typename T>
Status ChaseBulges(const RankContext& context, const ChaseShape& shape, bool vectors, T* band,
                   int64_t ldb, Real<T>* d, Real<T>* e, T* bundles, T* workspace);

// z := z Q^H, the conjugate transpose of a product with Q. z is `columns` x n; `columns` may differ
// between ranks and may be 0.
template <typename T>
Status ApplyChase(const RankContext& context, const ChaseShape& shape, const T* bundles,
                  int64_t columns, T* z, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_CHASE_H_
