// From a band to a tridiagonal matrix, by chasing bulges, and back.
//
// The band B is Hermitian, n x n, with b >= 1 subdiagonals: band[(i - j) + j * ldb] = B(i, j) for
// i >= j. Bulges reach 2b - 1 below the diagonal, so ldb >= min(2b, n), and everything that is not
// B's is zero at first.
//
// Sweep s = 0 ... n - 2 makes column s tridiagonal by reflectors H(s, j) = I - tau v v^H, v_0 = 1,
// on rows s + 1 + j b ... s + (j + 1) b, as far as there are such rows. H(s, 0) clears the column,
// H(s, j) the first column of the bulge that H(s, j - 1) has made; B := H^H B H each time. So what
// was given is Q B Q^H, Q = the product, s ascending, of those over j of H(s, j).
#ifndef JAXMG_XLA_FFI_DEVICE_CHASE_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_CHASE_KERNELS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// Groups [begin, end) of the sweeps of a bundle: group g is `width` sweeps from first + g * group
// on. Its blocks, as ExpandReflectors makes them, lie g * stride elements behind those of group 0.
struct SweepGroups {
  int64_t n, b, first, group, width, stride, begin, end;

  // Of every block; the first row of block j of group g, and how many there are.
  int64_t height() const { return b + width; }
  int64_t row(int64_t g, int64_t j) const { return first + g * group + 1 + j * b; }
  int64_t steps(int64_t g) const { return (n - row(g, 0) + b - 1) / b; }
  int64_t block(int64_t g, int64_t j) const { return g * stride + j * height() * width; }
};

template <typename T>
class ChaseKernels {
 public:
  virtual ~ChaseKernels() = default;

  // Sweeps first ... first + sweeps - 1, those before being done. Row i of the matrix is row
  // i - first - 1 of `v`, in column k of which the vectors of sweep first + k lie one below the
  // other (what is above them is left as it is); tau(first + k, j) is tau[j + k * ldtau]. Both may
  // be null where vectors are not wanted.
  virtual Status Chase(Stream stream, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first,
                       int64_t sweeps, T* v, int64_t ldv, T* tau, int64_t ldtau) = 0;
  // The diagonal (n) and what is below it (n - 1) of a band on which all sweeps have been done.
  virtual Status TakeTridiagonal(Stream stream, int64_t n, const T* band, int64_t ldb, Real<T>* d,
                                 Real<T>* e) = 0;
  // What Chase has written for `sweeps` sweeps to products with blocks of them. For every j there
  // is B_j, the product, s ascending, of these sweeps' H(s, j), on `height` = b + sweeps rows from
  // first + 1 + j b on, the last of which is only there so that columns begin at even places:
  // B_j = I - W_j V_j^H with V_j to blocks + j * height * sweeps, W_j to the same place of
  // `weighted`, both height x sweeps and zero where a vector does not reach or the matrix ends. The
  // sweeps' product is ... B_1 B_0: H(s, j) and H(s', j') with s < s' meet only where j' is j or j
  // - 1.
  virtual Status ExpandReflectors(Stream stream, int64_t n, int64_t b, int64_t first,
                                  int64_t sweeps, const T* v, int64_t ldv, const T* tau,
                                  int64_t ldtau, T* blocks, T* weighted) = 0;
  // z := z B^H for every block B of these groups, the last group first, of each group block 0
  // first: z - (z V) W^H. z has n columns, of `columns` elements each, which don't depend on each
  // other; `at_once` of them stay in a cache. `products` is (end - begin) * width * columns of
  // workspace.
  virtual Status ApplyGroups(Stream stream, const SweepGroups& groups, int64_t columns,
                             int64_t at_once, const T* blocks, const T* weighted, T* z, int64_t ldz,
                             T* products) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CHASE_KERNELS_H_
