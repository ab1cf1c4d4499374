// TriangularSystem: the equation of Blas::Trsm, in one form for all sides, operations and
// triangles.
#ifndef JAXMG_XLA_FFI_DEVICE_TRIANGULAR_SYSTEM_H_
#define JAXMG_XLA_FFI_DEVICE_TRIANGULAR_SYSTEM_H_

#include <cstdint>

#include "xla_ffi/device/blas.h"

namespace jaxmg {

// M X = B with M lower triangular. M(i, k) is a[a.begin + i * a.row + k * a.column], or its
// conjugate, and B(i, r) is b[b.begin + i * b.row + r * b.column]. X op(A) = B becomes op(A)^T X^T
// = B^T, and an upper triangle becomes a lower one in reverse order, so strides may be negative.
struct TriangularSystem {
  struct Strides {
    int64_t begin, row, column;
  };
  int64_t order, nrhs;
  bool conjugated, unit;
  Strides a, b;

  TriangularSystem(Side side, Op op, const Triangle& triangle, int64_t m, int64_t n, int64_t lda,
                   int64_t ldb)
      : order(side == Side::kLeft ? m : n),
        nrhs(side == Side::kLeft ? n : m),
        conjugated(op == Op::kConjTrans),
        unit(triangle.diag == Diag::kUnit) {
    const bool left = side == Side::kLeft, as_stored = left == (op == Op::kNone);
    a = as_stored ? Strides{0, 1, lda} : Strides{0, lda, 1};
    b = left ? Strides{0, 1, ldb} : Strides{0, ldb, 1};
    if ((triangle.uplo == Uplo::kLower) == as_stored) return;
    a = {(order - 1) * (lda + 1), -a.row, -a.column};
    b = {(order - 1) * b.row, -b.row, b.column};
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_TRIANGULAR_SYSTEM_H_
