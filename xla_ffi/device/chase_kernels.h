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
  // is B_j, the product, s ascending, of these sweeps' H(s, j), on `height` = b + sweeps - 1 rows
  // from first + 1 + j b on: B_j = I - W_j V_j^H with V_j to blocks + j * height * sweeps, W_j to
  // the same place of `weighted`, both height x sweeps and zero where a vector does not reach or
  // the matrix ends. The sweeps' product is ... B_1 B_0: H(s, j) and H(s', j') with s < s' meet
  // only where j' is j or j - 1.
  virtual Status ExpandReflectors(Stream stream, int64_t n, int64_t b, int64_t first,
                                  int64_t sweeps, const T* v, int64_t ldv, const T* tau,
                                  int64_t ldtau, T* blocks, T* weighted) = 0;
  // z B^H for `count` such blocks on columns of their own: z - (z V) W^H, where the i-th V and W
  // lie i * stride behind the first ones, `height` apart from column to column, and its columns of
  // z, as many as `rows` with `columns` elements each, i * z_stride behind the first ones.
  // `products` is count * width * columns of workspace.
  virtual Status ApplyBlocks(Stream stream, int64_t count, int64_t rows, int64_t width,
                             int64_t columns, const T* blocks, const T* weighted, int64_t height,
                             int64_t stride, T* z, int64_t ldz, int64_t z_stride, T* products) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CHASE_KERNELS_H_
