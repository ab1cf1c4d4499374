// Kernels of an eigensolver.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_KERNELS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_KERNELS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/eigen/chase.cuh"
#include "xla_ffi/device/cuda/eigen/groups.cuh"
#include "xla_ffi/device/cuda/eigen/secular.cuh"

namespace jaxmg::kernels {

// Uses one block of kThreads. w[i] := max(w[0], ..., w[i]). Each thread processes a run of
// elements, then applies the maximum of all earlier runs.
template <typename R>
__device__ void Ascend(Index n, R* w) {
  __shared__ R last[kThreads];
  const Index run = (n + blockDim.x - 1) / blockDim.x;
  const Index begin = min(threadIdx.x * run, n), end = min(begin + run, n);
  for (Index i = begin + 1; i < end; ++i) {
    if (w[i] < w[i - 1]) w[i] = w[i - 1];
  }
  if (begin < end) last[threadIdx.x] = w[end - 1];
  __syncthreads();
  if (begin == end || threadIdx.x == 0) return;
  R before = last[0];
  for (int i = 1; i < threadIdx.x; ++i) {
    if (before < last[i]) before = last[i];
  }
  for (Index i = begin; i < end && w[i] < before; ++i) w[i] = before;
}

template <typename T>
constexpr int kChaseRows = sizeof(T) == 16 ? kMostBandComplex128 : kMostBand;

#define EIGEN_KERNELS(T, R, letter)                                                                \
  KERNEL jaxmg_ascend_##letter(Index n, R* w) { Ascend(n, w); }                                    \
  KERNEL __launch_bounds__(kChaseRows<T>* kChaseGroups, 2)                                         \
      jaxmg_chase_##letter(Index n, Index b, T* band, Index ldb, Index first, Index sweeps, T* v,  \
                           Index ldv, T* tau, Index ldtau, unsigned* progress) {                   \
    Chaser<T, kChaseRows<T>, kChaseGroups>(n, b, band, ldb, first, sweeps, v, ldv, tau, ldtau,     \
                                           progress)                                               \
        .Run();                                                                                    \
  }                                                                                                \
  KERNEL jaxmg_clear_if_##letter(const int* first, Index n, T* a, Index lda) {                     \
    if (*first != kNoInfo) Fill(n, n, a, lda, FromReal<T>(0));                                     \
  }                                                                                                \
  KERNEL __launch_bounds__(kExpandThreads) jaxmg_expand_reflectors_##letter(                       \
      Index n, Index b, Index first, int sweeps, const T* v, Index ldv, const T* tau, Index ldtau, \
      T* blocks, T* weighted) {                                                                    \
    ExpandReflectors<T, kChaseRows<T> + kGroupSweeps - 1, kGroupSweeps>(                           \
        n, b, first, sweeps, v, ldv, tau, ldtau, blocks, weighted);                                \
  }                                                                                                \
  KERNEL jaxmg_take_tridiagonal_##letter(Index n, const T* band, Index ldb, R* d, R* e) {          \
    TakeTridiagonal(n, band, ldb, d, e);                                                           \
  }

EIGEN_KERNELS(float, float, s)
EIGEN_KERNELS(double, double, d)
EIGEN_KERNELS(cuComplex, float, c)
EIGEN_KERNELS(cuDoubleComplex, double, z)
#undef EIGEN_KERNELS

// Only in double precision.
#define EIGEN_DOUBLE_KERNELS(T, kComplex, letter)                                                \
  KERNEL __launch_bounds__(GroupShape<kComplex>::kThreads, 1)                                    \
      jaxmg_apply_groups_##letter(Groups groups, Index columns, const T* blocks,                 \
                                  const T* weighted, T* z, Index ldz, unsigned* progress) {      \
    GroupApplier<T, GroupShape<kComplex>>({groups, columns, blocks, weighted, z, ldz, progress}) \
        .Run();                                                                                  \
  }

EIGEN_DOUBLE_KERNELS(double, false, d)
EIGEN_DOUBLE_KERNELS(cuDoubleComplex, true, z)
#undef EIGEN_DOUBLE_KERNELS

// For both real dtypes.
#define EIGEN_REAL_KERNELS(R, letter)                                                            \
  KERNEL jaxmg_arrange_columns_##letter(Index rows, Index columns, const int* from,              \
                                        const R* source, Index lds, const int* to, R* target,    \
                                        Index ldt) {                                             \
    ArrangeColumns(rows, columns, from, source, lds, to, target, ldt);                           \
  }                                                                                              \
  KERNEL jaxmg_refine_z_##letter(Index k, Index begin, const int* order, const R* d, const R* z, \
                                 R rho, const R* origin, const R* tau, R* refined) {             \
    RefineZ(k, begin, order, d, z, rho, origin, tau, refined);                                   \
  }                                                                                              \
  KERNEL jaxmg_rotate_columns_##letter(Index rows, const int* starts, const int* first,          \
                                       const int* second, const R* c, const R* s, R* q,          \
                                       Index ldq) {                                              \
    RotateColumns(rows, starts, first, second, c, s, q, ldq);                                    \
  }                                                                                              \
  KERNEL jaxmg_secular_roots_##letter(Index k, Index begin, const R* d, const R* z, R rho,       \
                                      int limit, R* origin, R* tau, R* roots, int* info) {       \
    SecularRoots(k, begin, d, z, rho, limit, origin, tau, roots, info);                          \
  }                                                                                              \
  KERNEL jaxmg_secular_vectors_##letter(Index k, Index begin, const R* d, const R* z,            \
                                        const R* origin, const R* tau, R* u, Index ldu) {        \
    SecularVectors(k, begin, d, z, origin, tau, u, ldu);                                         \
  }

EIGEN_REAL_KERNELS(float, s)
EIGEN_REAL_KERNELS(double, d)
#undef EIGEN_REAL_KERNELS

// The result of the check of the matrix takes precedence over the solver's info.
KERNEL jaxmg_set_syevd_info(const int* first, const int* solver_info, int* info) {
  if (threadIdx.x == 0) *info = *first != kNoInfo ? *first : *solver_info;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_KERNELS_CUH_
