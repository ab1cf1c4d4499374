// Kernels for LU factors.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_KERNELS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_KERNELS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/lu/column_solver.cuh"
#include "xla_ffi/device/cuda/lu/lu.cuh"
#include "xla_ffi/device/cuda/lu/lu_panel.cuh"

namespace jaxmg::kernels {

// LU of a panel, for each maximum number of columns.
#define LU_PANEL(T, letter, columns)                                                            \
  KERNEL __launch_bounds__(kLuThreads, 1) jaxmg_factor_lu_panel_##columns##_##letter(           \
      Index m, int n, T* a, Index lda, Index offset, int* pivots, int* info, TaggedWord* slots, \
      unsigned first_tag, int* moves) {                                                         \
    LuPanel<T, columns>(m, n, a, lda, offset, pivots, info, slots, first_tag, moves).Run();     \
  }

#define LU_KERNELS(T, R, letter)                                                                   \
  KERNEL jaxmg_add_determinant_##letter(Index n, const T* u, Index ldu, Index offset,              \
                                        const int* pivots, R* log_abs, T* sign) {                  \
    AddDeterminant(n, u, ldu, offset, pivots, log_abs, sign);                                      \
  }                                                                                                \
  KERNEL jaxmg_check_lu_factor_##letter(Index n, const T* a, Index lda, Index offset,              \
                                        const Index* from_one, int* pivots, int* info) {           \
    CheckLuFactor(n, a, lda, offset, from_one, pivots, info);                                      \
  }                                                                                                \
  KERNEL jaxmg_move_rows_##letter(Index n, int count, const int* from, const int* to, T* a,        \
                                  Index row, Index column) {                                       \
    MoveRows(n, count, from, to, a, row, column);                                                  \
  }                                                                                                \
  LU_PANEL(T, letter, 32)                                                                          \
  LU_PANEL(T, letter, 16)                                                                          \
  LU_PANEL(T, letter, 8)                                                                           \
  LU_PANEL(T, letter, 4)                                                                           \
  KERNEL __launch_bounds__(kColumnSolverThreads) jaxmg_solve_columns_##letter(                     \
      int order, Index columns, const T* l, Index ldl, T* b, Index ldb) {                          \
    ColumnSolver<T>(order, columns, l, ldl, b, ldb).Run();                                         \
  }                                                                                                \
  KERNEL __launch_bounds__(kThreads)                                                               \
      jaxmg_step_lu_panel_##letter(int n, T* a, Index lda, int width, int first, int last,         \
                                   int column, int right, const int* moves) {                      \
    LuStep<T>(n, a, lda, width, first, last, column, right, moves).Run();                          \
  }                                                                                                \
  KERNEL jaxmg_take_rows_##letter(Index m, Index first, const int* sources, const T* buffer, T* a, \
                                  Index lda) {                                                     \
    TakeRows(m, first, sources, buffer, a, lda);                                                   \
  }

LU_KERNELS(float, float, s)
LU_KERNELS(double, double, d)
LU_KERNELS(cuComplex, float, c)
LU_KERNELS(cuDoubleComplex, double, z)
#undef LU_KERNELS
#undef LU_PANEL

KERNEL jaxmg_compose_moves(Index n, const int* moves, int* sources) {
  for (Index i = FirstElement(); i < n; i += ElementStride()) sources[i] = moves[sources[i]];
}

KERNEL jaxmg_count_up(Index n, int* x) {
  for (Index i = FirstElement(); i < n; i += ElementStride()) x[i] = static_cast<int>(i);
}

// moves[to[i]] := from[i] for the moves of PlanSwaps, or to[i] if `back`. Rows count from `begin`.
KERNEL jaxmg_map_moves(int back, int count, int begin, const int* from, const int* to, int* moves) {
  for (Index i = FirstElement(); i < count; i += ElementStride()) {
    if (to[i] >= 0) moves[begin + to[i]] = begin + (back != 0 ? to[i] : from[i]);
  }
}

KERNEL jaxmg_plan_swaps(int backward, int count, Index offset, const int* pivots, int* from,
                        int* to) {
  PlanSwaps(backward, count, offset, pivots, from, to);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_KERNELS_CUH_
