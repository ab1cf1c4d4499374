// StackKernels: operations on stacks of matrices, all of one shape, that one device has for itself.
//
// Unlike elsewhere, matrices are row-major, one after the other, as XLA has them.
#ifndef JAXMG_XLA_FFI_DEVICE_STACK_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_STACK_KERNELS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/parts.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// `count` merges of divide and conquer: the eigenproblems of diag(d) + rho z z^T of even order k. A
// pole d_i is high_i + low_i, and every z_i and rho differ from 0. Nothing is deflated: poles may
// be equal, and are then set apart by `gap`.
template <typename R>
struct StackedMerges {
  int64_t count, k;
  R gap;                    // between neighboring poles
  const R *high, *low, *z;  // count x k; the poles may be in any order
  const R* rho;             // one of each merge
};

// The results. A root is high_j + low_j, of which the first is the rounded sum; they ascend up to
// rounding. The unit eigenvectors are rows, in two halves: the elements that go with the first k /
// 2 poles, then the others, count x 2 x k x k / 2.
template <typename R>
struct MergedPairs {
  R *high, *low;  // count x k
  R* vectors;
};

// A triangle of each matrix of a stack: T, or T^H with `adjoint`; its diagonal is ones, and not
// read, with `unit`. The other triangle isn't read.
struct StackedTriangle {
  bool upper, adjoint, unit;
};

// Triples (a, b, c) of a x + b x^3 + c x^5, in host memory.
struct Polynomials {
  const double* coefficients;
  int64_t count;  // of triples
};

template <typename T>
class StackKernels {
 public:
  virtual ~StackKernels() = default;

  // Eigenvalues w (n), in no order, and eigenvectors, the columns of v (n x n), of `count`
  // symmetric tridiagonal matrices of order n <= kMostQl, with the diagonals d (n) and e (n - 1)
  // beside them. Entries are finite, and neither huge nor all tiny. NaN where the iteration fails.
  virtual Status SolveTridiagonal(Stream stream, int64_t count, int64_t n, const Real<T>* d,
                                  const Real<T>* e, Real<T>* w, Real<T>* v) = 0;

  // Reduces each of `count` symmetric matrices a, n x n with n > 1 and entries near 1 or smaller,
  // of which both triangles are read, to T = Q^H A Q with the diagonals d (n) and e (n - 1) beside
  // it. Q = H_0 H_1 ..., H_j = 1 - tau_j v_j v_j^T; row j of a becomes v_j, which is 0 up to
  // element j and 1 in the next.
  virtual Status ReduceToTridiagonal(Stream stream, int64_t count, int64_t n, Real<T>* a,
                                     Real<T>* d, Real<T>* e, Real<T>* tau) = 0;

  // Source of the eigenvectors: M. Gu and S. Eisenstat, A divide-and-conquer algorithm for the
  // symmetric tridiagonal eigenproblem (1995). The device allocates workspace of eight times the
  // poles.
  virtual Status Merge(Stream stream, const StackedMerges<Real<T>>& merges,
                       const MergedPairs<Real<T>>& pairs) = 0;

  // Overwrites each of `count` matrices, n x n, by its LU factorization with partial pivoting: row
  // i was interchanged with row pivots[i] >= i, counted from 0, one after the other; `pivots` has n
  // numbers of each. A singular matrix has a zero on U's diagonal.
  virtual Status FactorLu(Stream stream, int64_t count, int64_t n, T* a, int32_t* pivots) = 0;

  // The inverse of each of `count` matrices, n x n with n <= kMostSmall, by elimination with
  // partial pivoting; what is singular has no finite one. The inverse may overwrite a.
  virtual Status InvertSmall(Stream stream, int64_t count, int64_t n, const T* a, T* inverse) = 0;

  // x := a^-1 b, n x nrhs, for such matrices and nrhs <= kMostSmallColumns. x may overwrite b.
  virtual Status SolveSmall(Stream stream, int64_t count, int64_t n, int64_t nrhs, const T* a,
                            const T* b, T* x) = 0;

  // Overwrites each of `count` matrices, m x n, by the R of its QR decomposition, with zeros below
  // it, whose signs are LAPACK's. Unless q is null it becomes the first k = min(m, n) columns of Q,
  // m x k. Entries are near 1 or smaller, so that squares don't overflow. The device allocates
  // workspace of about a stack m x k.
  virtual Status FactorQr(Stream stream, int64_t count, int64_t m, int64_t n, T* a, T* q) = 0;

  // The singular value decomposition of each of `count` matrices, m x n with k = min(m, n), which
  // are overwritten: U, m x k, S, k in descending order, and V^H, k x n. U and V^H may be null. NaN
  // for a matrix that isn't finite. Of host devices alone.
  virtual Status Decompose(Stream, int64_t /*count*/, int64_t /*m*/, int64_t /*n*/, T* /*a*/,
                           T* /*u*/, Real<T>* /*s*/, T* /*vh*/) {
    return Error(Code::kInternal, "the device has no singular value decomposition of stacks");
  }

  // Overwrites each of `count` matrices X, m x n, by (a + b X X^H + c (X X^H)^2) X for each triple
  // of `polynomials`, one after the other: odd polynomials of its singular values. The device
  // allocates workspace of a stack m x n and two of the order min(m, n).
  virtual Status MapSingularValues(Stream stream, int64_t count, int64_t m, int64_t n,
                                   Polynomials polynomials, T* x) = 0;
  // The same of numbers of 16 bits, whose products are added in float32, by the kernels of float.
  virtual Status MapSingularValues(Stream, PartFormat, int64_t, int64_t, int64_t, Polynomials,
                                   Part*) {
    return Error(Code::kInternal, "numbers of 16 bits are for the kernels of float32");
  }

  // Overwrites the lower triangle of each of `count` Hermitian matrices, n x n, by L of A = L L^H,
  // and what is above it by 0; with `upper` the upper triangle by U = L^H, and what is below it by
  // 0. The triangle is NaN where A isn't positive definite. Reads only the triangle.
  virtual Status FactorCholesky(Stream stream, bool upper, int64_t count, int64_t n, T* a) = 0;
  // The same of the Hermitian part of each matrix, of any range; NaN for one that differs from its
  // adjoint by more than rounding, 10 n eps times its largest element. On the host.
  virtual Status FactorHermitian(Stream, bool /*upper*/, int64_t /*count*/, int64_t /*n*/,
                                 T* /*a*/) {
    return Status::Fixed(Code::kUnavailable, "this device factors no Hermitian parts");
  }

  // Overwrites each of `count` lower triangular matrices, n x n, or upper ones with `upper`, by its
  // inverse. The other triangle must be 0.
  virtual Status InvertTriangle(Stream stream, bool upper, int64_t count, int64_t n, T* a) = 0;

  // b := T^-1 b, n x nrhs, for each of `count` matrices a, n x n with n <= kMostStackSubstitution.
  // Made for few right-hand sides: each reads a again.
  virtual Status SolveTriangle(Stream stream, StackedTriangle triangle, int64_t count, int64_t n,
                               int64_t nrhs, const T* a, T* b) = 0;

  // The lower triangle of product := x x^H for each of `count` upper triangular matrices, n x n,
  // whose lower triangles must be 0. What is above it is undefined.
  virtual Status MultiplyTriangle(Stream stream, int64_t count, int64_t n, const T* x,
                                  T* product) = 0;

  // product := op(x) op(y) for each of `count` matrices, m x n, of inner dimension k.
  virtual Status Multiply(Stream stream, Op op_x, Op op_y, int64_t count, int64_t m, int64_t n,
                          int64_t k, const T* x, const T* y, T* product) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STACK_KERNELS_H_
