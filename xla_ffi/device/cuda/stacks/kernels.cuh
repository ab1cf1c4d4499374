// Kernels for stacks of matrices.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_KERNELS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_KERNELS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/stacks/element_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/lu_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/qr_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/reflector_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/secular_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/small_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/substitution_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/triangle_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/tridiagonal_stacks.cuh"

namespace jaxmg::kernels {

#define STACKS_KERNELS(T, R, letter)                                                              \
  KERNEL __launch_bounds__(kStackLuThreads) jaxmg_factor_stacked_panel_##letter(                  \
      int n, int first, int width, T* a, int* pivots, int* moves) {                               \
    FactorStackedPanel(n, first, width, a, pivots, moves);                                        \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackMoveThreads)                                                     \
      jaxmg_move_stacked_rows_##letter(int n, int first, int width, T* a, const int* moves) {     \
    MoveStackedRows<T, kStackLuColumns>(n, first, width, a, moves);                               \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackDiagonalThreads)                                                 \
      jaxmg_factor_stacked_diagonal_##letter(int n, int first, int width, int upper, T* a) {      \
    FactorStackedDiagonal(n, first, width, upper, a);                                             \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackRows)                                                            \
      jaxmg_solve_stacked_rows_##letter(int n, int first, int width, int upper, T* a) {           \
    SolveStackedRows(n, first, width, upper, a);                                                  \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackDiagonal<sizeof(T)>)                                             \
      jaxmg_invert_stacked_diagonal_##letter(int n, int width, int upper, T* a) {                 \
    InvertStackedDiagonal(n, width, upper, a);                                                    \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackSubstitutionThreads) jaxmg_solve_stacked_triangle_##letter(      \
      int n, int nrhs, int upper, int adjoint, int unit, const T* a, T* b) {                      \
    SolveStackedTriangle(n, nrhs, upper, adjoint, unit, a, b);                                    \
  }                                                                                               \
  KERNEL __launch_bounds__(32 * (kStackQrWarps + 1)) jaxmg_factor_stacked_qr_panel_##letter(      \
      int m, int n, int first, int width, int in_shared, T* a, T* v, T* t, T* q) {                \
    StackedQrPanel<T>(m, n, first, width, in_shared, a, v, t, q).Run();                           \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackReflectors<sizeof(T)>)                                           \
      jaxmg_form_stacked_reflectors_##letter(int n, const T* gram, const T* tau, T* t) {          \
    FormStackedReflectors(n, gram, tau, t);                                                       \
  }                                                                                               \
  KERNEL __launch_bounds__(kSmallThreads)                                                         \
      jaxmg_invert_small_##letter(Index count, int n, const T* a, T* inverse) {                   \
    InvertSmall(count, n, a, inverse);                                                            \
  }                                                                                               \
  KERNEL __launch_bounds__(kSmallThreads)                                                         \
      jaxmg_solve_small_##letter(Index count, int n, int nrhs, const T* a, const T* b, T* x) {    \
    SolveSmall(count, n, nrhs, a, b, x);                                                          \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackElementThreads) jaxmg_combine_stack_##letter(                    \
      Index size, int pieces, Index n, const T* x, const T* y, const R* of_x, const R* of_y,      \
      const R* of_identity, R divisor, T* out) {                                                  \
    CombineStack(size, pieces, n, x, y, of_x, of_y, of_identity, divisor, out);                   \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackElementThreads)                                                  \
      jaxmg_divide_stack_##letter(Index size, int pieces, const double* sums, const T* a, T* x) { \
    DivideStack(size, pieces, sums, a, x);                                                        \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackElementThreads) jaxmg_largest_of_stack_##letter(                 \
      Index size, int pieces, const T* a, unsigned long long* largest) {                          \
    LargestOfStack(size, pieces, a, largest);                                                     \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackElementThreads)                                                  \
      jaxmg_make_stack_hermitian_##letter(int pieces, Index n, T* a) {                            \
    MakeStackHermitian(pieces, n, a);                                                             \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackElementThreads) jaxmg_scale_stack_##letter(                      \
      Index size, int pieces, int step, const unsigned long long* largest, const T* a, T* scaled, \
      int* exponents) {                                                                           \
    ScaleStack(size, pieces, step, largest, a, scaled, exponents);                                \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackElementThreads) jaxmg_sum_stack_##letter(                        \
      int what, Index size, int pieces, Index n, const T* x, const T* y, double* sums) {          \
    SumStack(what, size, pieces, n, x, y, sums);                                                  \
  }

STACKS_KERNELS(float, float, s)
STACKS_KERNELS(double, double, d)
STACKS_KERNELS(cuComplex, float, c)
STACKS_KERNELS(cuDoubleComplex, double, z)
#undef STACKS_KERNELS

// For both real dtypes.
#define STACKS_REAL_KERNELS(R, letter)                                                            \
  KERNEL jaxmg_solve_tridiagonal_##letter(Index count, int n, const R* d, const R* e, R* w,       \
                                          R* v) {                                                 \
    SolveTridiagonal(count, n, d, e, w, v);                                                       \
  }                                                                                               \
  KERNEL jaxmg_sort_poles_##letter(Index count, Index k, R gap, const R* high, const R* low,      \
                                   const R* z, int* places, R* sorted_high, R* sorted_low,        \
                                   R* sorted_z) {                                                 \
    SortPoles(count, k, gap, high, low, z, places, sorted_high, sorted_low, sorted_z);            \
  }                                                                                               \
  KERNEL __launch_bounds__(kStackTridiagonalThreads)                                              \
      jaxmg_reduce_stack_##letter(int n, R* a, R* d, R* e, R* tau) {                              \
    StackedTridiagonal<R>(n, a, d, e, tau).Run();                                                 \
  }                                                                                               \
  KERNEL jaxmg_stacked_roots_##letter(Index k, const R* high, const R* low, const R* z,           \
                                      const R* rho, R* origin_high, R* origin_low, R* tau) {      \
    StackedRoots(k, high, low, z, rho, origin_high, origin_low, tau);                             \
  }                                                                                               \
  KERNEL jaxmg_refine_stacked_z_##letter(Index k, const R* high, const R* low, const R* z,        \
                                         const R* rho, const R* origin_high, const R* origin_low, \
                                         const R* tau, R* refined) {                              \
    RefineStackedZ(k, high, low, z, rho, origin_high, origin_low, tau, refined);                  \
  }                                                                                               \
  KERNEL jaxmg_stacked_vectors_##letter(Index k, const int* places, const R* high, const R* low,  \
                                        const R* refined, const R* origin_high,                   \
                                        const R* origin_low, const R* tau, R* root_high,          \
                                        R* root_low, R* vectors) {                                \
    StackedVectors(k, places, high, low, refined, origin_high, origin_low, tau, root_high,        \
                   root_low, vectors);                                                            \
  }

STACKS_REAL_KERNELS(float, s)
STACKS_REAL_KERNELS(double, d)
#undef STACKS_REAL_KERNELS

KERNEL jaxmg_add_stack_parts(Index count, int pieces, const double* parts, double* sums) {
  AddStackParts(count, pieces, parts, sums);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_KERNELS_CUH_
