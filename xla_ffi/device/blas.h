// Blas: the BLAS and LAPACK operations on tiles from which algorithms are built.
#ifndef JAXMG_XLA_FFI_DEVICE_BLAS_H_
#define JAXMG_XLA_FFI_DEVICE_BLAS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/products/parts.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// The precision of matrix products. Lower precisions apply only to float32 and complex64. kTf32
// rounds the factors to TF32, with a fraction of 10 bits, if the hardware multiplies these faster.
// kBf16x3 and kBf16x6 split each number into a sum of bfloat16 numbers, with fractions of 7 bits,
// and add three or six of their products in float32 (parts.h). kF16x3 does the same with float16
// numbers, with fractions of 10 bits, for matrices whose rows have elements of a size near 1.
// kScaledF16x3 is for all matrices: each product scales the rows of its left factor and the columns
// of its right one. kChosen is the precision that the device's Tuning specifies for the order of
// the matrix. Callers can request all of these except kScaledF16x3, which replaces kF16x3 for
// general matrices.
enum class Precision { kHighest, kTf32, kBf16x3, kBf16x6, kF16x3, kChosen, kScaledF16x3 };
inline constexpr int kNumPrecisions = 7;

template <typename T>
constexpr PartsShape PartsOf(Precision precision) {
  switch (precision) {
    case Precision::kBf16x3:
      return PartsOf<T>(3, PartFormat::kBfloat16);
    case Precision::kBf16x6:
      return PartsOf<T>(6, PartFormat::kBfloat16);
    case Precision::kF16x3:
      return PartsOf<T>(3, PartFormat::kFloat16);
    case Precision::kScaledF16x3:
      return PartsOf<T>(3, PartFormat::kFloat16, true);
    default:
      return {};
  }
}

enum class Op { kNone, kTrans, kConjTrans };
enum class Side { kLeft, kRight };

// The triangle of a matrix that an operation reads, and whether its diagonal is implicitly one and
// not read. A Cholesky factor is lower. LU has both triangles; the lower one has a unit diagonal.
enum class Uplo { kLower, kUpper };
enum class Diag { kNonUnit, kUnit };
struct Triangle {
  Uplo uplo = Uplo::kLower;
  Diag diag = Diag::kNonUnit;
};

// Tile operations of one dtype. alpha and beta are real for all dtypes.
template <typename T>
class Blas {
 public:
  virtual ~Blas() = default;

  // C := alpha op(A) op(B) + beta C, C m x n, inner dimension k.
  virtual Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k,
                      Real<T> alpha, const T* a, int64_t lda, const T* b, int64_t ldb, Real<T> beta,
                      T* c, int64_t ldc) = 0;
  // `count` calls of Gemm, whose matrices are *_stride elements apart. The matrices C may not
  // overlap.
  virtual Status GemmBatched(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k,
                             Real<T> alpha, const T* a, int64_t lda, int64_t a_stride, const T* b,
                             int64_t ldb, int64_t b_stride, Real<T> beta, T* c, int64_t ldc,
                             int64_t c_stride, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      JAXMG_RETURN_IF_ERROR(Gemm(stream, op_a, op_b, m, n, k, alpha, a + i * a_stride, lda,
                                 b + i * b_stride, ldb, beta, c + i * c_stride, ldc));
    }
    return Status::Ok();
  }
  // The faster way to store B for a large product with B^H: as B (kConjTrans) or as B^H (kNone).
  virtual Op StoredFactor() const {
    return sizeof(Real<T>) == sizeof(double) ? Op::kNone : Op::kConjTrans;
  }
  // C := alpha A A^H + beta C on the lower triangle, C n x n, A n x k. Products of parts (below)
  // may write all of C.
  virtual Status Herk(Stream stream, int64_t n, int64_t k, Real<T> alpha, const T* a, int64_t lda,
                      Real<T> beta, T* c, int64_t ldc) = 0;
  // B := op(A)^-1 B (left) or B op(A)^-1 (right), B m x n, A triangular.
  Status Trsm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
              int64_t ldb, Triangle triangle = {}) {
    return DoTrsm(stream, side, op, triangle, m, n, a, lda, b, ldb);
  }
  // X := B op(L)^-1 by substitution, L lower, for kNone and kConjTrans. B is m x n and may not
  // overlap X. If Tuning::Cholesky::panel_block is positive, n is at most that, unless m is 1.
  virtual Status SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl,
                            const T* b, int64_t ldb, T* x, int64_t ldx) = 0;
  // B := op(A) B (left) or B op(A) (right), B m x n, A triangular.
  Status Trmm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
              int64_t ldb, Triangle triangle = {}) {
    return DoTrmm(stream, side, op, triangle, m, n, a, lda, b, ldb);
  }
  // Overwrites the lower triangle of the tile with its Cholesky factor L. On failure it fills the
  // tile with NaN and sets *info, in device memory, to min(*info, offset + k), where k is the order
  // of the first leading minor that is not positive definite or whose diagonal is not finite.
  virtual Status Potrf(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset,
                       int32_t* info) = 0;
  // Potrf of a tile that is a whole matrix. Adds the logarithm of its determinant to *sum, unless
  // `sum` is null. After a failure the tile's content is undefined.
  virtual Status PotrfOfWhole(Stream stream, int64_t n, T* a, int64_t lda, int32_t* info,
                              Real<T>* sum) {
    JAXMG_RETURN_IF_ERROR(Potrf(stream, n, a, lda, 0, info));
    return sum == nullptr ? Status::Ok() : AddLogDet(stream, n, a, lda, sum);
  }
  // Computes the inverse of a triangular tile A, with zeros in the other triangle and ones on the
  // diagonal if A is unit. The inverse may not overlap A. inverse * A is the identity up to
  // rounding, as with LAPACK; A * inverse need not be. If A is singular, the inverse has infinities
  // or NaN.
  Status Trtri(Stream stream, int64_t n, const T* a, int64_t lda, T* inverse, int64_t ld,
               Triangle triangle = {}) {
    return DoTrtri(stream, triangle, n, a, lda, inverse, ld);
  }
  // B := A^H, A m x n.
  virtual Status ConjTranspose(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                               int64_t ldb) = 0;
  // Makes an n x n block Hermitian from its lower triangle.
  virtual Status MirrorLower(Stream stream, int64_t n, T* a, int64_t lda) = 0;
  virtual Status Conjugate(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) = 0;
  // B += A, m x n.
  virtual Status Add(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                     int64_t ldb) = 0;
  virtual Status SetZero(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) = 0;
  virtual Status SetIdentity(Stream stream, int64_t n, T* a, int64_t lda) = 0;
  // Stores the inverse of a lower triangular tile, as computed by Trtri, above the tile's diagonal:
  // a_ij := conj(inverse_ji) for i < j. The inverse's diagonal is not stored, because it holds the
  // reciprocals of the tile's diagonal.
  virtual Status StoreInverse(Stream stream, int64_t n, const T* inverse, int64_t ld, T* a,
                              int64_t lda) = 0;
  // Loads a tile after StoreInverse: l := L and inverse := L^-1, both n x n with zeros above the
  // diagonal, or if `transposed` L^H and L^-H.
  virtual Status LoadInverse(Stream stream, int64_t n, bool transposed, const T* a, int64_t lda,
                             T* l, T* inverse) = 0;
  // *sum += 2 log of the product of the diagonal elements of a tile of the factor.
  virtual Status AddLogDet(Stream stream, int64_t n, const T* l, int64_t ldl, Real<T>* sum) = 0;

  // The operations on products of parts (parts.h). They split factors once for many products. Not
  // called if parts().depth is 0.
  virtual PartsShape parts() const { return {}; }
  // Computes the parts of A (m x n), or of A^H if `turned`, as a left or right factor, including
  // the zeros that fill the last group of columns. If `scales` is not null, row i of the factor is
  // divided by scales_i.
  Status Split(Stream stream, Side side, bool turned, int64_t m, int64_t n, const T* a, int64_t lda,
               Part* parts, int64_t ld, const Real<T>* scales = nullptr) {
    return DoSplit(stream, side, turned, m, n, a, lda, scales, parts, ld);
  }
  // C := alpha A B^H + beta C, m x n, from `depth` columns of the parts of A and of B, a whole
  // number of groups. If there are scales, the product's element ij is multiplied by left_i
  // right_j.
  Status GemmOfParts(Stream stream, int64_t m, int64_t n, int64_t depth, Real<T> alpha,
                     const Part* a, int64_t lda, const Part* b, int64_t ldb, Real<T> beta, T* c,
                     int64_t ldc, const ProductScales<Real<T>>& scales = {}) {
    return DoGemmOfParts(stream, m, n, depth, alpha, a, lda, b, ldb, scales, beta, c, ldc);
  }
  // Computes the scale of each row of A (m x n), or of A^H if `turned`: a power of two. Divided by
  // it, the largest element of the row, or of its real and imaginary parts, is at least kScaledPart
  // and less than twice that. The scale is 1 if all of the row is 0 or one of its elements isn't
  // finite.
  virtual Status PartScales(Stream, bool /*turned*/, int64_t /*m*/, int64_t /*n*/, const T* /*a*/,
                            int64_t /*lda*/, Real<T>* /*scales*/) {
    return Status::Fixed(Code::kInternal, "this device or dtype has no products of parts");
  }

  // Scaling for matrices that products of parts require (equilibrate.h); single precision only.
  // a_ij := a_ij left_i right_j, m x n, or a_ij / (left_i right_j) if `divide`. If `lower`, only
  // the lower trapezoid. Either factor may be null.
  virtual Status Scale(Stream, bool /*lower*/, bool /*divide*/, int64_t /*m*/, int64_t /*n*/,
                       const Real<T>* /*left*/, const Real<T>* /*right*/, T* /*a*/,
                       int64_t /*lda*/) {
    return Status::Fixed(Code::kInternal, "this dtype has no scaling");
  }
  // largest_i := max(largest_i, |Re a_ij|, |Im a_ij|) over the lower trapezoid of a, m x n. NaN
  // counts as larger than any number.
  virtual Status RowLargest(Stream, int64_t /*m*/, int64_t /*n*/, const T* /*a*/, int64_t /*lda*/,
                            Real<T>* /*largest*/) {
    return Status::Fixed(Code::kInternal, "this dtype has no scaling");
  }
  // Replaces each x by the power of two 2^e with x = 2^e f, 1 <= f < 2, or, if `root`, by that
  // power for the square root of x. The result is 1 unless x is a positive normal number.
  virtual Status PowersOfTwo(Stream, bool /*root*/, int64_t /*n*/, Real<T>* /*x*/) {
    return Status::Fixed(Code::kInternal, "this dtype has no scaling");
  }

  // Allocates Potrf's workspace for tiles of at most this order until the end of the call, so that
  // an allocation fails before the ranks start to work.
  virtual Status ReservePotrf(Stream, int64_t, T*, int64_t) { return Status::Ok(); }

 protected:
  // The virtual functions that devices implement. They are separate from the public ones because
  // virtual functions should not have default arguments.
  virtual Status DoTrsm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                        const T* a, int64_t lda, T* b, int64_t ldb) = 0;
  virtual Status DoTrmm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                        const T* a, int64_t lda, T* b, int64_t ldb) = 0;
  virtual Status DoTrtri(Stream stream, Triangle triangle, int64_t n, const T* a, int64_t lda,
                         T* inverse, int64_t ld) = 0;
  virtual Status DoSplit(Stream, Side, bool /*turned*/, int64_t /*m*/, int64_t /*n*/,
                         const T* /*a*/, int64_t /*lda*/, const Real<T>* /*scales*/,
                         Part* /*parts*/, int64_t /*ld*/) {
    return Status::Fixed(Code::kInternal, "this device or dtype has no products of parts");
  }
  virtual Status DoGemmOfParts(Stream, int64_t /*m*/, int64_t /*n*/, int64_t /*depth*/,
                               Real<T> /*alpha*/, const Part* /*a*/, int64_t /*lda*/,
                               const Part* /*b*/, int64_t /*ldb*/,
                               const ProductScales<Real<T>>& /*scales*/, Real<T> /*beta*/, T* /*c*/,
                               int64_t /*ldc*/) {
    return Status::Fixed(Code::kInternal, "this device or dtype has no products of parts");
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_BLAS_H_
