// Householder reflectors on the host.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_REFLECTOR_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_REFLECTOR_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>

#include "xla_ffi/base/dtype.h"

namespace jaxmg {

// Computes H = I - tau v v^H with v_0 = 1 and H^H x = beta e_0 with real beta (LAPACK's xLARFG).
// Overwrites x with beta and the rest of v.
template <typename T>
void MakeReflector(int64_t n, T* x, T* tau) {
  using R = Real<T>;
  // Scales, so that squares neither overflow nor underflow.
  auto norm_of_rest = [&] {
    R largest = 0, sum = 0;
    for (int64_t i = 1; i < n; ++i) {
      largest = std::max({largest, std::abs(std::real(x[i])), std::abs(std::imag(x[i]))});
    }
    if (largest == 0 || !std::isfinite(largest)) return largest;
    for (int64_t i = 1; i < n; ++i) {
      const R re = std::real(x[i]) / largest, im = std::imag(x[i]) / largest;
      sum += re * re + im * im;
    }
    return largest * std::sqrt(sum);
  };
  *tau = 0;
  if (n < 1) return;
  R rest = norm_of_rest();
  if (rest == 0 && std::imag(x[0]) == 0) return;
  // Tiny columns are scaled up until the inverse of their norm is representable.
  const R tiny = std::numeric_limits<R>::min() / std::numeric_limits<R>::epsilon();
  R beta = std::hypot(std::hypot(std::real(x[0]), std::imag(x[0])), rest);
  int scaled = 0;
  for (; beta < tiny && scaled < 20; ++scaled) {
    for (int64_t i = 0; i < n; ++i) x[i] /= tiny;
    rest = norm_of_rest();
    beta = std::hypot(std::hypot(std::real(x[0]), std::imag(x[0])), rest);
  }
  if (std::real(x[0]) >= 0) beta = -beta;
  *tau = (beta - x[0]) / beta;
  const T scale = T(1) / (x[0] - beta);
  for (int64_t i = 1; i < n; ++i) x[i] *= scale;
  for (; scaled > 0; --scaled) beta *= tiny;
  x[0] = beta;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_REFLECTOR_H_
