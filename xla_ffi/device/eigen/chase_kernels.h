// ChaseKernels: reduces a band to a tridiagonal matrix by chasing bulges, and applies the
// reflectors.
//
// The band B is Hermitian, n x n, with b >= 1 subdiagonals: band[(i - j) + j * ldb] = B(i, j) for i
// >= j. Bulges extend 2b - 1 below the diagonal, so ldb >= min(2b, n). Elements outside of B are
// initially zero.
//
// Sweep s = 0 ... n - 2 makes column s tridiagonal with reflectors H(s, j) = I - tau v v^H, v_0 =
// 1, on rows s + 1 + j b ... s + (j + 1) b, as far as these rows exist. H(s, 0) clears the column,
// and H(s, j) the first column of the bulge that H(s, j - 1) creates. Each reflector updates B :=
// H^H B H. So the original matrix is Q B Q^H, where Q is the product of H(s, j) over j and over
// ascending s.
#ifndef JAXMG_XLA_FFI_DEVICE_EIGEN_CHASE_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_EIGEN_CHASE_KERNELS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// Groups [begin, end) of the sweeps of a bundle: group g has `width` sweeps from first + g * group
// on. Its blocks (ExpandReflectors) begin g * stride elements after the blocks of group 0.
struct SweepGroups {
  int64_t n, b, first, group, width, stride, begin, end;

  // The height of every block, the first row of block j of group g, and the number of blocks in a
  // group.
  int64_t height() const { return b + width; }
  int64_t row(int64_t g, int64_t j) const { return first + g * group + 1 + j * b; }
  int64_t steps(int64_t g) const { return (n - row(g, 0) + b - 1) / b; }
  int64_t block(int64_t g, int64_t j) const { return g * stride + j * height() * width; }
};

template <typename T>
class ChaseKernels {
 public:
  virtual ~ChaseKernels() = default;

  // Performs sweeps first ... first + sweeps - 1, after all earlier ones. Column k of `v` receives
  // the vectors of sweep first + k, one below the other; row i of the matrix is row i - first - 1
  // of `v`. Elements above the vectors are unchanged. tau(first + k, j) is tau[j + k * ldtau]. Both
  // may be null if vectors are not needed.
  virtual Status Chase(Stream stream, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first,
                       int64_t sweeps, T* v, int64_t ldv, T* tau, int64_t ldtau) = 0;
  // Extracts the diagonal (n) and the subdiagonal (n - 1) after all sweeps.
  virtual Status TakeTridiagonal(Stream stream, int64_t n, const T* band, int64_t ldb, Real<T>* d,
                                 Real<T>* e) = 0;
  // Converts the reflectors of `sweeps` sweeps to blocks. B_j is the product of H(s, j) over these
  // sweeps in ascending order. It acts on `height` = b + sweeps rows from first + 1 + j b on; the
  // last row is padding for alignment. B_j = I - W_j V_j^H. V_j is written to blocks + j * height *
  // sweeps, and W_j to the same offset in `weighted`. Both are height x sweeps, and zero outside of
  // the vectors and of the matrix. The product of the sweeps is ... B_1 B_0, because H(s, j) and
  // H(s', j') with s < s' overlap only if j' is j or j - 1.
  virtual Status ExpandReflectors(Stream stream, int64_t n, int64_t b, int64_t first,
                                  int64_t sweeps, const T* v, int64_t ldv, const T* tau,
                                  int64_t ldtau, T* blocks, T* weighted) = 0;
  // z := z B^H = z - (z V) W^H for every block B of these groups, from the last group to the first,
  // and within a group from block 0 on. z has n columns of `columns` elements. Its rows are
  // independent; `at_once` of them fit into a cache. `products` is workspace of (end - begin) *
  // width * columns elements.
  virtual Status ApplyGroups(Stream stream, const SweepGroups& groups, int64_t columns,
                             int64_t at_once, const T* blocks, const T* weighted, T* z, int64_t ldz,
                             T* products) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_EIGEN_CHASE_KERNELS_H_
