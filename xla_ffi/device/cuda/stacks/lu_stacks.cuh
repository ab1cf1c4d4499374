// LU with partial pivoting of stacks of matrices: the kernels of StackKernels::FactorLu other than
// products. Matrices are n x n, row-major, one after the other.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_LU_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_LU_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// Returns the magnitude by which LAPACK compares pivots. NaN counts as infinity, so that the search
// finds it.
template <typename T>
__device__ typename RealOf<T>::type StackedPivotSize(T x) {
  using R = typename RealOf<T>::type;
  const R size = fabs(RealPart(x)) + fabs(ImaginaryPart(x));
  return size == size ? size : R(__int_as_float(0x7f800000));
}

// Uses one block of kStackLuThreads for each matrix. Factors its panel: the columns [first, first +
// width) of its rows from `first` on. The panel is in shared memory, column by column, followed by
// the number of each row.
//
// Writes the moves of rows by the panel's interchanges, counted from `first`: moves[k] is the row
// that moves to place k < width. moves[width + k] is the place of row k if it moves to `width` or
// beyond, else -1. There are 2 `width` of them for each matrix.
template <typename T>
__device__ void FactorStackedPanel(int n, int first, int width, T* a, int* pivots, int* moves) {
  using R = typename RealOf<T>::type;
  constexpr int kWarps = kStackLuThreads / 32;
  __shared__ R sizes[kWarps];
  __shared__ int places[kWarps];
  __shared__ int chosen;
  const int rows = n - first, ld = rows | 1;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  T* const x = static_cast<T*>(DynamicShared());
  int* const row_at = reinterpret_cast<int*>(x + ld * width);
  a += blockIdx.x * Index(n) * n + first * Index(n) + first;
  pivots += blockIdx.x * Index(n) + first;
  moves += blockIdx.x * Index(2) * width;

  for (int i = thread; i < rows * width; i += threads) {
    x[i % width * ld + i / width] = a[i / width * Index(n) + i % width];
  }
  for (int r = thread; r < rows; r += threads) row_at[r] = r;
  __syncthreads();
  // The best of this thread's rows for the next pivot.
  R best = -1;
  int place = rows;
  auto consider = [&](int r, T value) {
    const R size = StackedPivotSize(value);
    if (size > best) best = size, place = r;
  };
  for (int r = thread; r < rows; r += threads) consider(r, x[r]);

  for (int j = 0; j < width; ++j) {
    auto keep_better = [&](R size, int r) {
      if (size > best || (size == best && r < place)) best = size, place = r;
    };
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const R size = __shfl_xor_sync(~0u, best, lanes);
      keep_better(size, __shfl_xor_sync(~0u, place, lanes));
    }
    if (thread % 32 == 0) sizes[thread / 32] = best, places[thread / 32] = place;
    __syncthreads();
    if (thread == 0) {
      for (int warp = 1; warp < threads / 32; ++warp) keep_better(sizes[warp], places[warp]);
      chosen = place;
      pivots[j] = first + chosen;
      const int row = row_at[chosen];
      row_at[chosen] = row_at[j];
      row_at[j] = row;
    }
    __syncthreads();
    const int pivot_row = chosen;
    if (thread < width && pivot_row != j) {
      T* const column = x + thread * ld;
      const T value = column[j];
      column[j] = column[pivot_row];
      column[pivot_row] = value;
    }
    __syncthreads();
    const T pivot = x[j * ld + j];
    best = -1, place = rows;
    for (int r = j + 1 + thread; r < rows; r += threads) {
      const T ratio = IsZero(pivot) ? x[j * ld + r] : Divide(x[j * ld + r], pivot);
      x[j * ld + r] = ratio;
      const T factor = Scale(ratio, R(-1));
      for (int c = j + 1; c < width; ++c) {
        const T value = MultiplyAdd(factor, x[c * ld + j], x[c * ld + r]);
        x[c * ld + r] = value;
        if (c == j + 1) consider(r, value);
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < rows * width; i += threads) {
    a[i / width * Index(n) + i % width] = x[i % width * ld + i / width];
  }
  for (int k = thread; k < width; k += threads) {
    moves[k] = row_at[k];
    moves[width + k] = -1;
  }
  __syncthreads();
  for (int r = width + thread; r < rows; r += threads) {
    if (row_at[r] < width) moves[width + row_at[r]] = r;
  }
}

// Moves the other columns of the rows that the panel has moved. In columns right of the panel it
// computes the rows of U: the solution with the panel's unit lower triangle. Uses one thread for
// each column. kWidth is the largest `width`.
template <typename T, int kWidth>
__device__ void MoveStackedRows(int n, int first, int width, T* a, const int* moves) {
  using R = typename RealOf<T>::type;
  __shared__ __align__(16) unsigned char memory[kWidth * kWidth * sizeof(T)];
  T* const lower = reinterpret_cast<T*>(memory);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int blocks = (n - width + threads - 1) / threads;
  const int matrix = static_cast<int>(blockIdx.x) / blocks;
  const int index = static_cast<int>(blockIdx.x) % blocks * threads + thread;
  const int column = index < first ? index : index + width;
  a += matrix * Index(n) * n + first * Index(n);
  moves += matrix * Index(2) * width;
  for (int i = thread; i < width * width; i += threads) {
    lower[i / width * kWidth + i % width] = a[i / width * Index(n) + first + i % width];
  }
  __syncthreads();
  if (column >= n) return;
  T* const x = a + column;
  T top[kWidth];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    if (k < width) top[k] = x[moves[k] * Index(n)];
  }
  for (int k = 0; k < width; ++k) {
    const int to = moves[width + k];
    if (to >= 0) x[to * Index(n)] = x[k * Index(n)];
  }
  if (column > first) {
#pragma unroll
    for (int k = 1; k < kWidth; ++k) {
#pragma unroll
      for (int i = 0; i < k; ++i) {
        if (k < width) top[k] = MultiplyAdd(Scale(lower[k * kWidth + i], R(-1)), top[i], top[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    if (k < width) x[k * Index(n)] = top[k];
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_LU_STACKS_CUH_
