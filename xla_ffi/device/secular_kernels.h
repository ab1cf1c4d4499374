// What merges of divide and conquer do on one device beside products.
#ifndef JAXMG_XLA_FFI_DEVICE_SECULAR_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_SECULAR_KERNELS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// A merge is the eigenproblem of diag(d) + rho z z^T: k poles d_0 < d_1 < ..., every z_i nonzero,
// rho > 0. Root j of 1 + rho sum_i z_i^2 / (d_i - x) lies between d_j and d_j+1, the last one
// between the last pole and that plus rho z^T z. It is kept as the pole `origin` that is next to it
// and the distance `tau`: (d_i - origin) - tau is d_i minus the root to full relative accuracy,
// which d_i minus the rounded root is not.
//
// All of it is real: T says which. Arrays are in the device's memory; what is passed by value comes
// from the host; counts are positive, and there may be one row alone. Of every operation the
// iterations of its outer loop (a root, a pole, a column, a row) do not depend on each other.
template <typename T>
class SecularKernels {
  using R = Real<T>;

 public:
  virtual ~SecularKernels() = default;

  // Roots [begin, end), to their places in `origin`, `tau` and `roots` (their rounded sum). Where
  // one has not been found after `limit` evaluations *info, which is 0 before, becomes positive.
  virtual Status Roots(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z,
                       R rho, int limit, R* origin, R* tau, R* roots, int32_t* info) = 0;

  // Gu's and Eisenstat's z, of which the roots that were found are the exact ones:
  // refined_g := sign(z_i) sqrt(prod_j (root_j - d_i) / (rho prod_j!=i (d_j - d_i))) with
  // i = order_g, for g in [begin, end).
  virtual Status RefineZ(Stream stream, int64_t k, int64_t begin, int64_t end, const int32_t* order,
                         const R* d, const R* z, R rho, const R* origin, const R* tau,
                         R* refined) = 0;

  // Unit eigenvectors that belong to roots [begin, end), side by side from u on (k rows):
  // u_gj ~ z_g / (d_g - root_j). Here d and z are in any order, of which u's rows are.
  virtual Status Vectors(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d,
                         const R* z, const R* origin, const R* tau, R* u, int64_t ldu) = 0;

  // (x, y) := (c x + s y, c y - s x) with columns x = first_i and y = second_i of q, for each i in
  // [starts_h, starts_h+1) in turn. Different chains h have no column in common.
  virtual Status RotateColumns(Stream stream, int64_t rows, int64_t chains, const int32_t* starts,
                               const int32_t* first, const int32_t* second, const R* c, const R* s,
                               R* q, int64_t ldq) = 0;

  // Column to_j of the target := column from_j of the source, which it does not overlap; j where
  // there is no `from` or no `to`.
  virtual Status CopyColumns(Stream stream, int64_t rows, int64_t columns, const int32_t* from,
                             const R* source, int64_t lds, const int32_t* to, R* target,
                             int64_t ldt) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_SECULAR_KERNELS_H_
