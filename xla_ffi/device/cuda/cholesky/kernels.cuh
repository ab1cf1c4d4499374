// Kernels for Cholesky factors, and substitution with triangles.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_KERNELS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_KERNELS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/cholesky/factor.cuh"
#include "xla_ffi/device/cuda/cholesky/row_solver.cuh"
#include "xla_ffi/device/cuda/cholesky/scaling.cuh"
#include "xla_ffi/device/cuda/cholesky/triangular.cuh"
#include "xla_ffi/device/cuda/core/kernel.cuh"

namespace jaxmg::kernels {

// Substitution for at most `columns` right-hand sides at a time.
#define SOLVE_TRIANGLE(T, letter, columns)                                                  \
  KERNEL __launch_bounds__(kTriangleEdge* kTriangleEdge)                                    \
      jaxmg_solve_triangle_##columns##_##letter(                                            \
          Index n, int nrhs, int conjugated, int unit, const T* a, Index row, Index column, \
          const T* b, Index b_row, Index b_column, T* x, Index x_row, Index x_column,       \
          TaggedWord* words, unsigned tag, unsigned* ticket, unsigned first_ticket) {       \
    const Triangular<T> system = {n, nrhs,  conjugated, unit, a,     row,     column,       \
                                  b, b_row, b_column,   x,    x_row, x_column};             \
    TriangleSolver<T, columns>(system, words, tag, ticket, first_ticket).Run();             \
  }

#define CHOLESKY_KERNELS(T, R, letter)                                                             \
  KERNEL jaxmg_add_log_det_##letter(Index n, const T* l, Index ldl, R* sum) {                      \
    AddLogDet(n, l, ldl, sum);                                                                     \
  }                                                                                                \
  KERNEL jaxmg_check_factor_##letter(Index n, const T* a, Index lda, Index offset,                 \
                                     const int* solver_info, int* failed, int* info, R* sum) {     \
    CheckFactor(n, a, lda, offset, solver_info, failed, info);                                     \
    if (sum != nullptr) AddLogDet(n, a, lda, sum);                                                 \
  }                                                                                                \
  KERNEL jaxmg_load_inverse_##letter(Index n, int transposed, const T* a, Index lda, T* l, T* v) { \
    LoadInverse(n, transposed, a, lda, l, v);                                                      \
  }                                                                                                \
  KERNEL jaxmg_solve_rows_##letter(Index m, Index n, int backward, const T* l, Index ldl,          \
                                   const T* b, Index ldb, T* x, Index ldx) {                       \
    RowSolver<T, 1>(m, n, backward, l, ldl, b, ldb, x, ldx).Run();                                 \
  }                                                                                                \
  KERNEL jaxmg_solve_rows_in_teams_##letter(Index m, Index n, int backward, const T* l, Index ldl, \
                                            const T* b, Index ldb, T* x, Index ldx) {              \
    RowSolver<T, kTeam>(m, n, backward, l, ldl, b, ldb, x, ldx).Run();                             \
  }                                                                                                \
  KERNEL jaxmg_store_inverse_##letter(Index n, const T* v, Index ldv, T* a, Index lda) {           \
    StoreInverse(n, v, ldv, a, lda);                                                               \
  }                                                                                                \
  SOLVE_TRIANGLE(T, letter, 1)                                                                     \
  SOLVE_TRIANGLE(T, letter, 4)

CHOLESKY_KERNELS(float, float, s)
CHOLESKY_KERNELS(double, double, d)
CHOLESKY_KERNELS(cuComplex, float, c)
CHOLESKY_KERNELS(cuDoubleComplex, double, z)
#undef CHOLESKY_KERNELS
#undef SOLVE_TRIANGLE

// Only in single precision.
#define CHOLESKY_SINGLE_KERNELS(T, letter)                                                     \
  KERNEL jaxmg_row_largest_##letter(Index m, Index n, const T* a, Index lda, float* largest) { \
    RowLargest(m, n, a, lda, largest);                                                         \
  }                                                                                            \
  KERNEL jaxmg_scale_##letter(int lower, int divide, Index m, Index n, const float* left,      \
                              const float* right, T* a, Index lda) {                           \
    ScaleTile(lower != 0, divide != 0, m, n, left, right, a, lda);                             \
  }

CHOLESKY_SINGLE_KERNELS(float, s)
CHOLESKY_SINGLE_KERNELS(cuComplex, c)
#undef CHOLESKY_SINGLE_KERNELS

KERNEL jaxmg_powers_of_two(int root, Index n, float* x) {
  for (Index i = FirstElement(); i < n; i += ElementStride()) x[i] = PowerOfTwo(root != 0, x[i]);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_KERNELS_CUH_
