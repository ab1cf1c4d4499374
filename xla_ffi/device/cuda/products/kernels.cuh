// Kernels for whole matrices, and for products of parts.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_KERNELS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_KERNELS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/products/matrix.cuh"
#include "xla_ffi/device/cuda/products/part_products.cuh"
#include "xla_ffi/device/cuda/products/parts.cuh"

namespace jaxmg::kernels {

// Only in single precision.
#define PRODUCTS_SINGLE_KERNELS(T, letter)                                                       \
  KERNEL jaxmg_part_scales_##letter(int turned, Index m, Index n, const T* a, Index lda,         \
                                    float* scales) {                                             \
    PartScales(turned != 0, m, n, a, lda, scales);                                               \
  }                                                                                              \
  KERNEL jaxmg_split_##letter(int left, int turned, int halves, int products, Index m, Index n,  \
                              const T* a, Index lda, const float* scales, unsigned short* parts, \
                              Index ld) {                                                        \
    Split(left != 0, turned != 0, halves != 0, products, m, n, a, lda, scales, parts, ld);       \
  }

PRODUCTS_SINGLE_KERNELS(float, s)
PRODUCTS_SINGLE_KERNELS(cuComplex, c)
#undef PRODUCTS_SINGLE_KERNELS

// U is the dtype in the other precision.
#define PRODUCTS_KERNELS(T, R, U, letter)                                                          \
  KERNEL jaxmg_add_noise_##letter(Index m, Index n, Index row, Index column, R size, T* a,         \
                                  Index lda) {                                                     \
    AddNoise(m, n, row, column, size, a, lda);                                                     \
  }                                                                                                \
  KERNEL jaxmg_add_to_diagonal_##letter(Index m, Index n, Index first, R value, T* a, Index lda) { \
    AddToDiagonal(m, n, first, value, a, lda);                                                     \
  }                                                                                                \
  KERNEL jaxmg_clear_triangle_##letter(int upper, Index m, Index n, T* a, Index lda) {             \
    ClearTriangle(upper != 0, m, n, a, lda);                                                       \
  }                                                                                                \
  KERNEL jaxmg_combine_##letter(Index m, Index n, R alpha, const T* a, Index lda, R beta, T* c,    \
                                Index ldc) {                                                       \
    Combine(m, n, alpha, a, lda, beta, c, ldc);                                                    \
  }                                                                                                \
  KERNEL jaxmg_convert_##letter(Index m, Index n, const T* a, Index lda, U* c, Index ldc) {        \
    ConvertTo(m, n, a, lda, c, ldc);                                                               \
  }                                                                                                \
  KERNEL jaxmg_divide_by_root_##letter(int count, Index m, Index n, const double* sums, T* a,      \
                                       Index lda) {                                                \
    DivideByRoot(count, m, n, sums, a, lda);                                                       \
  }                                                                                                \
  KERNEL jaxmg_largest_of_rows_##letter(Index m, Index n, const T* a, Index lda, R* largest) {     \
    LargestOfRows(m, n, a, lda, largest);                                                          \
  }                                                                                                \
  KERNEL jaxmg_make_hermitian_##letter(Index n, T* a, Index lda) { MakeHermitian(n, a, lda); }     \
  KERNEL jaxmg_roots_of_diagonal_##letter(Index n, const T* a, Index lda, R* roots) {              \
    RootsOfDiagonal(n, a, lda, roots);                                                             \
  }                                                                                                \
  KERNEL jaxmg_scale_rows_and_columns_##letter(int divide, Index m, Index n, const R* left,        \
                                               const R* right, T* a, Index lda) {                  \
    ScaleRowsAndColumns(divide != 0, m, n, left, right, a, lda);                                   \
  }                                                                                                \
  KERNEL jaxmg_signs_of_diagonal_##letter(Index n, const T* a, Index lda, R* signs) {              \
    SignsOfDiagonal(n, a, lda, signs);                                                             \
  }                                                                                                \
  KERNEL __launch_bounds__(kThreads) jaxmg_square_sums_##letter(                                   \
      int apart, Index m, Index n, const T* a, Index lda, double* sums) {                          \
    SquareSums(apart != 0, m, n, a, lda, sums);                                                    \
  }                                                                                                \
  KERNEL jaxmg_take_scaled_rows_##letter(Index m, Index n, const int* rows, const R* factors,      \
                                         const T* a, Index lda, T* c, Index ldc) {                 \
    TakeScaledRows(m, n, rows, factors, a, lda, c, ldc);                                           \
  }                                                                                                \
  KERNEL jaxmg_times_factors_##letter(Index m, Index n, R first, R second, T* a, Index lda) {      \
    TimesFactors(m, n, first, second, a, lda);                                                     \
  }

PRODUCTS_KERNELS(float, float, double, s)
PRODUCTS_KERNELS(double, double, float, d)
PRODUCTS_KERNELS(cuComplex, float, cuDoubleComplex, c)
PRODUCTS_KERNELS(cuDoubleComplex, double, cuComplex, z)
#undef PRODUCTS_KERNELS

// See PartProduct, which exists only for compute capability 9.0.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MULTIPLY_PARTS(kHalves, kScaled)                                                         \
  PartProduct<kHalves, kScaled>(factors, scales, first_a, first_b, m, n, chunks, alpha, beta, c, \
                                ldc)                                                             \
      .Run()
#else
#define MULTIPLY_PARTS(kHalves, kScaled)
#endif
KERNEL __launch_bounds__(kProductThreads, 1)
    jaxmg_multiply_bfloats(const __grid_constant__ PartFactors factors, PartProductScales scales,
                           int first_a, int first_b, int m, int n, int chunks, float alpha,
                           float beta, float* c, Index ldc) {
  MULTIPLY_PARTS(false, false);
}
KERNEL __launch_bounds__(kProductThreads, 1)
    jaxmg_multiply_halves(const __grid_constant__ PartFactors factors, PartProductScales scales,
                          int first_a, int first_b, int m, int n, int chunks, float alpha,
                          float beta, float* c, Index ldc) {
  MULTIPLY_PARTS(true, false);
}
KERNEL __launch_bounds__(kProductThreads, 1)
    jaxmg_multiply_scaled_halves(const __grid_constant__ PartFactors factors,
                                 PartProductScales scales, int first_a, int first_b, int m, int n,
                                 int chunks, float alpha, float beta, float* c, Index ldc) {
  MULTIPLY_PARTS(true, true);
}
#undef MULTIPLY_PARTS

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_KERNELS_CUH_
