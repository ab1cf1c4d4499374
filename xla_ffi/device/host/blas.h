// Blas on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_BLAS_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_BLAS_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/host/lapack_checks.h"
#include "xla_ffi/device/products/products_by_parts.h"

namespace jaxmg {

template <typename T>
void FillWithNaN(int64_t m, int64_t n, T* a, int64_t lda) {
  const T nan = std::numeric_limits<Real<T>>::quiet_NaN();
  for (int64_t j = 0; j < n; ++j) std::fill_n(a + j * lda, m, nan);
}

inline constexpr int kParts = 3;

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FromBits(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

inline float NumberOf(Part part) { return FromBits(uint32_t{part} << 16); }

// Rounds x to the nearest bfloat16 number, ties to even, and towards zero if the result would be
// infinite.
inline Part Nearest(float x) {
  const uint32_t bits = BitsOf(x);
  if (std::isnan(x)) return 0x7fff;
  const Part rounded = static_cast<Part>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return (rounded & 0x7fff) == 0x7f80 ? static_cast<Part>(bits >> 16) : rounded;
}

inline float NumberOfHalf(Part part) {
  const uint32_t sign = uint32_t{part} >> 15 << 31, bits = part & 0x7fff;
  if (bits > 0x7c00) return std::numeric_limits<float>::quiet_NaN();
  const float size = bits < 0x400 ? std::ldexp(static_cast<float>(bits), -24)
                                  : FromBits((bits << 13) + 0x38000000);
  return FromBits(BitsOf(size) | sign);
}

// As Nearest, for float16, with the largest number instead of infinity, and NaN if x is infinite.
inline Part NearestHalf(float x) {
  const uint32_t sign = BitsOf(x) >> 16 & 0x8000, bits = BitsOf(x) & 0x7fffffff;
  if (bits >= 0x7f800000) return 0x7fff;
  // Below its smallest normal number, float16 has the spacing of float32 numbers from 1/2 on.
  const uint32_t rounded = bits < 0x38800000 ? BitsOf(FromBits(bits) + 0.5f) - 0x3f000000
                                             : (bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13;
  return static_cast<Part>(sign | std::min<uint32_t>(rounded, 0x7bff));
}

// Computes the parts of kHalfScale x (parts.h).
inline void SplitInHalves(float x, Part parts[kParts]) {
  x *= kHalfScale;
  parts[0] = NearestHalf(x);
  const float first = NumberOfHalf(parts[0]);
  parts[1] = NearestHalf((x - first) * kHalfShift);
  parts[2] = NearestHalf(first / kHalfShift);
}

// Splits x = x0 + x1 + x2, within bfloat16's range of exponents.
inline void SplitNumber(float x, Part parts[kParts]) {
  for (int p = 0; p < kParts; ++p) {
    parts[p] = Nearest(x);
    x -= NumberOf(parts[p]);
  }
}

template <typename T>
class HostBlas : public Blas<T> {
  using R = Real<T>;

 public:
  // kTf32 is kHighest on the host. Products of parts are computed part by part. This is slower, but
  // has the results of devices with tensor cores.
  explicit HostBlas(Precision precision = Precision::kHighest) : parts_(PartsOf<T>(precision)) {}

  Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override {
    if (m == 0 || n == 0) return Status::Ok();
    if (parts_.depth > 0 && IsByParts<T>(op_a, op_b, m, n, k, 2)) {
      return GemmByParts(*this, InScratch(), stream, op_a, op_b, m, n, k, alpha, a, lda, b, ldb,
                         beta, c, ldc);
    }
    T t_alpha = alpha, t_beta = beta;
    // A row times a matrix: xGEMV reads the matrix at memory bandwidth.
    if (m == 1 && op_a == Op::kNone && (op_b == Op::kNone || !kIsComplex<T>)) {
      char trans = op_b == Op::kNone ? 'T' : 'N';
      LapackInts ints(op_b == Op::kNone ? k : n, op_b == Op::kNone ? n : k, ldb, lda, ldc);
      JAXMG_CHECK_LAPACK(gemv, ints);
      HostLapack<T>().gemv(&trans, ints[0], ints[1], &t_alpha, const_cast<T*>(b), ints[2],
                           const_cast<T*>(a), ints[3], &t_beta, c, ints[4]);
      return Status::Ok();
    }
    char trans_a = Letter(op_a), trans_b = Letter(op_b);
    LapackInts ints(m, n, k, lda, ldb, ldc);
    JAXMG_CHECK_LAPACK(gemm, ints);
    HostLapack<T>().gemm(&trans_a, &trans_b, ints[0], ints[1], ints[2], &t_alpha, const_cast<T*>(a),
                         ints[3], const_cast<T*>(b), ints[4], &t_beta, c, ints[5]);
    return Status::Ok();
  }

  Status Herk(Stream stream, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override {
    if (n == 0) return Status::Ok();
    if (parts_.depth > 0 && k > 0) {
      return GemmByParts(*this, InScratch(), stream, Op::kNone, Op::kConjTrans, n, n, k, alpha, a,
                         lda, a, lda, beta, c, ldc);
    }
    char uplo = 'L', trans = 'N';
    LapackInts ints(n, k, lda, ldc);
    JAXMG_CHECK_LAPACK(herk, ints);
    HostLapack<T>().herk(&uplo, &trans, ints[0], ints[1], &alpha, const_cast<T*>(a), ints[2], &beta,
                         c, ints[3]);
    return Status::Ok();
  }

  PartsShape parts() const override { return parts_; }

  Status PartScales(Stream, bool turned, int64_t m, int64_t n, const T* a, int64_t lda,
                    R* scales) override {
    for (int64_t i = 0; i < (turned ? n : m); ++i) {
      R largest = 0;
      bool finite = true;
      for (int64_t j = 0; j < (turned ? m : n); ++j) {
        const T value = turned ? a[i * lda + j] : a[j * lda + i];
        for (R part : {std::real(value), std::imag(value)}) {
          largest = std::max(largest, std::abs(part));
          finite = finite && std::isfinite(part);
        }
      }
      constexpr int kLeast = std::numeric_limits<R>::min_exponent - 1;
      scales[i] = !finite || largest == 0
                      ? 1
                      : std::ldexp(R(1), std::max(std::ilogb(largest) - kScaledExponent, kLeast));
    }
    return Status::Ok();
  }

  Status DoSplit(Stream stream, Side side, bool turned, int64_t m, int64_t n, const T* a,
                 int64_t lda, const R* scales, Part* parts, int64_t ld) override {
    if (parts_.depth == 0) {
      return Blas<T>::DoSplit(stream, side, turned, m, n, a, lda, scales, parts, ld);
    }
    const bool left = side == Side::kLeft, halves = parts_.format == PartFormat::kFloat16;
    const int* const of_block =
        halves ? (left ? kLeftHalf : kRightHalf)
               : (left ? kLeftPart : kRightPart) + (kMostProducts - parts_.products);
    const int64_t components = kIsComplex<T> ? 2 : 1, group = parts_.group();
    const int64_t rows = turned ? n : m, columns = turned ? m : n;
    for (int64_t column = 0; column < parts_.Depth(columns) / parts_.depth; ++column) {
      for (int64_t row = 0; row < rows; ++row) {
        const T value = column >= columns ? T(0)
                        : turned          ? a[row * lda + column]
                                          : a[column * lda + row];
        Part split[2][kParts];
        for (int64_t c = 0; c < components; ++c) {
          const float number = reinterpret_cast<const float*>(&value)[c] /
                               (scales == nullptr ? 1 : static_cast<float>(scales[row]));
          halves ? SplitInHalves(number, split[c]) : SplitNumber(number, split[c]);
        }
        // Row p and column q of the element's parts in each product.
        for (int64_t product = 0; product < parts_.products; ++product) {
          const int part = of_block[product];
          for (int64_t p = 0; p < (left ? components : 1); ++p) {
            for (int64_t q = 0; q < components; ++q) {
              // [[Re, Im], [Im, -Re]]; Im has the opposite sign in A^H.
              const bool negative = (p == 1 && q == 1) || (turned && p != q);
              const int64_t first = (column / group * parts_.products + product) * kPartsGroup;
              const int64_t d = first + column % group * components + q;
              parts[d * ld + row * (left ? components : 1) + p] =
                  split[p ^ q][part] ^ (negative ? 0x8000 : 0);
            }
          }
        }
      }
    }
    return Status::Ok();
  }

  Status DoGemmOfParts(Stream, int64_t m, int64_t n, int64_t depth, R alpha, const Part* a,
                       int64_t lda, const Part* b, int64_t ldb, const ProductScales<R>& scales,
                       R beta, T* c, int64_t ldc) override {
    if constexpr (!std::is_same_v<R, float>) {
      return Status::Fixed(Code::kInternal, "this device or dtype has no products of parts");
    } else {
      if (m == 0 || n == 0) return Status::Ok();
      const int64_t rows = m * parts_.rows;
      const std::vector<float> left = AsNumbers(a, lda, rows, depth);
      const std::vector<float> right = AsNumbers(b, ldb, n, depth);
      const bool scaled = scales.left != nullptr;
      std::vector<float> product(scaled ? rows * n : 0);
      float* const target = scaled ? product.data() : reinterpret_cast<float*>(c);
      char none = 'N', transposed = 'T';
      LapackInts ints(rows, n, depth, rows, n, scaled ? rows : ldc * parts_.rows);
      JAXMG_CHECK_LAPACK(gemm, ints);
      float t_alpha = alpha / parts_.scale(), t_beta = scaled ? 0 : beta;
      HostLapack<float>().gemm(&none, &transposed, ints[0], ints[1], ints[2], &t_alpha,
                               const_cast<float*>(left.data()), ints[3],
                               const_cast<float*>(right.data()), ints[4], &t_beta, target, ints[5]);
      if (scaled) AddScaled(m, n, product, scales, beta, reinterpret_cast<float*>(c), ldc);
      return Status::Ok();
    }
  }

  Status Scale(Stream, bool lower, bool divide, int64_t m, int64_t n, const R* left, const R* right,
               T* a, int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) {
      const R column = right == nullptr ? 1 : divide ? 1 / right[j] : right[j];
      for (int64_t i = lower ? j : 0; i < m; ++i) {
        const R row = left == nullptr ? 1 : divide ? 1 / left[i] : left[i];
        a[j * lda + i] = a[j * lda + i] * row * column;
      }
    }
    return Status::Ok();
  }

  Status RowLargest(Stream, int64_t m, int64_t n, const T* a, int64_t lda, R* largest) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < m; ++i) {
        for (R part : {std::real(a[j * lda + i]), std::imag(a[j * lda + i])}) {
          if (!(std::abs(part) <= largest[i]) && !std::isnan(largest[i])) {
            largest[i] = std::abs(part);
          }
        }
      }
    }
    return Status::Ok();
  }

  Status PowersOfTwo(Stream, bool root, int64_t n, R* x) override {
    for (int64_t i = 0; i < n; ++i) {
      const bool some = x[i] >= std::numeric_limits<R>::min() && std::isfinite(x[i]);
      const int exponent = some ? std::ilogb(x[i]) : 0;
      x[i] = std::ldexp(R(1), root ? (exponent - (exponent & 1)) / 2 : exponent);
    }
    return Status::Ok();
  }

  Status SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, const T* b,
                    int64_t ldb, T* x, int64_t ldx) override {
    for (int64_t j = 0; j < n; ++j) std::copy_n(b + j * ldb, m, x + j * ldx);
    return this->Trsm(stream, Side::kRight, op, m, n, l, ldl, x, ldx);
  }

  Status Potrf(Stream, int64_t n, T* a, int64_t lda, int64_t offset, int32_t* info) override {
    if (n == 0) return Status::Ok();
    char uplo = 'L';
    LapackInts ints(n, lda);
    JAXMG_CHECK_LAPACK(potrf, ints);
    int failed = 0;
    HostLapack<T>().potrf(&uplo, ints[0], a, ints[1], &failed);
    // Some LAPACK versions don't stop at a NaN or infinite diagonal.
    const int64_t factored = failed > 0 ? failed - 1 : n;
    for (int64_t j = 0; j < factored; ++j) {
      if (!std::isfinite(std::real(a[j * lda + j]))) {
        failed = static_cast<int>(j + 1);
        break;
      }
    }
    if (failed != 0) {
      *info = std::min(*info, static_cast<int32_t>(offset + failed));
      FillWithNaN(n, n, a, lda);
    }
    return Status::Ok();
  }

  Status ConjTranspose(Stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                       int64_t ldb) override {
    // Square blocks that fit into the L1 cache together with their transposes.
    constexpr int64_t kBlock = 32;
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      const int64_t j1 = std::min(j0 + kBlock, n);
      for (int64_t i0 = 0; i0 < m; i0 += kBlock) {
        const int64_t i1 = std::min(i0 + kBlock, m);
        for (int64_t j = j0; j < j1; ++j) {
          for (int64_t i = i0; i < i1; ++i) b[i * ldb + j] = Conj(a[j * lda + i]);
        }
      }
    }
    return Status::Ok();
  }

  Status MirrorLower(Stream stream, int64_t n, T* a, int64_t lda) override {
    constexpr int64_t kBlock = 32;
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      const int64_t j1 = std::min(j0 + kBlock, n);
      for (int64_t j = j0; j < j1; ++j) {
        a[j * lda + j] = std::real(a[j * lda + j]);
        for (int64_t i = j + 1; i < j1; ++i) a[i * lda + j] = Conj(a[j * lda + i]);
      }
      JAXMG_RETURN_IF_ERROR(
          ConjTranspose(stream, n - j1, j1 - j0, a + j0 * lda + j1, lda, a + j1 * lda + j0, lda));
    }
    return Status::Ok();
  }

  Status Conjugate(Stream, int64_t m, int64_t n, T* a, int64_t lda) override {
    if constexpr (kIsComplex<T>) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) a[j * lda + i] = std::conj(a[j * lda + i]);
      }
    }
    return Status::Ok();
  }

  Status Add(Stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b, int64_t ldb) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) b[j * ldb + i] += a[j * lda + i];
    }
    return Status::Ok();
  }

  Status SetZero(Stream, int64_t m, int64_t n, T* a, int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) std::fill_n(a + j * lda, m, T(0));
    return Status::Ok();
  }

  Status SetIdentity(Stream stream, int64_t n, T* a, int64_t lda) override {
    JAXMG_RETURN_IF_ERROR(SetZero(stream, n, n, a, lda));
    for (int64_t j = 0; j < n; ++j) a[j * (lda + 1)] = 1;
    return Status::Ok();
  }

  Status StoreInverse(Stream, int64_t n, const T* inverse, int64_t ld, T* a, int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < j; ++i) a[j * lda + i] = Conj(inverse[i * ld + j]);
    }
    return Status::Ok();
  }

  Status LoadInverse(Stream, int64_t n, bool transposed, const T* a, int64_t lda, T* l,
                     T* inverse) override {
    std::fill_n(l, n * n, T(0));
    std::fill_n(inverse, n * n, T(0));
    for (int64_t j = 0; j < n; ++j) {
      l[j * n + j] = transposed ? Conj(a[j * lda + j]) : a[j * lda + j];
      inverse[j * n + j] = T(1) / l[j * n + j];
      for (int64_t i = j + 1; i < n; ++i) {
        const T lower = a[j * lda + i], upper = a[i * lda + j];
        (transposed ? l[i * n + j] : l[j * n + i]) = transposed ? Conj(lower) : lower;
        (transposed ? inverse[i * n + j] : inverse[j * n + i]) = transposed ? upper : Conj(upper);
      }
    }
    return Status::Ok();
  }

  Status AddLogDet(Stream, int64_t n, const T* l, int64_t ldl, R* sum) override {
    double log_det = 0;  // also for float32, in which the sum would lose digits
    for (int64_t j = 0; j < n; ++j) log_det += std::log(double{std::real(l[j * ldl + j])});
    *sum += static_cast<R>(2 * log_det);
    return Status::Ok();
  }

 protected:
  Status DoTrsm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                const T* a, int64_t lda, T* b, int64_t ldb) override {
    JAXMG_CHECK_LAPACK(trsm, LapackInts());
    // Solves a panel. BLAS's TRSM runs at half the speed of its GEMM, so this uses GEMM as much as
    // possible: X1 = B1 L11^-H, B2 -= X1 L21^H, X2 = B2 L22^-H.
    constexpr int64_t kNarrow = 32;
    if (side == Side::kRight && op == Op::kConjTrans && triangle.uplo == Uplo::kLower &&
        n > kNarrow && m > n) {
      const int64_t half = n / 2, rest = n - half;
      T* right = b + half * ldb;
      JAXMG_RETURN_IF_ERROR(DoTrsm(stream, side, op, triangle, m, half, a, lda, b, ldb));
      JAXMG_RETURN_IF_ERROR(Gemm(stream, Op::kNone, Op::kConjTrans, m, rest, half, -1, b, ldb,
                                 a + half, lda, 1, right, ldb));
      return DoTrsm(stream, side, op, triangle, m, rest, a + half * lda + half, lda, right, ldb);
    }
    return Triangular(HostLapack<T>().trsm, "trsm", side, op, triangle, m, n, a, lda, b, ldb);
  }

  Status DoTrmm(Stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n, const T* a,
                int64_t lda, T* b, int64_t ldb) override {
    JAXMG_CHECK_LAPACK(trmm, LapackInts());
    return Triangular(HostLapack<T>().trmm, "trmm", side, op, triangle, m, n, a, lda, b, ldb);
  }

  Status DoTrtri(Stream stream, Triangle triangle, int64_t n, const T* a, int64_t lda, T* inverse,
                 int64_t ld) override {
    if (n == 0) return Status::Ok();
    char uplo = Letter(triangle.uplo), diag = Letter(triangle.diag);
    LapackInts ints(n, ld);
    JAXMG_CHECK_LAPACK(trtri, ints);
    for (int64_t j = 0; j < n; ++j) {
      const bool lower = triangle.uplo == Uplo::kLower;
      const int64_t begin = lower ? j : 0, end = lower ? n : j + 1;
      T* column = inverse + j * ld;
      std::fill_n(column, n, T(0));
      std::copy(a + j * lda + begin, a + j * lda + end, column + begin);
      if (triangle.diag == Diag::kUnit) column[j] = 1;
    }
    int info = 0;
    HostLapack<T>().trtri(&uplo, &diag, ints[0], inverse, ints[1], &info);
    if (info == 0) return Status::Ok();
    // LAPACK leaves a singular triangle unchanged. Substitution divides by its zeros.
    JAXMG_RETURN_IF_ERROR(SetIdentity(stream, n, inverse, ld));
    return this->Trsm(stream, Side::kRight, Op::kNone, n, n, a, lda, inverse, ld, triangle);
  }

 private:
  // Returns a function that provides memory for the parts of one product.
  static auto InScratch() {
    return [space = std::make_shared<std::vector<Part>>()](int64_t count, Part** parts) {
      space->resize(count);
      *parts = space->data();
      return Status::Ok();
    };
  }

  // C := beta C + product, where the product (m x n, in rows of parts) is multiplied by the scales
  // of its rows and columns.
  void AddScaled(int64_t m, int64_t n, const std::vector<float>& product,
                 const ProductScales<R>& scales, R beta, float* c, int64_t ldc) const {
    const int64_t rows = m * parts_.rows;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        const auto left = static_cast<float>(scales.left[i / parts_.rows]);
        const auto right = static_cast<float>(scales.right[j]);
        // Multiplies by the smaller scale first: the result is then finite if the final one is.
        const float scaled = product[j * rows + i] * std::min(left, right) * std::max(left, right);
        float& entry = c[j * ldc * parts_.rows + i];
        entry = beta == 0 ? scaled : std::fma(static_cast<float>(beta), entry, scaled);
      }
    }
  }

  // Returns the parts of a matrix as numbers, column by column without gaps.
  std::vector<float> AsNumbers(const Part* parts, int64_t ld, int64_t m, int64_t n) const {
    const bool halves = parts_.format == PartFormat::kFloat16;
    std::vector<float> numbers(m * n);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        const Part part = parts[j * ld + i];
        numbers[j * m + i] = halves ? NumberOfHalf(part) : NumberOf(part);
      }
    }
    return numbers;
  }

  static char Letter(Op op) {
    switch (op) {
      case Op::kNone:
        return 'N';
      case Op::kTrans:
        return 'T';
      case Op::kConjTrans:
        return 'C';
    }
    return 'N';
  }

  static char Letter(Side side) { return side == Side::kLeft ? 'L' : 'R'; }
  static char Letter(Uplo uplo) { return uplo == Uplo::kLower ? 'L' : 'U'; }
  static char Letter(Diag diag) { return diag == Diag::kNonUnit ? 'N' : 'U'; }

  template <typename Routine>
  static Status Triangular(Routine routine, const char* name, Side side, Op op, Triangle triangle,
                           int64_t m, int64_t n, const T* a, int64_t lda, T* b, int64_t ldb) {
    if (m == 0 || n == 0) return Status::Ok();
    char c_side = Letter(side), uplo = Letter(triangle.uplo), trans = Letter(op);
    char diag = Letter(triangle.diag);
    T one = 1;
    LapackInts ints(m, n, lda, ldb);
    JAXMG_RETURN_IF_ERROR(ints.Check(name));
    routine(&c_side, &uplo, &trans, &diag, ints[0], ints[1], &one, const_cast<T*>(a), ints[2], b,
            ints[3]);
    return Status::Ok();
  }

  const PartsShape parts_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_BLAS_H_
