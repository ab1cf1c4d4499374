// The second stage of an eigensolver in two stages: from a Hermitian band matrix to a real
// symmetric tridiagonal one by chasing bulges, B = Q Tri Q^H, and the product of Q with a matrix
// whose columns are spread over ranks. (Bischof, Lang and Sun 2000; Haidar, Ltaief and Dongarra
// 2011.)
//
// One rank chases: 6 n^2 b operations, four times that in complex numbers. Its sweeps' reflectors,
// n^2 / 2 numbers, go to the ranks, some sweeps at a time. The way back, 2 n^2 (1 + group / b)
// operations a column of the matrix, is products with blocks of a group's reflectors, on the
// columns that a rank has; who has reflectors sends them to all, the next while some are being
// applied.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_CHASE_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_CHASE_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// The sweeps over a band of order n with b subdiagonals. They are chased and sent in bundles of
// `bundle` sweeps, which the ranks keep in turn, and applied in groups of `group` sweeps; a bundle
// is some groups. (A device that has many sweeps under way at a time wants bundles of more than
// those; a group's blocks are b + group - 1 rows by group columns.)
//
// A bundle is one piece of memory: its vectors, rows x width column-major, from the first row that
// one of them reaches, and steps x width factors tau behind them (chase_kernels.h).
struct ChaseShape {
  ChaseShape(int64_t n, int64_t b, int64_t group, int64_t bundle, int ranks)
      : n(n),
        b(std::clamp<int64_t>(b, 1, std::max<int64_t>(n - 1, 1))),
        group(group),
        bundle((bundle + group - 1) / group * group),
        ranks(ranks) {}

  int64_t sweeps() const { return std::max<int64_t>(n - 1, 0); }
  int64_t bundles() const { return (sweeps() + bundle - 1) / bundle; }
  // Of bundle k.
  int64_t first(int64_t k) const { return k * bundle; }
  int64_t width(int64_t k) const { return std::min(bundle, sweeps() - first(k)); }
  int64_t rows(int64_t k) const { return std::max<int64_t>(n - 1 - first(k), 0); }
  int64_t steps(int64_t k) const { return StepsOf(first(k)); }
  int64_t elements(int64_t k) const { return (rows(k) + steps(k)) * width(k); }
  int owner(int64_t k) const { return static_cast<int>(k % ranks); }
  // Where a bundle lies in its owner's memory, and how much of that there is on a rank.
  int64_t offset(int64_t k) const { return Sum(owner(k), k); }
  int64_t kept(int rank) const { return Sum(rank, bundles()); }
  // The reflectors of a sweep.
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

// The elements of workspace that ChaseBulges needs on a rank, and ApplyChase for so many columns.
int64_t ChaseWorkspace(const ChaseShape& shape, int rank, bool vectors);
int64_t ApplyChaseWorkspace(const ChaseShape& shape, int64_t columns);

// `band` lies on rank 0, as chase_kernels.h has it, and is overwritten; other ranks' is not looked
// at. The tridiagonal matrix, d (n) and what is beside it, e (n - 1), to every rank. With
// `vectors`, `kept` becomes this rank's bundles, shape.kept(rank) elements. All in device memory; d
// and e are the same bits on all ranks, and with vectors and without.
template <typename T>
Status ChaseBulges(const RankContext& context, const ChaseShape& shape, bool vectors, T* band,
                   int64_t ldb, Real<T>* d, Real<T>* e, T* kept, T* workspace);

// z := z Q^H, `columns` (which may differ between ranks, and be 0) x n: the conjugate transpose of
// a product with Q.
template <typename T>
Status ApplyChase(const RankContext& context, const ChaseShape& shape, const T* kept,
                  int64_t columns, T* z, T* workspace);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_CHASE_H_
