// The algorithm of StackKernels::MapSingularValues, for host and GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_STACKS_STACK_POLYNOMIALS_H_
#define JAXMG_XLA_FFI_DEVICE_STACKS_STACK_POLYNOMIALS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/stacks/stack_kernels.h"

namespace jaxmg {

// Returns the workspace in elements.
inline int64_t PolynomialsSpace(int64_t count, int64_t m, int64_t n) {
  const int64_t k = std::min(m, n);
  return count * (m * n + 2 * k * k);
}

// `multiply(op_a, op_b, m, n, k, alpha, a, b, beta, c)` is C := alpha op(A) op(B) + beta C for
// `count` dense column-major matrices; `copy(source, target, elements)` copies. X is row-major, so
// the products here are those of Y = X^T, n x m, which has the same singular values. Its smaller
// Gram matrix is Y Y^H if n <= m.
template <typename T, typename Multiply, typename Copy>
Status MapSingularValuesBy(const Multiply& multiply, const Copy& copy, int64_t count, int64_t m,
                           int64_t n, Polynomials polynomials, T* x, T* space) {
  const int64_t k = std::min(m, n), size = count * m * n, square = count * k * k;
  T *const gram = space + size, *const sum = gram + square;
  T *now = x, *next = space;
  const bool left = n <= m;  // the Gram matrix multiplies from the left
  for (int64_t i = 0; i < polynomials.count; ++i) {
    const double* const abc = polynomials.coefficients + 3 * i;
    JAXMG_RETURN_IF_ERROR(multiply(left ? Op::kNone : Op::kConjTrans,
                                   left ? Op::kConjTrans : Op::kNone, k, k, std::max(m, n), 1, now,
                                   now, 0, gram));
    JAXMG_RETURN_IF_ERROR(copy(gram, sum, square));
    JAXMG_RETURN_IF_ERROR(multiply(Op::kNone, Op::kNone, k, k, k, abc[2], gram, gram, abc[1], sum));
    JAXMG_RETURN_IF_ERROR(copy(now, next, size));
    JAXMG_RETURN_IF_ERROR(multiply(Op::kNone, Op::kNone, n, m, k, 1, left ? sum : now,
                                   left ? now : sum, abc[0], next));
    std::swap(now, next);
  }
  return now == x ? Status::Ok() : copy(now, x, size);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STACKS_STACK_POLYNOMIALS_H_
