// Inverses and solutions of stacks of matrices of order at most kMostSmall: the kernels of
// StackKernels::InvertSmall and SolveSmall. Matrices are n x n, row-major, one after the other.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SMALL_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SMALL_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/packs.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/stacks/lu_stacks.cuh"

namespace jaxmg::kernels {

// A matrix in a warp's registers, with a row in each thread, for elimination with partial pivoting.
// Rows stay in place: each thread stores the step at which its row had the pivot.
template <typename T>
class SmallMatrix {
  using R = typename RealOf<T>::type;
  static constexpr int kOrder = kMostSmall, kLd = kOrder + 1;
  static_assert(kOrder == 32, "the threads of a warp");

 public:
  // Size of a warp's dynamic shared memory.
  static constexpr int kBytes = kOrder * kLd * static_cast<int>(sizeof(T));

  __device__ SmallMatrix(int n, const T* a, T* shared)
      : n_(n), lane_(static_cast<int>(threadIdx.x % 32)), shared_(shared) {
    for (int e = lane_; e < n * n; e += 32) {
      CopyAsync<sizeof(T)>(shared_ + e / n * kLd + e % n, a + e);
    }
    AwaitCopies();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kOrder; ++j) {
      x_[j] = lane_ < n && j < n ? shared_[lane_ * kLd + j] : FromReal<T>(0);
    }
    __syncwarp();
  }

  // Computes A^-1 by Gauss-Jordan elimination.
  __device__ void Invert(T* inverse) {
#pragma unroll
    for (int k = 0; k < kOrder; ++k) {
      if (k >= n_) break;
      const int pivot = FindPivot(k, x_[k]);
      T* const row = Row(k);
      if (lane_ == pivot) {
        const T reciprocal = Divide(FromReal<T>(1), x_[k]);
        x_[k] = FromReal<T>(1);
#pragma unroll
        for (int j = 0; j < kOrder; ++j) {
          x_[j] = Times(x_[j], reciprocal);
          row[j] = x_[j];
        }
      }
      __syncwarp();
      if (lane_ != pivot) {
        const T factor = x_[k];
        x_[k] = FromReal<T>(0);
        SubtractPacks<kOrder, false>(factor, row, 0, x_);
      }
    }
    // The registers hold the inverse with permuted rows and columns. This lane's row goes to row
    // step_, the step in which it was the pivot; column k goes to the column with the index of the
    // row that was the pivot in step k.
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kOrder; ++k) {
      const int row = __shfl_sync(~0u, place_, k);
      if (k < n_ && lane_ < n_) shared_[step_ * kLd + row] = x_[k];
    }
    __syncwarp();
    for (int e = lane_; e < n_ * n_; e += 32) inverse[e] = shared_[e / n_ * kLd + e % n_];
  }

  // Computes A^-1 b for n x nrhs columns, nrhs <= kMostSmallColumns, by elimination and
  // substitution.
  __device__ void Solve(int nrhs, const T* b, T* solution) {
    T y[kMostSmallColumns];
#pragma unroll
    for (int c = 0; c < kMostSmallColumns; ++c) {
      y[c] = lane_ < n_ && c < nrhs ? b[lane_ * nrhs + c] : FromReal<T>(0);
    }
    T reciprocal = FromReal<T>(1);
#pragma unroll
    for (int k = 0; k < kOrder; ++k) {
      if (k >= n_) break;
      const int pivot = FindPivot(k, x_[k]);
      T* const row = Row(k);
      if (lane_ == pivot) {
        reciprocal = Divide(FromReal<T>(1), x_[k]);
#pragma unroll
        for (int j = k; j < kOrder; ++j) row[j] = x_[j];
        row[k] = reciprocal;
      }
      __syncwarp();
      const bool later = step_ < 0;
      const T factor = later ? Times(x_[k], row[k]) : FromReal<T>(0);
      if (later) SubtractPacks<kOrder, false>(factor, row, k + 1, x_);
#pragma unroll
      for (int c = 0; c < kMostSmallColumns; ++c) {
        if (c < nrhs) {
          const T of_pivot = FromLane(y[c], pivot);
          if (later) y[c] = MinusTimes(factor, of_pivot, y[c]);
        }
      }
    }
#pragma unroll
    for (int k = kOrder - 1; k >= 0; --k) {
      if (k >= n_) continue;
      const int pivot = __shfl_sync(~0u, place_, k);
#pragma unroll
      for (int c = 0; c < kMostSmallColumns; ++c) {
        if (c < nrhs) {
          if (lane_ == pivot) y[c] = Times(y[c], reciprocal);
          const T known = FromLane(y[c], pivot);
          if (step_ < k) y[c] = MinusTimes(x_[k], known, y[c]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kMostSmallColumns; ++c) {
      if (lane_ < n_ && c < nrhs) solution[step_ * nrhs + c] = y[c];
    }
  }

 private:
  // Returns the row of the next pivot, given the values of its column.
  __device__ int FindPivot(int k, T value) {
    R size = step_ < 0 && lane_ < n_ ? StackedPivotSize(value) : R(-1);
    int row = lane_;
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const R other = __shfl_xor_sync(~0u, size, lanes);
      const int its_row = __shfl_xor_sync(~0u, row, lanes);
      if (other > size || (other == size && its_row < row)) size = other, row = its_row;
    }
    if (lane_ == row) step_ = k;
    if (lane_ == k) place_ = row;
    return row;
  }

  // Memory for a pivot's row, aligned like a Pack. Double-buffered, because the last step's row may
  // still be read.
  __device__ T* Row(int k) const { return shared_ + k % 2 * kOrder; }

  __device__ static T FromLane(T x, int lane) {
    return FromParts<T>(__shfl_sync(~0u, RealPart(x), lane),
                        __shfl_sync(~0u, ImaginaryPart(x), lane));
  }

  const int n_, lane_;
  T* const shared_;
  int step_ = -1;   // the step at which this row had the pivot
  int place_ = -1;  // the row that had the pivot at step lane_
  T x_[kOrder];
};

// Uses a warp for each matrix.
template <typename T>
class SmallWarp {
 public:
  __device__ SmallWarp()
      : matrix((blockIdx.x * Index(blockDim.x) + threadIdx.x) / 32),
        shared(static_cast<T*>(DynamicShared()) +
               threadIdx.x / 32 * (SmallMatrix<T>::kBytes / static_cast<int>(sizeof(T)))) {}

  const Index matrix;
  T* const shared;
};

template <typename T>
__device__ void InvertSmall(Index count, int n, const T* a, T* inverse) {
  const SmallWarp<T> warp;
  if (warp.matrix >= count) return;
  const Index first = warp.matrix * n * n;
  SmallMatrix<T>(n, a + first, warp.shared).Invert(inverse + first);
}

template <typename T>
__device__ void SolveSmall(Index count, int n, int nrhs, const T* a, const T* b, T* x) {
  const SmallWarp<T> warp;
  if (warp.matrix >= count) return;
  const Index first = warp.matrix * n * nrhs;
  SmallMatrix<T>(n, a + warp.matrix * n * n, warp.shared).Solve(nrhs, b + first, x + first);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SMALL_STACKS_CUH_
