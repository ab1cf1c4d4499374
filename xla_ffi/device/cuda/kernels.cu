// The engine's own kernels: the device's operations that cuBLAS and cuSOLVER don't provide.
// Matrices are column-major. NVRTC compiles this file without the standard library.
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/cholesky/row_solver.cuh"
#include "xla_ffi/device/cuda/cholesky/scaling.cuh"
#include "xla_ffi/device/cuda/cholesky/triangular.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/eigen/chase.cuh"
#include "xla_ffi/device/cuda/eigen/groups.cuh"
#include "xla_ffi/device/cuda/eigen/secular.cuh"
#include "xla_ffi/device/cuda/lu/column_solver.cuh"
#include "xla_ffi/device/cuda/lu/lu.cuh"
#include "xla_ffi/device/cuda/lu/lu_panel.cuh"
#include "xla_ffi/device/cuda/products/matrix.cuh"
#include "xla_ffi/device/cuda/products/part_products.cuh"
#include "xla_ffi/device/cuda/products/parts.cuh"
#include "xla_ffi/device/cuda/qr/panel.cuh"
#include "xla_ffi/device/cuda/qr/register_panel.cuh"
#include "xla_ffi/device/cuda/stacks/element_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/lu_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/qr_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/secular_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/small_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/substitution_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/triangle_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/tridiagonal_stacks.cuh"

namespace jaxmg::kernels {
namespace {

__device__ Index FirstElement() { return blockIdx.x * Index(blockDim.x) + threadIdx.x; }
__device__ Index ElementStride() { return gridDim.x * Index(blockDim.x); }

template <typename T>
__device__ void Fill(Index m, Index n, T* a, Index lda, T value) {
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) a[i / m * lda + i % m] = value;
}

// Uses one block. Adds 2 log of the product of the diagonal, in a deterministic order and in double
// precision, because sums in float32 would lose digits.
template <typename T>
__device__ void AddLogDet(Index n, const T* l, Index ldl, typename RealOf<T>::type* sum) {
  __shared__ double partial[kThreads];
  double mine = 0;
  for (Index j = threadIdx.x; j < n; j += blockDim.x) {
    mine += log(static_cast<double>(RealPart(l[j * ldl + j])));
  }
  partial[threadIdx.x] = mine;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum += static_cast<typename RealOf<T>::type>(2 * partial[0]);
}

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

// Uses one block. *failed := the order of the tile's first leading minor that is not positive
// definite, or 0. Checks the diagonal, because the solver may not stop if it is not finite.
// Blas::Potrf describes *info.
template <typename T>
__device__ void CheckFactor(Index n, const T* a, Index lda, Index offset, const int* solver_info,
                            int* failed, int* info) {
  __shared__ int first;
  if (threadIdx.x == 0) first = *solver_info > 0 ? *solver_info : kNoInfo;
  __syncthreads();
  for (Index j = threadIdx.x; j < n; j += blockDim.x) {
    if (!Finite(a[j * lda + j])) atomicMin(&first, static_cast<int>(j + 1));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  *failed = first == kNoInfo ? 0 : first;
  if (first != kNoInfo) *info = min(*info, static_cast<int>(offset + first));
}

// *info := min(*info, kNotFinite) if an m x n block has NaN or infinity.
template <typename T>
__device__ void CheckAllFinite(Index m, Index n, const T* a, Index lda, int* info) {
  bool finite = true;
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) {
    finite &= Finite(a[i / m * lda + i % m]);
  }
  if (!finite) atomicMin(info, kNotFinite);
}

// Uses one block. Converts the pivots of a library's factor, which count from 1, to the form of
// lu_kernels.h. Updates *info with the first diagonal element of U that is zero or not finite.
template <typename T>
__device__ void CheckLuFactor(Index n, const T* a, Index lda, Index offset, const Index* from_one,
                              int* pivots, int* info) {
  __shared__ int first;
  if (threadIdx.x == 0) first = *info;
  __syncthreads();
  for (Index j = threadIdx.x; j < n; j += blockDim.x) {
    const T pivot = a[j * lda + j];
    pivots[j] = static_cast<int>(offset + from_one[j] - 1);
    if (!Finite(pivot)) {
      atomicMin(&first, kNotFinite);
    } else if (IsZero(pivot)) {
      atomicMin(&first, static_cast<int>(offset + j + 1));
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *info = first;
}

// Uses one block. Reduces the ranks' records (constants.h) as reduce_info, keep_negative, sum_reals
// and multiply do. Fills their results and x with NaN if the status is not 0 or, with a failure, if
// it is negative.
template <typename T>
__device__ void Conclude(const int* records, Index ranks, int* status, int* failure,
                         typename RealOf<T>::type* log_det, T* sign, T* x, Index count) {
  using R = typename RealOf<T>::type;
  __shared__ int spoils;
  if (threadIdx.x == 0) {
    int least = kNoInfo;
    R sum = 0;
    T product = FromReal<T>(1);
    for (Index i = 0; i < ranks; ++i) {
      const int* record = records + i * kRecordWords;
      least = min(least, record[0]);
      if (record[1] != records[1]) least = min(least, kDifferentOperands);
      sum += *reinterpret_cast<const R*>(record + kRecordLogDet);
      product = Times(product, *reinterpret_cast<const T*>(record + kRecordSign));
    }
    const int outcome = least == kNoInfo ? 0 : least;
    spoils = failure != nullptr ? min(outcome, 0) : outcome;
    *status = outcome;
    if (failure != nullptr) *failure = spoils;
    if (log_det != nullptr) *log_det = spoils != 0 ? Nan<R>() : sum;
    if (sign != nullptr) *sign = spoils != 0 ? Nan<T>() : product;
  }
  __syncthreads();
  if (spoils == 0) return;
  for (Index i = threadIdx.x; i < count; i += blockDim.x) x[i] = Nan<T>();
}

// *first := min(*first, offset + the first column, from 1, in which the lower trapezoid of an m x n
// block has NaN or infinity).
template <typename T>
__device__ void CheckFinite(Index m, Index n, const T* a, Index lda, Index offset, int* first) {
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) {
    const Index row = i % m, column = i / m;
    if (row >= column && !Finite(a[column * lda + row])) {
      atomicMin(first, static_cast<int>(offset + column + 1));
    }
  }
}

// b := a^H through shared memory; a is m x n. Uses one block per tile.
template <typename T>
__device__ void ConjTranspose(Index m, Index n, const T* a, Index lda, T* b, Index ldb) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles_m = (m + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles_m * kTileEdge, column = blockIdx.x / tiles_m * kTileEdge;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (row + threadIdx.x < m && column + j < n) {
      tile[j][threadIdx.x] = a[(column + j) * lda + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (column + threadIdx.x < n && row + j < m) {
      b[(row + j) * ldb + column + threadIdx.x] = Conj(tile[threadIdx.x][j]);
    }
  }
}

// Copies `bytes` bytes with a block, in units of type Unit, a few of them at a time.
template <typename Unit>
__device__ void CopyInUnits(char* target, const char* source, Index bytes) {
  constexpr int kAtOnce = 4;
  Unit* to = reinterpret_cast<Unit*>(target);
  const Unit* from = reinterpret_cast<const Unit*>(source);
  const int count = static_cast<int>(bytes / sizeof(Unit));
  for (int i = threadIdx.x; i < count; i += kAtOnce * blockDim.x) {
    Unit units[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * blockDim.x < count) units[j] = from[i + j * blockDim.x];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * blockDim.x < count) to[i + j * blockDim.x] = units[j];
    }
  }
}

// Copies a block's segment of `bytes` bytes: at most kCopySegment bytes from `begin` on. The unit
// is the largest power of two, at most 16 bytes, that divides `alignment`; all addresses must be
// multiples of it.
__device__ inline void CopySegment(char* target, const char* source, Index begin, Index bytes,
                                   Index alignment) {
  if (begin >= bytes) return;
  char* const to = target + begin;
  const char* const from = source + begin;
  const Index part = min(bytes - begin, Index(kCopySegment));
  if (alignment % 16 == 0) {
    CopyInUnits<uint4>(to, from, part);
  } else if (alignment % 8 == 0) {
    CopyInUnits<uint2>(to, from, part);
  } else if (alignment % 4 == 0) {
    CopyInUnits<unsigned>(to, from, part);
  } else if (alignment % 2 == 0) {
    CopyInUnits<unsigned short>(to, from, part);
  } else {
    CopyInUnits<unsigned char>(to, from, part);
  }
}

// Uses one block per tile of the n x n block. l := the lower triangle of a, v := the inverse that
// StoreInverse has stored above its diagonal, both n x n and zero above their diagonals; or l^H and
// v^H.
template <typename T>
__device__ void LoadInverse(Index n, int transposed, const T* a, Index lda, T* l, T* v) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles = (n + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge, column = blockIdx.x / tiles * kTileEdge;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (row + j < n && column + threadIdx.x < n) {
      tile[j][threadIdx.x] = a[(row + j) * lda + column + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index i = row + threadIdx.x, k = column + j;
    if (i >= n || k >= n) continue;
    const T here = a[k * lda + i], across = Conj(tile[threadIdx.x][j]);
    T lower = FromReal<T>(0), inverse = lower;
    if (i == k) {
      lower = transposed ? Conj(here) : here;
      inverse = Divide(FromReal<T>(1), lower);
    } else if ((i > k) != (transposed != 0)) {
      lower = transposed ? across : here;
      inverse = transposed ? here : across;
    }
    l[k * n + i] = lower;
    v[k * n + i] = inverse;
  }
}

// Uses one block per tile of the n x n block; blocks above the diagonal have no work.
template <typename T>
__device__ void MirrorLower(Index n, T* a, Index lda) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles = (n + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge, column = blockIdx.x / tiles * kTileEdge;
  if (row < column) return;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    // Elements above the diagonal may be uninitialized.
    if (row + threadIdx.x < n && row + threadIdx.x >= column + j) {
      tile[j][threadIdx.x] = a[(column + j) * lda + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index target_row = column + threadIdx.x, target_column = row + j;
    if (target_row >= n || target_column >= n || target_row > target_column) continue;
    T value = Conj(tile[threadIdx.x][j]);
    if (target_row == target_column) value = FromReal<T>(RealPart(value));
    a[target_column * lda + target_row] = value;
  }
}

// Uses one block per tile of the n x n block. Writes v^H above the diagonal of a.
template <typename T>
__device__ void StoreInverse(Index n, const T* v, Index ldv, T* a, Index lda) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles = (n + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge, column = blockIdx.x / tiles * kTileEdge;
  if (row < column) return;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    if (row + threadIdx.x < n && column + j < row + threadIdx.x) {
      tile[j][threadIdx.x] = v[(column + j) * ldv + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index target_row = column + threadIdx.x, target_column = row + j;
    if (target_column >= n || target_row >= target_column) continue;
    a[target_column * lda + target_row] = Conj(tile[threadIdx.x][j]);
  }
}

}  // namespace

template <typename T>
constexpr int kChaseRows = sizeof(T) == 16 ? kMostBandComplex128 : kMostBand;

#ifndef KERNEL  // kernels_test.cc defines it
#define KERNEL extern "C" __global__ void
#endif

#define KERNELS(T, R, letter)                                                                      \
  KERNEL jaxmg_add_##letter(Index m, Index n, const T* a, Index lda, T* b, Index ldb) {            \
    for (Index i = FirstElement(); i < m * n; i += ElementStride()) {                              \
      T& sum = b[i / m * ldb + i % m];                                                             \
      sum = Plus(sum, a[i / m * lda + i % m]);                                                     \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_add_determinant_##letter(Index n, const T* u, Index ldu, Index offset,              \
                                        const int* pivots, R* log_abs, T* sign) {                  \
    AddDeterminant(n, u, ldu, offset, pivots, log_abs, sign);                                      \
  }                                                                                                \
  KERNEL jaxmg_add_log_det_##letter(Index n, const T* l, Index ldl, R* sum) {                      \
    AddLogDet(n, l, ldl, sum);                                                                     \
  }                                                                                                \
  KERNEL jaxmg_ascend_##letter(Index n, R* w) { Ascend(n, w); }                                    \
  KERNEL __launch_bounds__(kChaseRows<T>* kChaseGroups, 2)                                         \
      jaxmg_chase_##letter(Index n, Index b, T* band, Index ldb, Index first, Index sweeps, T* v,  \
                           Index ldv, T* tau, Index ldtau, unsigned* progress) {                   \
    Chaser<T, kChaseRows<T>, kChaseGroups>(n, b, band, ldb, first, sweeps, v, ldv, tau, ldtau,     \
                                           progress)                                               \
        .Run();                                                                                    \
  }                                                                                                \
  KERNEL jaxmg_check_all_finite_##letter(Index m, Index n, const T* a, Index lda, int* info) {     \
    CheckAllFinite(m, n, a, lda, info);                                                            \
  }                                                                                                \
  KERNEL jaxmg_check_factor_##letter(Index n, const T* a, Index lda, Index offset,                 \
                                     const int* solver_info, int* failed, int* info, R* sum) {     \
    CheckFactor(n, a, lda, offset, solver_info, failed, info);                                     \
    if (sum != nullptr) AddLogDet(n, a, lda, sum);                                                 \
  }                                                                                                \
  KERNEL jaxmg_check_finite_##letter(Index m, Index n, const T* a, Index lda, Index offset,        \
                                     int* first) {                                                 \
    CheckFinite(m, n, a, lda, offset, first);                                                      \
  }                                                                                                \
  KERNEL jaxmg_check_lu_factor_##letter(Index n, const T* a, Index lda, Index offset,              \
                                        const Index* from_one, int* pivots, int* info) {           \
    CheckLuFactor(n, a, lda, offset, from_one, pivots, info);                                      \
  }                                                                                                \
  KERNEL jaxmg_clear_if_##letter(const int* first, Index n, T* a, Index lda) {                     \
    if (*first != kNoInfo) Fill(n, n, a, lda, FromReal<T>(0));                                     \
  }                                                                                                \
  KERNEL jaxmg_conclude_##letter(const int* records, Index ranks, int* status, int* failure,       \
                                 R* log_det, T* sign, T* x, Index count) {                         \
    Conclude(records, ranks, status, failure, log_det, sign, x, count);                            \
  }                                                                                                \
  KERNEL jaxmg_conj_transpose_##letter(Index m, Index n, const T* a, Index lda, T* b, Index ldb) { \
    ConjTranspose(m, n, a, lda, b, ldb);                                                           \
  }                                                                                                \
  KERNEL jaxmg_conjugate_##letter(Index m, Index n, T* a, Index lda) {                             \
    for (Index i = FirstElement(); i < m * n; i += ElementStride()) {                              \
      a[i / m * lda + i % m] = Conj(a[i / m * lda + i % m]);                                       \
    }                                                                                              \
  }                                                                                                \
  KERNEL __launch_bounds__(kExpandThreads) jaxmg_expand_reflectors_##letter(                       \
      Index n, Index b, Index first, int sweeps, const T* v, Index ldv, const T* tau, Index ldtau, \
      T* blocks, T* weighted) {                                                                    \
    ExpandReflectors<T, kChaseRows<T> + kGroupSweeps - 1, kGroupSweeps>(                           \
        n, b, first, sweeps, v, ldv, tau, ldtau, blocks, weighted);                                \
  }                                                                                                \
  KERNEL __launch_bounds__(kPanelThreads, 1) jaxmg_factor_panel_##letter(                          \
      Index m, int n, T* a, Index lda, T* t, Index ldt, unsigned* arrivals, T* sums, R* largest) { \
    PanelFactor<T, 32>(m, n, a, lda, t, ldt, arrivals, sums, largest).Run();                       \
  }                                                                                                \
  KERNEL __launch_bounds__(kPanelThreads, 1) jaxmg_factor_panel_in_registers_##letter(             \
      Index m, int n, T* a, Index lda, T* t, Index ldt, T* numbers) {                              \
    RegisterPanel<T>(m, n, a, lda, t, ldt, numbers).Run();                                         \
  }                                                                                                \
  KERNEL jaxmg_from_real_##letter(Index m, Index n, const R* a, Index lda, T* b, Index ldb) {      \
    for (Index i = FirstElement(); i < m * n; i += ElementStride()) {                              \
      b[i / m * ldb + i % m] = FromReal<T>(a[i / m * lda + i % m]);                                \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_identity_##letter(Index n, T* a, Index lda) {                                       \
    for (Index i = FirstElement(); i < n * n; i += ElementStride()) {                              \
      a[i / n * lda + i % n] = FromReal<T>(i / n == i % n ? 1 : 0);                                \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_load_inverse_##letter(Index n, int transposed, const T* a, Index lda, T* l, T* v) { \
    LoadInverse(n, transposed, a, lda, l, v);                                                      \
  }                                                                                                \
  KERNEL jaxmg_mirror_lower_##letter(Index n, T* a, Index lda) { MirrorLower(n, a, lda); }         \
  KERNEL jaxmg_move_rows_##letter(Index n, int count, const int* from, const int* to, T* a,        \
                                  Index row, Index column) {                                       \
    MoveRows(n, count, from, to, a, row, column);                                                  \
  }                                                                                                \
  KERNEL jaxmg_take_rows_##letter(Index m, Index first, const int* sources, const T* buffer, T* a, \
                                  Index lda) {                                                     \
    TakeRows(m, first, sources, buffer, a, lda);                                                   \
  }                                                                                                \
  KERNEL jaxmg_pack_band_##letter(Index m, Index n, Index k, const T* a, Index lda, T* band,       \
                                  Index ldb) {                                                     \
    PackBand(m, n, k, a, lda, band, ldb);                                                          \
  }                                                                                                \
  KERNEL jaxmg_multiply_##letter(const T* factors, Index stride, Index count, T* product) {        \
    if (threadIdx.x != 0) return;                                                                  \
    T total = FromReal<T>(1);                                                                      \
    for (Index i = 0; i < count; ++i) total = Times(total, factors[i * stride]);                   \
    *product = total;                                                                              \
  }                                                                                                \
  KERNEL jaxmg_poison_if_##letter(const int* status, Index m, Index n, T* a, Index lda) {          \
    if (*status != 0) Fill(m, n, a, lda, Nan<T>());                                                \
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
  KERNEL jaxmg_sum_reals_##letter(const R* terms, Index stride, Index count, R* sum) {             \
    if (threadIdx.x != 0) return;                                                                  \
    R total = 0;                                                                                   \
    for (Index i = 0; i < count; ++i) total += terms[i * stride];                                  \
    *sum = total;                                                                                  \
  }                                                                                                \
  KERNEL jaxmg_take_tridiagonal_##letter(Index n, const T* band, Index ldb, R* d, R* e) {          \
    TakeTridiagonal(n, band, ldb, d, e);                                                           \
  }                                                                                                \
  KERNEL jaxmg_unpack_reflectors_##letter(Index m, Index k, const T* a, Index lda, T* v,           \
                                          Index ldv) {                                             \
    UnpackReflectors(m, k, a, lda, v, ldv);                                                        \
  }

// LU of a panel, for each maximum number of columns.
#define LU_PANEL(T, letter, columns)                                                            \
  KERNEL __launch_bounds__(kLuThreads, 1) jaxmg_factor_lu_panel_##columns##_##letter(           \
      Index m, int n, T* a, Index lda, Index offset, int* pivots, int* info, TaggedWord* slots, \
      unsigned first_tag, int* moves) {                                                         \
    LuPanel<T, columns>(m, n, a, lda, offset, pivots, info, slots, first_tag, moves).Run();     \
  }

#define LU_KERNELS(T, letter)                                                                 \
  LU_PANEL(T, letter, 32)                                                                     \
  LU_PANEL(T, letter, 16)                                                                     \
  LU_PANEL(T, letter, 8)                                                                      \
  LU_PANEL(T, letter, 4)                                                                      \
  KERNEL __launch_bounds__(kThreads)                                                          \
      jaxmg_step_lu_panel_##letter(int n, T* a, Index lda, int width, int first, int last,    \
                                   int column, int right, const int* moves) {                 \
    LuStep<T>(n, a, lda, width, first, last, column, right, moves).Run();                     \
  }                                                                                           \
  KERNEL __launch_bounds__(kStackLuThreads) jaxmg_factor_stacked_panel_##letter(              \
      int n, int first, int width, T* a, int* pivots, int* moves) {                           \
    FactorStackedPanel(n, first, width, a, pivots, moves);                                    \
  }                                                                                           \
  KERNEL __launch_bounds__(kStackMoveThreads)                                                 \
      jaxmg_move_stacked_rows_##letter(int n, int first, int width, T* a, const int* moves) { \
    MoveStackedRows<T, kStackLuColumns>(n, first, width, a, moves);                           \
  }

LU_KERNELS(float, s)
LU_KERNELS(double, d)
LU_KERNELS(cuComplex, c)
LU_KERNELS(cuDoubleComplex, z)

// Triangles of stacks, and stacks of small matrices.
#define STACK_KERNELS(T, letter)                                                               \
  KERNEL __launch_bounds__(kStackDiagonalThreads)                                              \
      jaxmg_factor_stacked_diagonal_##letter(int n, int first, int width, int upper, T* a) {   \
    FactorStackedDiagonal(n, first, width, upper, a);                                          \
  }                                                                                            \
  KERNEL __launch_bounds__(kStackRows)                                                         \
      jaxmg_solve_stacked_rows_##letter(int n, int first, int width, int upper, T* a) {        \
    SolveStackedRows(n, first, width, upper, a);                                               \
  }                                                                                            \
  KERNEL __launch_bounds__(kStackDiagonal<sizeof(T)>)                                          \
      jaxmg_invert_stacked_diagonal_##letter(int n, int width, int upper, T* a) {              \
    InvertStackedDiagonal(n, width, upper, a);                                                 \
  }                                                                                            \
  KERNEL __launch_bounds__(kStackSubstitutionThreads) jaxmg_solve_stacked_triangle_##letter(   \
      int n, int nrhs, int upper, int adjoint, int unit, const T* a, T* b) {                   \
    SolveStackedTriangle(n, nrhs, upper, adjoint, unit, a, b);                                 \
  }                                                                                            \
  KERNEL __launch_bounds__(32 * (kStackQrWarps + 1)) jaxmg_factor_stacked_qr_panel_##letter(   \
      int m, int n, int first, int width, int in_shared, T* a, T* v, T* t, T* q) {             \
    StackedQrPanel<T>(m, n, first, width, in_shared, a, v, t, q).Run();                        \
  }                                                                                            \
  KERNEL __launch_bounds__(kSmallThreads)                                                      \
      jaxmg_invert_small_##letter(Index count, int n, const T* a, T* inverse) {                \
    InvertSmall(count, n, a, inverse);                                                         \
  }                                                                                            \
  KERNEL __launch_bounds__(kSmallThreads)                                                      \
      jaxmg_solve_small_##letter(Index count, int n, int nrhs, const T* a, const T* b, T* x) { \
    SolveSmall(count, n, nrhs, a, b, x);                                                       \
  }

STACK_KERNELS(float, s)
STACK_KERNELS(double, d)
STACK_KERNELS(cuComplex, c)
STACK_KERNELS(cuDoubleComplex, z)

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

#define TRIANGLE_KERNELS(T, letter)                                            \
  SOLVE_TRIANGLE(T, letter, 1)                                                 \
  SOLVE_TRIANGLE(T, letter, 4)                                                 \
  KERNEL __launch_bounds__(kColumnSolverThreads) jaxmg_solve_columns_##letter( \
      int order, Index columns, const T* l, Index ldl, T* b, Index ldb) {      \
    ColumnSolver<T>(order, columns, l, ldl, b, ldb).Run();                     \
  }

TRIANGLE_KERNELS(float, s)
TRIANGLE_KERNELS(double, d)
TRIANGLE_KERNELS(cuComplex, c)
TRIANGLE_KERNELS(cuDoubleComplex, z)

// The kernels of StackElements.
#define ELEMENT_KERNELS(T, R, letter)                                                             \
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

ELEMENT_KERNELS(float, float, s)
ELEMENT_KERNELS(double, double, d)
ELEMENT_KERNELS(cuComplex, float, c)
ELEMENT_KERNELS(cuDoubleComplex, double, z)

KERNEL jaxmg_add_stack_parts(Index count, int pieces, const double* parts, double* sums) {
  AddStackParts(count, pieces, parts, sums);
}

KERNELS(float, float, s)
KERNELS(double, double, d)
KERNELS(cuComplex, float, c)
KERNELS(cuDoubleComplex, double, z)

// Elementwise operations on whole matrices. U is the dtype in the other precision.
#define MATRIX_KERNELS(T, R, U, letter)                                                            \
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

MATRIX_KERNELS(float, float, double, s)
MATRIX_KERNELS(double, double, float, d)
MATRIX_KERNELS(cuComplex, float, cuDoubleComplex, c)
MATRIX_KERNELS(cuDoubleComplex, double, cuComplex, z)

// Only in double precision.
#define DOUBLE_KERNELS(T, kComplex, letter)                                                      \
  KERNEL __launch_bounds__(GroupShape<kComplex>::kThreads, 1)                                    \
      jaxmg_apply_groups_##letter(Groups groups, Index columns, const T* blocks,                 \
                                  const T* weighted, T* z, Index ldz, unsigned* progress) {      \
    GroupApplier<T, GroupShape<kComplex>>({groups, columns, blocks, weighted, z, ldz, progress}) \
        .Run();                                                                                  \
  }

DOUBLE_KERNELS(double, false, d)
DOUBLE_KERNELS(cuDoubleComplex, true, z)

// Only in single precision.
#define SINGLE_KERNELS(T, letter)                                                                \
  KERNEL jaxmg_row_largest_##letter(Index m, Index n, const T* a, Index lda, float* largest) {   \
    RowLargest(m, n, a, lda, largest);                                                           \
  }                                                                                              \
  KERNEL jaxmg_scale_##letter(int lower, int divide, Index m, Index n, const float* left,        \
                              const float* right, T* a, Index lda) {                             \
    ScaleTile(lower != 0, divide != 0, m, n, left, right, a, lda);                               \
  }                                                                                              \
  KERNEL jaxmg_part_scales_##letter(int turned, Index m, Index n, const T* a, Index lda,         \
                                    float* scales) {                                             \
    PartScales(turned != 0, m, n, a, lda, scales);                                               \
  }                                                                                              \
  KERNEL jaxmg_split_##letter(int left, int turned, int halves, int products, Index m, Index n,  \
                              const T* a, Index lda, const float* scales, unsigned short* parts, \
                              Index ld) {                                                        \
    Split(left != 0, turned != 0, halves != 0, products, m, n, a, lda, scales, parts, ld);       \
  }

SINGLE_KERNELS(float, s)
SINGLE_KERNELS(cuComplex, c)

// Kernels on real numbers, for both real dtypes.
#define REAL_KERNELS(R, letter)                                                                   \
  KERNEL jaxmg_arrange_columns_##letter(Index rows, Index columns, const int* from,               \
                                        const R* source, Index lds, const int* to, R* target,     \
                                        Index ldt) {                                              \
    ArrangeColumns(rows, columns, from, source, lds, to, target, ldt);                            \
  }                                                                                               \
  KERNEL jaxmg_refine_z_##letter(Index k, Index begin, const int* order, const R* d, const R* z,  \
                                 R rho, const R* origin, const R* tau, R* refined) {              \
    RefineZ(k, begin, order, d, z, rho, origin, tau, refined);                                    \
  }                                                                                               \
  KERNEL jaxmg_rotate_columns_##letter(Index rows, const int* starts, const int* first,           \
                                       const int* second, const R* c, const R* s, R* q,           \
                                       Index ldq) {                                               \
    RotateColumns(rows, starts, first, second, c, s, q, ldq);                                     \
  }                                                                                               \
  KERNEL jaxmg_secular_roots_##letter(Index k, Index begin, const R* d, const R* z, R rho,        \
                                      int limit, R* origin, R* tau, R* roots, int* info) {        \
    SecularRoots(k, begin, d, z, rho, limit, origin, tau, roots, info);                           \
  }                                                                                               \
  KERNEL jaxmg_secular_vectors_##letter(Index k, Index begin, const R* d, const R* z,             \
                                        const R* origin, const R* tau, R* u, Index ldu) {         \
    SecularVectors(k, begin, d, z, origin, tau, u, ldu);                                          \
  }                                                                                               \
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

REAL_KERNELS(float, s)
REAL_KERNELS(double, d)

// Copies columns of `height` bytes.
KERNEL jaxmg_copy_columns(char* target, Index target_pitch, const char* source, Index source_pitch,
                          Index height) {
  const Index all = reinterpret_cast<Index>(target) | reinterpret_cast<Index>(source) |
                    target_pitch | source_pitch | height;
  const Index segments = (height + kCopySegment - 1) / kCopySegment, column = blockIdx.x / segments;
  CopySegment(target + column * target_pitch, source + column * source_pitch,
              blockIdx.x % segments * kCopySegment, height, all);
}

// Uses `segments` blocks for each part; smaller parts need fewer.
KERNEL jaxmg_copy_to_parts(PartsToCopy parts, Index segments, const char* source) {
  const Index part = blockIdx.x / segments;
  char* const to = parts.to[part];
  const char* const from = source + parts.starts[part];
  const Index bytes = parts.starts[part + 1] - parts.starts[part];
  CopySegment(to, from, blockIdx.x % segments * kCopySegment, bytes,
              reinterpret_cast<Index>(to) | reinterpret_cast<Index>(from) | bytes);
}

KERNEL jaxmg_fill_int32(int* data, Index count, int value) {
  for (Index i = FirstElement(); i < count; i += ElementStride()) data[i] = value;
}

// Uses one block. `stale` is host memory, or null; `coordinates` may be null. Writes *info, then 0
// to the words after it, up to `words` words, except `one` to word `one_at`.
KERNEL jaxmg_init_info(const int* coordinates, int rank, int group, int* info, int* stale,
                       int words, int one_at, int one) {
  const int word = static_cast<int>(threadIdx.x);
  if (word > 0) {
    if (word < words) info[word] = word == one_at ? one : 0;
    return;
  }
  const bool misplaced =
      coordinates != nullptr && (coordinates[0] != rank || coordinates[1] != group);
  *info = misplaced ? kMisplaced : kNoInfo;
  if (misplaced && stale != nullptr) *stale = 1;
}

// Adds the digest, as the host device computes it, to *digest, which is initially 0. Integer sums
// don't depend on the order.
KERNEL jaxmg_digest(const unsigned* words, Index count, int* digest) {
  unsigned sum = 0;
  for (Index i = FirstElement(); i < count; i += ElementStride()) {
    sum += words[i] * static_cast<unsigned>(2 * i + 1);
  }
  atomicAdd(reinterpret_cast<unsigned*>(digest), sum);
}

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

KERNEL jaxmg_powers_of_two(int root, Index n, float* x) {
  for (Index i = FirstElement(); i < n; i += ElementStride()) x[i] = PowerOfTwo(root != 0, x[i]);
}

KERNEL jaxmg_keep_negative(const int* status, int* failure) {
  if (threadIdx.x == 0) *failure = min(*status, 0);
}

KERNEL jaxmg_reduce_info(const int* pairs, Index stride, Index count, int* status) {
  if (threadIdx.x != 0) return;
  int least = kNoInfo;
  for (Index i = 0; i < count; ++i) {
    least = min(least, pairs[i * stride]);
    if (pairs[i * stride + 1] != pairs[1]) least = min(least, kDifferentOperands);
  }
  *status = least == kNoInfo ? 0 : least;
}

// The result of the check of the matrix takes precedence over the solver's info.
KERNEL jaxmg_set_syevd_info(const int* first, const int* solver_info, int* info) {
  if (threadIdx.x == 0) *info = *first != kNoInfo ? *first : *solver_info;
}

}  // namespace jaxmg::kernels
