// Elementwise operations and sums over whole matrices (matrix_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_MATRIX_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_MATRIX_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/products/noise.h"

namespace jaxmg::kernels {

// Calls f(i, j) for this thread's elements of an m x n matrix.
template <typename F>
__device__ void ForEachElement(Index m, Index n, const F& f) {
  const Index stride = gridDim.x * Index(blockDim.x);
  for (Index e = blockIdx.x * Index(blockDim.x) + threadIdx.x; e < m * n; e += stride) {
    f(e % m, e / m);
  }
}

template <typename T, typename R>
__device__ void Combine(Index m, Index n, R alpha, const T* a, Index lda, R beta, T* c, Index ldc) {
  ForEachElement(m, n, [&](Index i, Index j) {
    T& to = c[j * ldc + i];
    T sum = beta == 0 ? FromReal<T>(0) : Scale(to, beta);
    if (alpha != 0) sum = Plus(Scale(a[j * lda + i], alpha), sum);
    to = sum;
  });
}

template <typename T, typename R>
__device__ void AddToDiagonal(Index m, Index n, Index first, R value, T* a, Index lda) {
  ForEachElement(m, 1, [&](Index i, Index) {
    const Index j = i + first;
    if (j >= 0 && j < n) a[j * lda + i] = Plus(a[j * lda + i], FromReal<T>(value));
  });
}

template <typename T, typename R>
__device__ void ScaleRowsAndColumns(bool divide, Index m, Index n, const R* left, const R* right,
                                    T* a, Index lda) {
  ForEachElement(m, n, [&](Index i, Index j) {
    T x = a[j * lda + i];
    const R row = left == nullptr ? 1 : left[i], column = right == nullptr ? 1 : right[j];
    if (divide) {
      x = FromParts<T>(RealPart(x) / row / column, ImaginaryPart(x) / row / column);
    } else {
      x = Scale(Scale(x, row), column);
    }
    a[j * lda + i] = x;
  });
}

// The factors are powers of two. They are applied one after the other because their product may be
// out of range.
template <typename T, typename R>
__device__ void TimesFactors(Index m, Index n, R first, R second, T* a, Index lda) {
  ForEachElement(m, n, [&](Index i, Index j) {
    a[j * lda + i] = Scale(Scale(a[j * lda + i], first), second);
  });
}

// Uses one block per tile. Blocks above the diagonal have no work: the mirror image below does
// theirs.
template <typename T>
__device__ void MakeHermitian(Index n, T* a, Index lda) {
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles = (n + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge, column = blockIdx.x / tiles * kTileEdge;
  if (row < column) return;
  // The transposed tile from above the diagonal.
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index i = column + threadIdx.x, k = row + j;
    if (i < n && k < n) tile[threadIdx.x][j] = Conj(a[k * lda + i]);
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index i = row + threadIdx.x, k = column + j;
    if (i >= n || k >= n || i < k) continue;
    T mean = Scale(Plus(a[k * lda + i], tile[j][threadIdx.x]), typename RealOf<T>::type(0.5));
    if (i == k) mean = FromReal<T>(RealPart(mean));
    a[k * lda + i] = mean;
    tile[j][threadIdx.x] = mean;
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index i = column + threadIdx.x, k = row + j;
    if (i < n && k < n && i < k) a[k * lda + i] = Conj(tile[threadIdx.x][j]);
  }
}

template <typename T>
__device__ void ClearTriangle(bool upper, Index m, Index n, T* a, Index lda) {
  ForEachElement(m, n, [&](Index i, Index j) {
    if (upper ? i < j : i > j) a[j * lda + i] = FromReal<T>(0);
  });
}

// Uses kSquareSums blocks of kThreads; each block writes a sum.
template <typename T>
__device__ void SquareSums(bool apart, Index m, Index n, const T* a, Index lda, double* sums) {
  __shared__ double partial[kThreads];
  double sum = 0;
  ForEachElement(m, n, [&](Index i, Index j) {
    const T x = a[j * lda + i];
    const double re = static_cast<double>(RealPart(x)) - (apart && i == j ? 1 : 0);
    const double im = ImaginaryPart(x);
    sum += re * re + im * im;
  });
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

// Every thread adds the terms, in the same order.
template <typename T>
__device__ void DivideByRoot(int count, Index m, Index n, const double* terms, T* a, Index lda) {
  using R = typename RealOf<T>::type;
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += terms[i];
  if (sum == 0) return;
  const R root = static_cast<R>(sqrt(sum));
  ForEachElement(m, n, [&](Index i, Index j) {
    const T x = a[j * lda + i];
    a[j * lda + i] = FromParts<T>(RealPart(x) / root, ImaginaryPart(x) / root);
  });
}

__device__ inline void RaiseTo(float* largest, float x) {
  // Nonnegative numbers have the order of their bits; NaN is the largest.
  atomicMax(reinterpret_cast<unsigned*>(largest), __float_as_uint(x) & 0x7fffffff);
}
__device__ inline void RaiseTo(double* largest, double x) {
  atomicMax(reinterpret_cast<unsigned long long*>(largest),
            static_cast<unsigned long long>(__double_as_longlong(x)) & 0x7fffffffffffffff);
}
template <typename R>
__device__ R LargerOrNan(R largest, R x) {
  return fabs(x) <= largest || largest != largest ? largest : fabs(x);
}

// A thread processes kLargestColumns columns of a row at a time.
template <typename T, typename R>
__device__ void LargestOfRows(Index m, Index n, const T* a, Index lda, R* largest) {
  ForEachElement(m, (n + kLargestColumns - 1) / kLargestColumns, [&](Index i, Index piece) {
    const Index first = piece * kLargestColumns, end = min(first + kLargestColumns, n);
    R found = 0;
    for (Index j = first; j < end; ++j) {
      const T x = a[j * lda + i];
      found = LargerOrNan(LargerOrNan(found, RealPart(x)), ImaginaryPart(x));
    }
    RaiseTo(largest + i, found);
  });
}

template <typename T, typename R>
__device__ void RootsOfDiagonal(Index n, const T* a, Index lda, R* roots) {
  ForEachElement(n, 1, [&](Index i, Index) {
    const R root = sqrt(RealPart(a[i * lda + i]));
    roots[i] = root > 0 && isfinite(root) ? root : 1;
  });
}

template <typename T, typename R>
__device__ void SignsOfDiagonal(Index n, const T* a, Index lda, R* signs) {
  ForEachElement(n, 1, [&](Index i, Index) { signs[i] = RealPart(a[i * lda + i]) < 0 ? -1 : 1; });
}

template <typename T, typename R>
__device__ void TakeScaledRows(Index m, Index n, const int* rows, const R* factors, const T* a,
                               Index lda, T* c, Index ldc) {
  ForEachElement(m, n, [&](Index i, Index j) {
    const T x = a[j * lda + rows[i]];
    c[j * ldc + i] = factors == nullptr ? x : Scale(x, factors[i]);
  });
}

template <typename T, typename R>
__device__ void AddNoise(Index m, Index n, Index row, Index column, R size, T* a, Index lda) {
  ForEachElement(m, n, [&](Index i, Index j) {
    const R noise = size * static_cast<R>(NoiseAt(row + i, column + j));
    a[j * lda + i] = Plus(a[j * lda + i], FromReal<T>(noise));
  });
}

template <typename T, typename U>
__device__ void ConvertTo(Index m, Index n, const T* a, Index lda, U* c, Index ldc) {
  using R = typename RealOf<U>::type;
  ForEachElement(m, n, [&](Index i, Index j) {
    const T x = a[j * lda + i];
    c[j * ldc + i] = FromParts<U>(static_cast<R>(RealPart(x)), static_cast<R>(ImaginaryPart(x)));
  });
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_MATRIX_CUH_
