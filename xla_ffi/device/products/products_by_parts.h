// GemmByParts: computes a matrix product from parts (parts.h), for a Blas that has Split and
// GemmOfParts.
#ifndef JAXMG_XLA_FFI_DEVICE_PRODUCTS_PRODUCTS_BY_PARTS_H_
#define JAXMG_XLA_FFI_DEVICE_PRODUCTS_PRODUCTS_BY_PARTS_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/device/blas.h"

namespace jaxmg {

// Returns whether GemmByParts supports the product. It doesn't support narrow ones, such as those
// with few right-hand sides.
template <typename T>
bool IsByParts(Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, int64_t least) {
  if (kIsComplex<T> && (op_a == Op::kTrans || op_b == Op::kTrans)) return false;
  return std::min(m, n) >= least && k > 0;
}

// As Blas::Gemm. `scratch(count, &parts)` returns memory for `count` parts, valid until its next
// call.
template <typename T, typename Scratch>
Status GemmByParts(Blas<T>& blas, Scratch scratch, Stream stream, Op op_a, Op op_b, int64_t m,
                   int64_t n, int64_t k, Real<T> alpha, const T* a, int64_t lda, const T* b,
                   int64_t ldb, Real<T> beta, T* c, int64_t ldc) {
  using R = Real<T>;
  constexpr int64_t kOfScale = sizeof(R) / sizeof(Part);
  const PartsShape shape = blas.parts();
  const bool turned_a = op_a != Op::kNone, turned_b = op_b == Op::kNone;
  const int64_t ld_a = AlignedParts(shape.rows * m), ld_b = AlignedParts(n);
  for (int64_t begin = 0; begin < k; begin += kPartsDepth) {
    const int64_t columns = std::min(kPartsDepth, k - begin), depth = shape.Depth(columns);
    Part* parts = nullptr;
    const int64_t scales = shape.scaled ? (m + n) * kOfScale : 0;
    JAXMG_RETURN_IF_ERROR(scratch((ld_a + ld_b) * depth + scales, &parts));
    Part* const parts_b = parts + ld_a * depth;
    R* const scales_a = shape.scaled ? reinterpret_cast<R*>(parts_b + ld_b * depth) : nullptr;
    R* const scales_b = shape.scaled ? scales_a + m : nullptr;
    const auto split = [&](Side side, bool turned, int64_t lines, const T* of, int64_t ld_of,
                           R* of_scales, Part* to, int64_t ld_to) -> Status {
      const int64_t rows = turned ? columns : lines, others = turned ? lines : columns;
      if (of_scales != nullptr) {
        JAXMG_RETURN_IF_ERROR(blas.PartScales(stream, turned, rows, others, of, ld_of, of_scales));
      }
      return blas.Split(stream, side, turned, rows, others, of, ld_of, to, ld_to, of_scales);
    };
    JAXMG_RETURN_IF_ERROR(split(Side::kLeft, turned_a, m, a + begin * (turned_a ? 1 : lda), lda,
                                scales_a, parts, ld_a));
    JAXMG_RETURN_IF_ERROR(split(Side::kRight, turned_b, n, b + begin * (turned_b ? 1 : ldb), ldb,
                                scales_b, parts_b, ld_b));
    JAXMG_RETURN_IF_ERROR(blas.GemmOfParts(stream, m, n, depth, alpha, parts, ld_a, parts_b, ld_b,
                                           begin == 0 ? beta : 1, c, ldc, {scales_a, scales_b}));
  }
  return Status::Ok();
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PRODUCTS_PRODUCTS_BY_PARTS_H_
