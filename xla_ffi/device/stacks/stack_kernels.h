// StackKernels: operations on stacks of matrices of equal shape, on one device alone.
//
// Unlike elsewhere, matrices are row-major, one after the other, as in XLA.
#ifndef JAXMG_XLA_FFI_DEVICE_STACKS_STACK_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_STACKS_STACK_KERNELS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/products/parts.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// `count` merges of divide and conquer: the eigenproblems of diag(d) + rho z z^T of even order k. A
// pole d_i is high_i + low_i; every z_i and rho are nonzero. Nothing is deflated: equal poles are
// allowed, and are separated by `gap`.
template <typename R>
struct StackedMerges {
  int64_t count, k;
  R gap;                    // between neighboring poles
  const R *high, *low, *z;  // count x k; the poles may be in any order
  const R* rho;             // one for each merge
};

// The results. A root is high_j + low_j; high_j is the rounded sum. Roots ascend up to rounding.
// The unit eigenvectors are rows, in two halves: first the elements of the first k / 2 poles, then
// the others, count x 2 x k x k / 2.
template <typename R>
struct MergedPairs {
  R *high, *low;  // count x k
  R* vectors;
};

// A triangle of each matrix of a stack: T, or T^H if `adjoint`. If `unit`, its diagonal is one and
// not read. The other triangle isn't read.
struct StackedTriangle {
  bool upper, adjoint, unit;
};

// Triples (a, b, c) of polynomials a x + b x^3 + c x^5, in host memory.
struct Polynomials {
  const double* coefficients;
  int64_t count;  // number of triples
};

template <typename T>
class StackKernels {
 public:
  virtual ~StackKernels() = default;

  // Computes the eigenvalues w (n), in no order, and the eigenvectors, the columns of v (n x n), of
  // `count` symmetric tridiagonal matrices of order n <= kMostQl with diagonal d (n) and
  // off-diagonal e (n - 1). Entries must be finite, and neither huge nor all tiny. The results are
  // NaN if the iteration fails.
  virtual Status SolveTridiagonal(Stream stream, int64_t count, int64_t n, const Real<T>* d,
                                  const Real<T>* e, Real<T>* w, Real<T>* v) = 0;

  // Reduces each of `count` symmetric matrices a, n x n with n > 1, to T = Q^H A Q with diagonal d
  // (n) and off-diagonal e (n - 1). Reads both triangles; entries must be near 1 or smaller. Q =
  // H_0 H_1 ..., H_j = 1 - tau_j v_j v_j^T. Row j of a becomes v_j, which is 0 up to element j and
  // 1 in the next.
  virtual Status ReduceToTridiagonal(Stream stream, int64_t count, int64_t n, Real<T>* a,
                                     Real<T>* d, Real<T>* e, Real<T>* tau) = 0;

  // Overwrites each of `count` matrices x, n x columns with n > 1, with Q x, Q = H_0 H_1 ...
  // H_(n-2) as in ReduceToTridiagonal. Row j of `reflectors`, n x n, is v_j^H, and tau has n
  // numbers; the last of each isn't read. The device allocates workspace of 128 (n + columns)
  // numbers for each matrix.
  virtual Status ApplyReflectors(Stream stream, int64_t count, int64_t n, int64_t columns,
                                 const T* reflectors, const T* tau, T* x) = 0;

  // Solves the merges. Source of the eigenvectors: M. Gu and S. Eisenstat, A divide-and-conquer
  // algorithm for the symmetric tridiagonal eigenproblem (1995). The device allocates workspace of
  // eight times the poles.
  virtual Status Merge(Stream stream, const StackedMerges<Real<T>>& merges,
                       const MergedPairs<Real<T>>& pairs) = 0;

  // Overwrites each of `count` matrices, n x n, with its LU factorization with partial pivoting:
  // row i was interchanged with row pivots[i] >= i, counted from 0, one after the other. `pivots`
  // has n numbers for each matrix. A singular matrix has a zero on U's diagonal.
  virtual Status FactorLu(Stream stream, int64_t count, int64_t n, T* a, int32_t* pivots) = 0;

  // The factorization of Bunch and Kaufman (LAPACK's sytrf) of each of `count` Hermitian matrices,
  // n x n, or of symmetric ones: A = L D L^H, or L D L^T. Reads one triangle. Overwrites each
  // matrix with L, and d (n x n) with D, whose blocks on the diagonal have one or two rows. `order`
  // (n) brings the rows of L into a triangle of the same side as the one that was read. All are NaN
  // if A isn't finite. Only host devices have it.
  virtual Status FactorIndefinite(Stream, bool /*lower*/, bool /*hermitian*/, int64_t /*count*/,
                                  int64_t /*n*/, T* /*a*/, T* /*d*/, int32_t* /*order*/) {
    return Status::Fixed(Code::kUnavailable, "this device has no LDL factorization of stacks");
  }
  // b := A^-1 b, n x nrhs, by the same factorization of each matrix. Overwrites the matrices. The
  // solution is NaN if A is singular or not finite. Only host devices have it.
  virtual Status SolveIndefinite(Stream, bool /*hermitian*/, int64_t /*count*/, int64_t /*n*/,
                                 int64_t /*nrhs*/, T* /*a*/, T* /*b*/) {
    return Status::Fixed(Code::kUnavailable, "this device has no LDL factorization of stacks");
  }

  // Computes the inverse of each of `count` matrices, n x n with n <= kMostSmall, by elimination
  // with partial pivoting. The inverse of a singular matrix is not finite. The inverse may
  // overwrite a.
  virtual Status InvertSmall(Stream stream, int64_t count, int64_t n, const T* a, T* inverse) = 0;

  // x := a^-1 b, n x nrhs, for such matrices and nrhs <= kMostSmallColumns. x may overwrite b.
  virtual Status SolveSmall(Stream stream, int64_t count, int64_t n, int64_t nrhs, const T* a,
                            const T* b, T* x) = 0;

  // Overwrites each of `count` matrices, m x n, with the R of its QR decomposition, with LAPACK's
  // signs and zeros below it. q, unless null, becomes the first k = min(m, n) columns of Q, m x k.
  // Entries must be near 1 or smaller, so that squares don't overflow. The device allocates
  // workspace of about a stack m x k.
  virtual Status FactorQr(Stream stream, int64_t count, int64_t m, int64_t n, T* a, T* q) = 0;

  // Computes the singular value decomposition of each of `count` matrices, m x n with k = min(m,
  // n), and overwrites the matrices: U, m x k, S, k in descending order, and V^H, k x n. U and V^H
  // may be null. The results are NaN for a matrix that isn't finite. Only host devices have it.
  virtual Status Decompose(Stream, int64_t /*count*/, int64_t /*m*/, int64_t /*n*/, T* /*a*/,
                           T* /*u*/, Real<T>* /*s*/, T* /*vh*/) {
    return Error(Code::kInternal, "this device has no singular value decomposition of stacks");
  }

  // Overwrites each of `count` matrices X, m x n, with (a + b X X^H + c (X X^H)^2) X for each
  // triple of `polynomials`, one after the other: odd polynomials of its singular values. The
  // device allocates workspace of a stack m x n and two of order min(m, n).
  virtual Status MapSingularValues(Stream stream, int64_t count, int64_t m, int64_t n,
                                   Polynomials polynomials, T* x) = 0;
  // As above, for numbers of 16 bits, whose products are added in float32. Only StackKernels<float>
  // has this operation.
  virtual Status MapSingularValues(Stream, PartFormat, int64_t, int64_t, int64_t, Polynomials,
                                   Part*) {
    return Error(Code::kInternal, "only the kernels of float32 take 16-bit numbers");
  }

  // Overwrites the lower triangle of each of `count` Hermitian matrices, n x n, with L of A = L
  // L^H, and the rest with 0; if `upper`, the upper triangle with U = L^H, and the rest with 0. The
  // triangle is NaN if A isn't positive definite. Reads only the triangle.
  virtual Status FactorCholesky(Stream stream, bool upper, int64_t count, int64_t n, T* a) = 0;
  // As FactorCholesky, for the Hermitian part of each matrix, whose elements may have any range.
  // The triangle is NaN for a matrix that differs from its adjoint by more than rounding, 10 n eps
  // times its largest element. Only host devices have it.
  virtual Status FactorHermitian(Stream, bool /*upper*/, int64_t /*count*/, int64_t /*n*/,
                                 T* /*a*/) {
    return Status::Fixed(Code::kUnavailable, "this device has no factorization of Hermitian parts");
  }

  // Overwrites each of `count` lower triangular matrices, n x n, or upper ones if `upper`, with its
  // inverse. The other triangle must be 0.
  virtual Status InvertTriangle(Stream stream, bool upper, int64_t count, int64_t n, T* a) = 0;

  // b := T^-1 b, n x nrhs, for each of `count` matrices a, n x n with n <= kMostStackSubstitution.
  // Suited to few right-hand sides: each reads a again.
  virtual Status SolveTriangle(Stream stream, StackedTriangle triangle, int64_t count, int64_t n,
                               int64_t nrhs, const T* a, T* b) = 0;

  // Computes the lower triangle of product := x x^H for each of `count` upper triangular matrices,
  // n x n, whose lower triangles must be 0. The rest of `product` is undefined.
  virtual Status MultiplyTriangle(Stream stream, int64_t count, int64_t n, const T* x,
                                  T* product) = 0;

  // product := op(x) op(y) for each of `count` matrices, m x n, of inner dimension k.
  virtual Status Multiply(Stream stream, Op op_x, Op op_y, int64_t count, int64_t m, int64_t n,
                          int64_t k, const T* x, const T* y, T* product) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STACKS_STACK_KERNELS_H_
