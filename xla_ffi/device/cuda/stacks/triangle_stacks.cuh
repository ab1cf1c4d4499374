// Cholesky factorizations and inverses of triangles of stacks of matrices: the kernels of
// StackKernels::FactorCholesky and InvertTriangle other than products. Matrices are n x n,
// row-major, one after the other.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_TRIANGLE_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_TRIANGLE_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/packs.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// A lower triangular matrix of a stack. If `upper`, its transpose is stored.
template <typename T>
class StackedLower {
 public:
  __device__ StackedLower(T* a, int n, int upper, int matrix)
      : a_(a + matrix * Index(n) * n), n_(n), upper_(upper) {}

  __device__ T& operator()(int i, int j) const {
    return upper_ ? a_[j * Index(n_) + i] : a_[i * Index(n_) + j];
  }

  // Calls f(i, j) for all i < rows and j < columns, with neighboring elements in a warp.
  template <typename F>
  __device__ void ForEach(int rows, int columns, const F& f) const {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int warps = static_cast<int>(blockDim.x / 32);
    const int outer = upper_ ? columns : rows, inner = upper_ ? rows : columns;
    for (int o = warp; o < outer; o += warps) {
      for (int k = lane; k < inner; k += 32) {
        if (upper_) {
          f(k, o);
        } else {
          f(o, k);
        }
      }
    }
  }

 private:
  T* const a_;
  const int n_, upper_;
};

// A diagonal block in shared memory, column by column: the triangle of order `width` from row
// `first` on, followed by ones on the diagonal up to `order`, a multiple of kStackTriangle.
template <typename T>
struct StackedBlock {
  T* l;
  int order, ld;

  __device__ StackedBlock(T* memory, int width)
      : l(memory),
        order((width + kStackTriangle - 1) / kStackTriangle * kStackTriangle),
        ld(order + Pack<T>::kSize) {}

  __device__ T& operator()(int i, int j) const { return l[j * ld + i]; }

  // Loads the block asynchronously; AwaitCopies and __syncthreads wait for it.
  __device__ void Load(const StackedLower<T>& a, int first, int width) const {
    a.ForEach(order, order, [&](int i, int j) {
      T* const x = &(*this)(i, j);
      if (j <= i && i < width) {
        CopyAsync<sizeof(T)>(x, &a(first + i, first + j));
      } else {
        *x = FromReal<T>(i == j ? 1 : 0);
      }
    });
  }
};

// Rows next to such a block, in shared memory after it. Neighboring rows begin in different banks.
template <typename T>
struct StackedRows {
  T* rows;
  int ld;

  __device__ explicit StackedRows(const StackedBlock<T>& block)
      : rows(block.l + block.order * block.ld), ld(block.order | 1) {}

  __device__ T& operator()(int i, int j) const { return rows[i * ld + j]; }
};

// Overwrites the row b with b L^-H, in registers: `order` elements, `step` apart; elements before
// `begin` are 0. `reciprocals` holds the reciprocals of L's diagonal. All threads read the same
// element of L at the same time.
template <typename T>
__device__ void SolveStackedRow(const StackedBlock<T>& l, int begin, int order,
                                const T* reciprocals, T* row, int step) {
  for (int first = begin; first < order; first += kStackTriangle) {
    T x[kStackTriangle];
#pragma unroll
    for (int j = 0; j < kStackTriangle; ++j) x[j] = row[(first + j) * step];
#pragma unroll 2
    for (int p = begin; p < first; ++p) {
      SubtractPacks<kStackTriangle, true>(row[p * step], &l(first, p), 0, x);
    }
#pragma unroll
    for (int j = 0; j < kStackTriangle; ++j) {
      x[j] = Times(x[j], Conj(reciprocals[first + j]));
      SubtractPacks<kStackTriangle, true>(x[j], &l(first, first + j), j + 1, x);
    }
#pragma unroll
    for (int j = 0; j < kStackTriangle; ++j) row[(first + j) * step] = x[j];
  }
}

// Computes the Cholesky factor of the block of order kStackTriangle at `first`, with one warp that
// has a row in each thread. A pivot that isn't positive becomes NaN, and so do all later ones.
template <typename T>
__device__ void FactorStackedBlock(const StackedBlock<T>& l, int first, T* reciprocals) {
  using R = typename RealOf<T>::type;
  __shared__ __align__(16) unsigned char memory[2 * kStackTriangle * sizeof(T)];
  T* const columns = reinterpret_cast<T*>(memory);
  const int lane = static_cast<int>(threadIdx.x % 32);
  T x[kStackTriangle];
#pragma unroll
  for (int j = 0; j < kStackTriangle; ++j) x[j] = l(first + lane, first + j);
#pragma unroll
  for (int j = 0; j < kStackTriangle; ++j) {
    const R pivot = __shfl_sync(~0u, RealPart(x[j]), j);
    const R root = pivot > 0 ? sqrt(pivot) : RealPart(Nan<T>());
    const R reciprocal = 1 / root;
    x[j] = lane == j ? FromReal<T>(root) : Scale(x[j], reciprocal);
    if (lane == j) reciprocals[first + j] = FromReal<T>(reciprocal);
    T* const column = columns + j % 2 * kStackTriangle;  // others may still read the last one
    column[lane] = x[j];
    __syncwarp();
    SubtractPacks<kStackTriangle, true>(x[j], column, j + 1, x);
  }
#pragma unroll
  for (int j = 0; j < kStackTriangle; ++j) {
    l(first + lane, first + j) = j <= lane ? x[j] : FromReal<T>(0);
  }
}

// Subtracts from the second block of order kStackTriangle the product of the rows left of it. A
// thread has kPart columns of a row.
template <typename T>
__device__ void UpdateStackedBlock(const StackedBlock<T>& l) {
  constexpr int kPart = 8;
  const int i = kStackTriangle + static_cast<int>(threadIdx.x % 32);
  for (int part = static_cast<int>(threadIdx.x / 32); part < kStackTriangle / kPart;
       part += static_cast<int>(blockDim.x / 32)) {
    const int first = kStackTriangle + part * kPart;
    T x[kPart];
#pragma unroll
    for (int j = 0; j < kPart; ++j) x[j] = l(i, first + j);
#pragma unroll 2
    for (int p = 0; p < kStackTriangle; ++p)
      SubtractPacks<kPart, true>(l(i, p), &l(first, p), 0, x);
#pragma unroll
    for (int j = 0; j < kPart; ++j) l(i, first + j) = x[j];
  }
}

// Uses one block for each matrix. Factors the diagonal block of order `width` at `first`, with 0
// above it. If this is the last block and the factor has NaN, the whole triangle becomes NaN.
template <typename T>
__device__ void FactorStackedDiagonal(int n, int first, int width, int upper, T* a) {
  constexpr int kMost = kStackDiagonal<sizeof(T)>;
  __shared__ __align__(16) unsigned char memory[kMost * sizeof(T)];
  T* const reciprocals = reinterpret_cast<T*>(memory);
  const StackedLower<T> whole(a, n, upper, static_cast<int>(blockIdx.x));
  const StackedBlock<T> l(static_cast<T*>(DynamicShared()), width);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  l.Load(whole, first, width);
  AwaitCopies();
  __syncthreads();
  if (thread < 32) FactorStackedBlock(l, 0, reciprocals);
  __syncthreads();
  if (l.order > kStackTriangle) {
    if (thread < kStackTriangle) {
      SolveStackedRow(l, 0, kStackTriangle, reciprocals, &l(kStackTriangle + thread, 0), l.ld);
    }
    __syncthreads();
    UpdateStackedBlock(l);
    __syncthreads();
    if (thread < 32) FactorStackedBlock(l, kStackTriangle, reciprocals);
    __syncthreads();
  }
  whole.ForEach(width, width, [&](int i, int j) { whole(first + i, first + j) = l(i, j); });
  const auto last = RealPart(l(width - 1, width - 1));
  if (first + width < n || last == last) return;
  __syncthreads();
  whole.ForEach(n, n, [&](int i, int j) {
    if (j <= i) whole(i, j) = Nan<T>();
  });
}

// Computes the rows below that block, with one row in each thread of a block. Sets the columns
// right of the diagonal block to 0.
template <typename T>
__device__ void SolveStackedRows(int n, int first, int width, int upper, T* a) {
  constexpr int kMost = kStackDiagonal<sizeof(T)>;
  __shared__ __align__(16) unsigned char memory[kMost * sizeof(T)];
  T* const reciprocals = reinterpret_cast<T*>(memory);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int blocks = (n - first - width + threads - 1) / threads;
  const StackedLower<T> whole(a, n, upper, static_cast<int>(blockIdx.x) / blocks);
  const StackedBlock<T> l(static_cast<T*>(DynamicShared()), width);
  const StackedRows<T> rows(l);
  const int begin = first + width + static_cast<int>(blockIdx.x) % blocks * threads;
  const int count = n - begin < threads ? n - begin : threads;
  l.Load(whole, first, width);
  whole.ForEach(count, l.order, [&](int i, int j) {
    if (j < width) {
      CopyAsync<sizeof(T)>(&rows(i, j), &whole(begin + i, first + j));
    } else {
      rows(i, j) = FromReal<T>(0);
    }
  });
  AwaitCopies();
  __syncthreads();
  for (int j = thread; j < l.order; j += threads) {
    reciprocals[j] = Divide(FromReal<T>(1), l(j, j));
  }
  __syncthreads();
  if (thread < count) SolveStackedRow(l, 0, l.order, reciprocals, &rows(thread, 0), 1);
  __syncthreads();
  whole.ForEach(count, width, [&](int i, int j) { whole(begin + i, first + j) = rows(i, j); });
  whole.ForEach(width, count, [&](int i, int j) { whole(first + i, begin + j) = FromReal<T>(0); });
}

// Inverts each diagonal block; all except the last one have order `width`.
template <typename T>
__device__ void InvertStackedDiagonal(int n, int width, int upper, T* a) {
  constexpr int kMost = kStackDiagonal<sizeof(T)>;
  __shared__ __align__(16) unsigned char memory[kMost * sizeof(T)];
  T* const reciprocals = reinterpret_cast<T*>(memory);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int blocks = (n + width - 1) / width;
  const int first = static_cast<int>(blockIdx.x) % blocks * width;
  if (n - first < width) width = n - first;
  const StackedLower<T> whole(a, n, upper, static_cast<int>(blockIdx.x) / blocks);
  const StackedBlock<T> l(static_cast<T*>(DynamicShared()), width);
  const StackedRows<T> rows(l);  // rows of L^-H
  l.Load(whole, first, width);
  whole.ForEach(l.order, l.order, [&](int i, int j) { rows(i, j) = FromReal<T>(i == j ? 1 : 0); });
  AwaitCopies();
  __syncthreads();
  for (int j = thread; j < l.order; j += threads) {
    reciprocals[j] = Divide(FromReal<T>(1), l(j, j));
  }
  __syncthreads();
  for (int i = thread; i < l.order; i += threads) {
    const int begin = i / kStackTriangle * kStackTriangle;
    SolveStackedRow(l, begin, l.order, reciprocals, &rows(i, 0), 1);
  }
  __syncthreads();
  whole.ForEach(width, width, [&](int i, int j) {
    if (j <= i) whole(first + i, first + j) = Conj(rows(j, i));
  });
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_TRIANGLE_STACKS_CUH_
