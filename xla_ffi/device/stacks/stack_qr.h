// The algorithm of StackKernels::FactorQr on a GPU, which tests also run on the host: panels of
// Householder reflectors, I - V T V^H each, and products with the columns right of them; then Q
// from the last panel to the first (R. Schreiber, C. Van Loan, A storage-efficient WY
// representation for products of Householder transformations, SIAM J. Sci. Stat. Comput. 10, 1989).
#ifndef JAXMG_XLA_FFI_DEVICE_STACKS_STACK_QR_H_
#define JAXMG_XLA_FFI_DEVICE_STACKS_STACK_QR_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/stacks/stack_factor.h"

namespace jaxmg {

template <typename T>
class StackedQr {
  static constexpr int64_t kWidth = kStackQrColumns;

 public:
  StackedQr(int64_t count, int64_t m, int64_t n)
      : count_(count), m_(m), n_(n), k_(std::min(m, n)) {}

  // Returns the workspace in elements.
  int64_t Space() const { return count_ * (m_ * k_ + Triangles() + 2 * kWidth * n_); }

  // Returns the shared memory of a block of the kernel, without its rows: its warps' sums and a
  // row, twice, and T.
  static int SharedBytes(int threads) {
    return static_cast<int>((2 * (threads / 32) + kWidth + 1) * kWidth * sizeof(T));
  }

  // `factor(first, width, v, t)` is the kernel of the panel that begins at column `first`
  // (qr_stacks.cuh). `multiply(m, n, k, alpha, x, y, beta, c, ld, size)` is C := alpha op(X) op(Y)
  // + beta C for `count` matrices.
  template <typename Factor, typename Multiply>
  Status Run(const Factor& factor, const Multiply& multiply, T* space, T* a, T* q) const {
    T *const v = space, *const t = v + count_ * m_ * k_;
    // X := (I - V T V^H) X, or with T^H, on the rows of X from `first` on.
    auto apply = [&](int64_t first, Op op, T* x, int64_t columns, int64_t ld) -> Status {
      const int64_t width = std::min(kWidth, k_ - first), rows = m_ - first;
      const int64_t size = width * columns;
      T *const inner = t + count_ * Triangles(), *const turned = inner + count_ * size;
      const T* const reflectors = v + first * (k_ + 1);
      JAXMG_RETURN_IF_ERROR(multiply(width, columns, rows, 1,
                                     {reflectors, k_, m_ * k_, Op::kConjTrans}, {x, ld, m_ * ld}, 0,
                                     inner, columns, size));
      JAXMG_RETURN_IF_ERROR(multiply(width, columns, width, 1,
                                     {t + first * kWidth, kWidth, Triangles(), op},
                                     {inner, columns, size}, 0, turned, columns, size));
      return multiply(rows, columns, width, -1, {reflectors, k_, m_ * k_}, {turned, columns, size},
                      1, x, ld, m_ * ld);
    };
    for (int64_t first = 0; first < k_; first += kWidth) {
      const int64_t width = std::min(kWidth, k_ - first), rest = n_ - first - width;
      JAXMG_RETURN_IF_ERROR(factor(first, width, v, t));
      if (rest == 0) break;
      JAXMG_RETURN_IF_ERROR(apply(first, Op::kConjTrans, a + first * (n_ + 1) + width, rest, n_));
    }
    const int64_t last = (k_ - 1) / kWidth * kWidth;
    for (int64_t first = last; q != nullptr && first >= 0; first -= kWidth) {
      JAXMG_RETURN_IF_ERROR(apply(first, Op::kNone, q + first * (k_ + 1), k_ - first, k_));
    }
    return Status::Ok();
  }

 private:
  // Number of elements of T for all panels of a matrix.
  int64_t Triangles() const { return (k_ + kWidth - 1) / kWidth * kWidth * kWidth; }

  const int64_t count_, m_, n_, k_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STACKS_STACK_QR_H_
