// The kernels of kernels.cu by dtype, and matrices for them, for tests that run them on the host.
#ifndef JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_KERNELS_BY_DTYPE_H_
#define JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_KERNELS_BY_DTYPE_H_

#include <algorithm>
#include <complex>
#include <random>
#include <vector>

#include "tests/cc/support/host_cuda/host_cuda.h"
#include "xla_ffi/device/cuda/kernels.h"

// Makes the kernels static, so that only those that are called are compiled.
#define KERNEL [[maybe_unused]] static void
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/kernels.cu"
#pragma GCC diagnostic pop

namespace jaxmg {
namespace {

using host_cuda::Launch;

template <typename T>
struct Kernels;
#define JAXMG_KERNELS(T, Device_, Real_, letter)                                             \
  template <>                                                                                \
  struct Kernels<T> {                                                                        \
    using Device = Device_;                                                                  \
    using Real = Real_;                                                                      \
    static constexpr auto add = kernels::jaxmg_add_##letter;                                 \
    static constexpr auto add_log_det = kernels::jaxmg_add_log_det_##letter;                 \
    [[maybe_unused]] static constexpr auto ascend = kernels::jaxmg_ascend_##letter;          \
    static constexpr auto check_all_finite = kernels::jaxmg_check_all_finite_##letter;       \
    static constexpr auto check_factor = kernels::jaxmg_check_factor_##letter;               \
    static constexpr auto check_finite = kernels::jaxmg_check_finite_##letter;               \
    static constexpr auto check_lu_factor = kernels::jaxmg_check_lu_factor_##letter;         \
    static constexpr auto clear_if = kernels::jaxmg_clear_if_##letter;                       \
    static constexpr auto conclude = kernels::jaxmg_conclude_##letter;                       \
    static constexpr auto conj_transpose = kernels::jaxmg_conj_transpose_##letter;           \
    static constexpr auto conjugate = kernels::jaxmg_conjugate_##letter;                     \
    static constexpr auto from_real = kernels::jaxmg_from_real_##letter;                     \
    static constexpr auto identity = kernels::jaxmg_identity_##letter;                       \
    static constexpr auto load_inverse = kernels::jaxmg_load_inverse_##letter;               \
    static constexpr auto mirror_lower = kernels::jaxmg_mirror_lower_##letter;               \
    static constexpr auto multiply = kernels::jaxmg_multiply_##letter;                       \
    static constexpr auto poison_if = kernels::jaxmg_poison_if_##letter;                     \
    static constexpr auto solve_rows = kernels::jaxmg_solve_rows_##letter;                   \
    static constexpr auto solve_rows_in_teams = kernels::jaxmg_solve_rows_in_teams_##letter; \
    static constexpr auto store_inverse = kernels::jaxmg_store_inverse_##letter;             \
    [[maybe_unused]] static constexpr auto sum_reals = kernels::jaxmg_sum_reals_##letter;    \
  };
JAXMG_KERNELS(float, float, float, s)
JAXMG_KERNELS(double, double, double, d)
JAXMG_KERNELS(std::complex<float>, cuComplex, float, c)
JAXMG_KERNELS(std::complex<double>, cuDoubleComplex, double, z)
#undef JAXMG_KERNELS

template <typename T>
using DeviceType = typename Kernels<T>::Device;
template <typename T>
using RealType = typename Kernels<T>::Real;

constexpr long long kUntouched = 12345;

template <typename T>
T Random(std::mt19937_64& random) {
  std::uniform_real_distribution<RealType<T>> uniform(-1, 1);
  T value = uniform(random);
  if constexpr (sizeof(T) > sizeof(RealType<T>)) value = T(std::real(value), uniform(random));
  return value;
}

// A column-major matrix with a few rows of padding. No kernel may change the padding.
template <typename T>
struct Matrix {
  Matrix(long long m, long long n)
      : m(m), n(n), ld(m + 3), data(ld * std::max<long long>(n, 1), T(kUntouched)) {}
  static Matrix Uniform(long long m, long long n, std::mt19937_64& random) {
    Matrix matrix(m, n);
    for (long long j = 0; j < n; ++j) {
      for (long long i = 0; i < m; ++i) matrix(i, j) = Random<T>(random);
    }
    return matrix;
  }
  T& operator()(long long i, long long j) { return data[j * ld + i]; }
  DeviceType<T>* device() { return reinterpret_cast<DeviceType<T>*>(data.data()); }
  bool MarginIsUntouched() {
    for (long long j = 0; j < n; ++j) {
      for (long long i = m; i < ld; ++i) {
        if ((*this)(i, j) != T(kUntouched)) return false;
      }
    }
    return true;
  }

  long long m, n, ld;
  std::vector<T> data;
};

// Checks a kernel in all dtypes.
#define JAXMG_TEST_KERNELS(Name, Check) \
  TEST(Name) {                          \
    Check<float>();                     \
    Check<double>();                    \
    Check<std::complex<float>>();       \
    Check<std::complex<double>>();      \
  }

}  // namespace
}  // namespace jaxmg

#endif  // JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_KERNELS_BY_DTYPE_H_
