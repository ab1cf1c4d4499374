// SecularKernels: the operations on one device, other than products, that a merge of divide and
// conquer consists of.
#ifndef JAXMG_XLA_FFI_DEVICE_EIGEN_SECULAR_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_EIGEN_SECULAR_KERNELS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// A merge is the eigenproblem of diag(d) + rho z z^T: k poles d_0 < d_1 < ..., every z_i nonzero,
// rho > 0. Root j of 1 + rho sum_i z_i^2 / (d_i - x) lies between d_j and d_j+1, and the last one
// between the last pole d_k-1 and d_k-1 + rho z^T z. A root is stored as its nearest pole `origin`
// and the distance `tau` from it: (d_i - origin) - tau is d_i minus the root to full relative
// accuracy, but d_i minus the rounded root is not.
//
// All numbers are real, of type Real<T>. Arrays are in device memory. Counts are positive. The
// iterations of the outer loop of every operation (over roots, poles, columns or rows) are
// independent.
template <typename T>
class SecularKernels {
  using R = Real<T>;

 public:
  virtual ~SecularKernels() = default;

  // Computes roots [begin, end) and writes them to the same indices of `origin`, `tau` and `roots`
  // (their rounded sum). If a root has not converged after `limit` evaluations, sets *info, which
  // is 0 before, to a positive number.
  virtual Status Roots(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z,
                       R rho, int limit, R* origin, R* tau, R* roots, int32_t* info) = 0;

  // Computes Gu's and Eisenstat's z, for which the computed roots are exact: refined_g := sign(z_i)
  // sqrt(prod_j (root_j - d_i) / (rho prod_j!=i (d_j - d_i))) with i = order_g, for g in [begin,
  // end).
  virtual Status RefineZ(Stream stream, int64_t k, int64_t begin, int64_t end, const int32_t* order,
                         const R* d, const R* z, R rho, const R* origin, const R* tau,
                         R* refined) = 0;

  // Computes the unit eigenvectors of roots [begin, end) as consecutive columns of u (k rows): u_gj
  // ~ z_g / (d_g - root_j). d and z may be in any order; the rows of u are in the same order.
  virtual Status Vectors(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d,
                         const R* z, const R* origin, const R* tau, R* u, int64_t ldu) = 0;

  // (x, y) := (c x + s y, c y - s x) with columns x = first_i and y = second_i of q, for each i in
  // [starts_h, starts_h+1) in turn. Different chains h have no column in common.
  virtual Status RotateColumns(Stream stream, int64_t rows, int64_t chains, const int32_t* starts,
                               const int32_t* first, const int32_t* second, const R* c, const R* s,
                               R* q, int64_t ldq) = 0;

  // Column to_j of the target := column from_j of the source, for j < columns. The matrices may not
  // overlap. A null `from` or `to` means the identity.
  virtual Status CopyColumns(Stream stream, int64_t rows, int64_t columns, const int32_t* from,
                             const R* source, int64_t lds, const int32_t* to, R* target,
                             int64_t ldt) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_EIGEN_SECULAR_KERNELS_H_
