// What BLAS and LAPACK do with tiles: the operations that algorithms are written in.
#ifndef JAXMG_XLA_FFI_DEVICE_BLAS_H_
#define JAXMG_XLA_FFI_DEVICE_BLAS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/parts.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// How products of matrices are computed; in lower precision those of float32 and complex64 alone.
// kTf32 rounds the factors to TF32, with 10 bits behind the binary point, where the hardware
// multiplies those faster. The others take them for sums of bfloat16 numbers, with 7 bits each, and
// add up three products of those, or six, in float32: see parts.h. kF16x3 does so with float16
// numbers, with 10 bits each, for matrices whose rows are of about the size 1. kChosen is what the
// device's Tuning has for a matrix of that order.
enum class Precision { kHighest, kTf32, kBf16x3, kBf16x6, kF16x3, kChosen };
inline constexpr int kNumPrecisions = 5;  // kChosen is none

template <typename T>
constexpr PartsShape PartsOf(Precision precision) {
  switch (precision) {
    case Precision::kBf16x3:
      return PartsOf<T>(3, PartFormat::kBfloat16);
    case Precision::kBf16x6:
      return PartsOf<T>(6, PartFormat::kBfloat16);
    case Precision::kF16x3:
      return PartsOf<T>(3, PartFormat::kFloat16);
    default:
      return {};
  }
}

enum class Op { kNone, kTrans, kConjTrans };
enum class Side { kLeft, kRight };

// Which triangle of a matrix is meant, the other one not being read, and whether its diagonal is
// taken for ones and not read either. A Cholesky factor is lower; LU has both, the lower one unit.
enum class Uplo { kLower, kUpper };
enum class Diag { kNonUnit, kUnit };
struct Triangle {
  Uplo uplo = Uplo::kLower;
  Diag diag = Diag::kNonUnit;
};

// Tile operations of one dtype. Every argument that BLAS calls alpha or beta is real here.
template <typename T>
class Blas {
 public:
  virtual ~Blas() = default;

  // C := alpha op(A) op(B) + beta C, C m x n, inner dimension k.
  virtual Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k,
                      Real<T> alpha, const T* a, int64_t lda, const T* b, int64_t ldb, Real<T> beta,
                      T* c, int64_t ldc) = 0;
  // For a large product with B^H, what B is best stored as: itself (kConjTrans) or B^H (kNone).
  virtual Op StoredFactor() const {
    return sizeof(Real<T>) == sizeof(double) ? Op::kNone : Op::kConjTrans;
  }
  // C := alpha A A^H + beta C on the lower triangle, C n x n, A n x k. Made of parts (below) it may
  // write all of C.
  virtual Status Herk(Stream stream, int64_t n, int64_t k, Real<T> alpha, const T* a, int64_t lda,
                      Real<T> beta, T* c, int64_t ldc) = 0;
  // B := op(A)^-1 B (left) or B op(A)^-1 (right), B m x n, A triangular.
  Status Trsm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
              int64_t ldb, Triangle triangle = {}) {
    return DoTrsm(stream, side, op, triangle, m, n, a, lda, b, ldb);
  }
  // X := B op(L)^-1 by substitution, L lower, for kNone and kConjTrans. B is m x n and may not
  // overlap X; n is at most Tuning::panel_block, where there is such a block, unless m is 1.
  virtual Status SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl,
                            const T* b, int64_t ldb, T* x, int64_t ldx) = 0;
  // B := op(A) B (left) or B op(A) (right), B m x n, A triangular.
  Status Trmm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
              int64_t ldb, Triangle triangle = {}) {
    return DoTrmm(stream, side, op, triangle, m, n, a, lda, b, ldb);
  }
  // Cholesky factor L of the tile in its lower triangle. On failure *info, in device memory,
  // becomes the smaller of itself and offset + k, k the order of the first leading minor that is
  // not positive definite (a diagonal that is not finite counts), and the tile becomes NaN.
  virtual Status Potrf(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset,
                       int32_t* info) = 0;
  // The inverse of a triangular tile A, which it may not overlap: whole, with zeros in the other
  // triangle, and ones on the diagonal where A's is unit. What is the identity to rounding is
  // inverse * A, as with LAPACK, and not A * inverse.
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
  // The inverse of a lower triangular tile, as Trtri makes it, to a place above the tile's own
  // diagonal: a_ij := conj(inverse_ji) for i < j. Its diagonal is that of the tile inverted.
  virtual Status StoreInverse(Stream stream, int64_t n, const T* inverse, int64_t ld, T* a,
                              int64_t lda) = 0;
  // From there: l := the tile L, inverse := its inverse, both n x n with zeros above the diagonal;
  // or L^H and that of L^H.
  virtual Status LoadInverse(Stream stream, int64_t n, bool transposed, const T* a, int64_t lda,
                             T* l, T* inverse) = 0;
  // *sum += 2 log of the product of the diagonal of a tile of the factor.
  virtual Status AddLogDet(Stream stream, int64_t n, const T* l, int64_t ldl, Real<T>* sum) = 0;

  // Factors of products that are made of parts (parts.h), split once for many of them; where
  // products aren't, neither is called.
  virtual PartsShape parts() const { return {}; }
  // The parts of the left or the right factor that A (m x n) is, or with `turned` A^H, with the
  // zeros that fill the last group of columns.
  virtual Status Split(Stream, Side, bool /*turned*/, int64_t /*m*/, int64_t /*n*/, const T* /*a*/,
                       int64_t /*lda*/, Part* /*parts*/, int64_t /*ld*/) {
    return Status::Fixed(Code::kInternal, "products here aren't made of parts");
  }
  // C := alpha A B^H + beta C, m x n, of `depth` columns of the parts of A and of B, whole groups.
  virtual Status GemmOfParts(Stream, int64_t /*m*/, int64_t /*n*/, int64_t /*depth*/,
                             Real<T> /*alpha*/, const Part* /*a*/, int64_t /*lda*/,
                             const Part* /*b*/, int64_t /*ldb*/, Real<T> /*beta*/, T* /*c*/,
                             int64_t /*ldc*/) {
    return Status::Fixed(Code::kInternal, "products here aren't made of parts");
  }

  // For what these ask of a matrix (equilibrate.h), and in single precision alone. a_ij := a_ij
  // left_i right_j, m x n, or with `divide` a_ij / (left_i right_j), on the lower trapezoid alone
  // if `lower`; either factor may be null.
  virtual Status Scale(Stream, bool /*lower*/, bool /*divide*/, int64_t /*m*/, int64_t /*n*/,
                       const Real<T>* /*left*/, const Real<T>* /*right*/, T* /*a*/,
                       int64_t /*lda*/) {
    return Status::Fixed(Code::kInternal, "this dtype isn't scaled");
  }
  // largest_i becomes the largest of itself and the |Re a_ij| and |Im a_ij| of the lower trapezoid
  // of a, m x n; NaN counts as more than everything.
  virtual Status RowLargest(Stream, int64_t /*m*/, int64_t /*n*/, const T* /*a*/, int64_t /*lda*/,
                            Real<T>* /*largest*/) {
    return Status::Fixed(Code::kInternal, "this dtype isn't scaled");
  }
  // Each of x becomes the power of two 2^e with x = 2^e f, 1 <= f < 2, or with `root` that of its
  // square root; 1 where x is no positive normal number.
  virtual Status PowersOfTwo(Stream, bool /*root*/, int64_t /*n*/, Real<T>* /*x*/) {
    return Status::Fixed(Code::kInternal, "this dtype isn't scaled");
  }

  // Takes memory that Potrf, on tiles of at most this order, needs beside its operands until the
  // call is over, so that a lack of it shows before the ranks have begun.
  virtual Status ReservePotrf(Stream, int64_t, T*, int64_t) { return Status::Ok(); }

 protected:
  // A default argument and a virtual function don't go together: these are what devices implement.
  virtual Status DoTrsm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                        const T* a, int64_t lda, T* b, int64_t ldb) = 0;
  virtual Status DoTrmm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                        const T* a, int64_t lda, T* b, int64_t ldb) = 0;
  virtual Status DoTrtri(Stream stream, Triangle triangle, int64_t n, const T* a, int64_t lda,
                         T* inverse, int64_t ld) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_BLAS_H_
