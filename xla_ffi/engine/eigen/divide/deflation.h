// Deflation: determines which columns take part in a merge of divide and conquer.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DEFLATION_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DEFLATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxmg {

// The tables of a merge of order n that the host computes and the device reads. They are one piece
// of memory of n * Bytes(1) bytes with the same layout on both.
template <typename R>
struct MergeTables {
  MergeTables(void* data, int64_t n);
  static constexpr int64_t Bytes(int64_t n) { return n * (6 * sizeof(R) + 6 * sizeof(int32_t)); }

  // The k of n columns that take part: the poles in ascending order, their z, and the poles in the
  // order of their groups (see Deflation).
  R *d, *z, *grouped;
  // The n - k deflated eigenvalues, ascending.
  R* deflated;
  // Rotations of columns (SecularKernels::RotateColumns), at most n - 1.
  R *c, *s;
  int32_t *first, *second, *starts;
  // For each grouped pole, its index in ascending order; and the column of each grouped pole,
  // followed by the deflated columns.
  int32_t *order, *columns;
};

template <typename R>
struct Deflation {
  int64_t k = 0;
  R rho = 0;
  // Poles are grouped by the rows in which their vectors are nonzero: only above the split,
  // everywhere, only below the split. A product with rows above the split needs only poles [0,
  // bottom), and one with rows below it only [top, k).
  int64_t top = 0, bottom = 0;
  int64_t chains = 0;
};

// Computes the stable permutation that sorts `values`, which consist of long ascending runs.
template <typename R>
void SortRuns(int64_t n, const R* values, std::vector<int32_t>* order);

// Deflates diag(d) + rho z z^T, of order n (rho >= 0, |z| about 1). The first `split` elements
// belong to columns above the split, the others to columns below it. A column is deflated if its z
// is negligible, or becomes negligible when two columns with nearly equal d are rotated. The error
// is a few rounding units of max(|d|, |z|) (Rutter, A serial implementation of Cuppen's divide and
// conquer algorithm, 1994). If all columns are deflated (k = 0), there are no rotations, and d are
// the eigenvalues.
template <typename R>
Deflation<R> Deflate(int64_t n, int64_t split, R rho, const R* d, const R* z,
                     const MergeTables<R>& tables);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DEFLATION_H_
