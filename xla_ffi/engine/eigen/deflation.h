// Which columns of a merge of divide and conquer take part in it, and how.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DEFLATION_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DEFLATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxmg {

// What the host finds out about a merge of order n and its device needs, in one piece of memory of
// n * Bytes(1): the same on both sides.
template <typename R>
struct MergeTables {
  MergeTables(void* data, int64_t n);
  static constexpr int64_t Bytes(int64_t n) { return n * (6 * sizeof(R) + 6 * sizeof(int32_t)); }

  // Of what is left, k of n: poles ascending and their z; the poles again, grouped (below).
  R *d, *z, *grouped;
  // Of what is not left, eigenvalues already: n - k, ascending.
  R* deflated;
  // Rotations of columns (SecularKernels::RotateColumns), at most n - 1.
  R *c, *s;
  int32_t *first, *second, *starts;
  // The pole that is the grouped one; the column of each grouped one, and after these the columns
  // of what is deflated.
  int32_t *order, *columns;
};

template <typename R>
struct Deflation {
  int64_t k = 0;
  R rho = 0;
  // Poles are grouped by where their vectors have elements: in rows above the split alone, in all
  // rows, and below it alone, so that a row's products need only [0, bottom) or [top, k).
  int64_t top = 0, bottom = 0;
  int64_t chains = 0;
};

// The permutation by which `values` ascend, of which long runs do already; stable.
template <typename R>
void SortRuns(int64_t n, const R* values, std::vector<int32_t>* order);

// Deflates diag(d) + rho z z^T, of order n (rho >= 0, |z| about 1), where the first `split`
// elements belong to columns above the split, the others below it. A z that is too small, or can be
// made so by rotating two columns whose d are nearly the same, is left out: the error is some units
// of rounding of max(|d|, |z|) (Rutter, A serial implementation of Cuppen's divide and conquer
// algorithm, 1994). Where nothing is left (k = 0) there are no rotations, and d are the
// eigenvalues.
template <typename R>
Deflation<R> Deflate(int64_t n, int64_t split, R rho, const R* d, const R* z,
                     const MergeTables<R>& tables);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DEFLATION_H_
