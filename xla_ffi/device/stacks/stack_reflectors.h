// The algorithm of StackKernels::ApplyReflectors, for host and GPU: panels of reflectors, I - V T
// V^H each, from the last one to the first (R. Schreiber, C. Van Loan, A storage-efficient WY
// representation for products of Householder transformations, SIAM J. Sci. Stat. Comput. 10, 1989).
#ifndef JAXMG_XLA_FFI_DEVICE_STACKS_STACK_REFLECTORS_H_
#define JAXMG_XLA_FFI_DEVICE_STACKS_STACK_REFLECTORS_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/stacks/stack_factor.h"

namespace jaxmg {

template <typename T>
class StackedReflectors {
 public:
  static constexpr int64_t kWidth = kStackReflectors<sizeof(T)>;

  // For `count` matrices of n - 1 reflectors and n x columns; n > 1.
  StackedReflectors(int64_t count, int64_t n, int64_t columns)
      : count_(count), n_(n), columns_(columns) {}

  // Returns the workspace in elements.
  int64_t Space() const { return count_ * (2 * Triangles() + 2 * kWidth * columns_); }
  // Returns the number of panels of each matrix.
  int64_t Panels() const { return (n_ - 1 + kWidth - 1) / kWidth; }
  // Returns the number of reflectors of a panel.
  int64_t Width(int64_t panel) const { return std::min(kWidth, n_ - 1 - panel * kWidth); }

  // `form(gram, t)` makes T of V^H V for all panels of all matrices, one kWidth x kWidth matrix for
  // each. `multiply` is as for StackedQr.
  template <typename Form, typename Multiply>
  Status Run(const Form& form, const Multiply& multiply, T* space, const T* reflectors,
             T* x) const {
    T *const gram = space, *const t = gram + count_ * Triangles();
    T *const inner = t + count_ * Triangles(), *const turned = inner + count_ * kWidth * columns_;
    auto rows_of = [&](int64_t panel, Op op) -> StackedFactor<T> {  // V^H, or V
      return {reflectors + panel * kWidth * (n_ + 1) + 1, n_, n_ * n_, op};
    };
    for (int64_t panel = 0; panel < Panels(); ++panel) {
      const int64_t width = Width(panel), rest = n_ - panel * kWidth - 1;
      JAXMG_RETURN_IF_ERROR(multiply(width, width, rest, 1, rows_of(panel, Op::kNone),
                                     rows_of(panel, Op::kConjTrans), 0,
                                     gram + panel * kWidth * kWidth, kWidth, Triangles()));
    }
    JAXMG_RETURN_IF_ERROR(form(static_cast<const T*>(gram), t));
    for (int64_t panel = Panels() - 1; panel >= 0; --panel) {
      const int64_t first = panel * kWidth + 1, width = Width(panel), size = width * columns_;
      T* const below = x + first * columns_;
      JAXMG_RETURN_IF_ERROR(multiply(width, columns_, n_ - first, 1, rows_of(panel, Op::kNone),
                                     {below, columns_, n_ * columns_}, 0, inner, columns_, size));
      JAXMG_RETURN_IF_ERROR(multiply(width, columns_, width, 1,
                                     {t + panel * kWidth * kWidth, kWidth, Triangles()},
                                     {inner, columns_, size}, 0, turned, columns_, size));
      JAXMG_RETURN_IF_ERROR(multiply(n_ - first, columns_, width, -1,
                                     rows_of(panel, Op::kConjTrans), {turned, columns_, size}, 1,
                                     below, columns_, n_ * columns_));
    }
    return Status::Ok();
  }

  // Makes T of one panel on the host: column j is -tau_j T (V^H v_j) above tau_j.
  static void Form(int64_t width, const T* gram, const T* tau, T* t) {
    std::fill_n(t, kWidth * kWidth, T(0));
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t i = 0; i < j; ++i) {
        T sum = 0;
        for (int64_t l = i; l < j; ++l) sum += t[i * kWidth + l] * gram[l * kWidth + j];
        t[i * kWidth + j] = -tau[j] * sum;
      }
      t[j * kWidth + j] = tau[j];
    }
  }

 private:
  // Number of elements of T for all panels of a matrix.
  int64_t Triangles() const { return Panels() * kWidth * kWidth; }

  const int64_t count_, n_, columns_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STACKS_STACK_REFLECTORS_H_
