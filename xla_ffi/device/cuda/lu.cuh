// LU panels, row interchanges and determinants on the device (lu_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/copies.cuh"
#include "xla_ffi/device/cuda/scalars.cuh"
#include "xla_ffi/device/cuda/signals.cuh"

namespace jaxmg::kernels {

// What LAPACK compares pivots by. NaN counts as infinity, so that it is found.
template <typename T>
__device__ typename RealOf<T>::type PivotSize(T x) {
  const auto size = fabs(RealPart(x)) + fabs(ImaginaryPart(x));
  return size == size ? size : typename RealOf<T>::type(__int_as_float(0x7f800000));
}

__device__ inline float Divide(float x, float y) { return x / y; }
__device__ inline double Divide(double x, double y) { return x / y; }
// Smith's algorithm, which neither overflows nor vanishes on the way.
template <typename T>
__device__ T Divide(T x, T y) {
  if (fabs(y.x) >= fabs(y.y)) {
    const auto ratio = y.y / y.x, divisor = y.x + y.y * ratio;
    return FromParts<T>((x.x + x.y * ratio) / divisor, (x.y - x.x * ratio) / divisor);
  }
  const auto ratio = y.x / y.y, divisor = y.x * ratio + y.y;
  return FromParts<T>((x.x * ratio + x.y) / divisor, (x.y * ratio - x.x) / divisor);
}

// LU with partial pivoting of an m x n panel, n at most kLuColumns. The blocks run at the same time
// and share one barrier a column. Each block keeps rows of its own in shared memory.
//
// Before the barrier, each block writes the row of its largest element of column j, and the block
// that has row j writes that row. After it, all blocks choose the same pivot from these candidates,
// the two blocks concerned exchange the rows, and each block updates its rows by column j.
template <typename T>
class LuPanel {
  using R = typename RealOf<T>::type;

 public:
  // `met` is 0 at first. `rows` has room for 2 n (blocks + 1), `sizes` and `places` for 2 blocks.
  __device__ LuPanel(Index m, int n, T* a, Index lda, Index offset, int* pivots, int* info,
                     unsigned* met, T* rows, R* sizes, int* places)
      : n_(n),
        k_(static_cast<int>(min(m, Index(n)))),
        blocks_(static_cast<int>(gridDim.x)),
        block_(static_cast<int>(blockIdx.x)),
        stride_(static_cast<int>((m + blocks_ - 1) / blocks_)),
        begin_(min(m, Index(stride_) * block_)),
        count_(static_cast<int>(min(m, begin_ + stride_) - begin_)),
        a_(a),
        lda_(lda),
        offset_(offset),
        pivots_(pivots),
        info_(info),
        met_(met),
        rows_(rows),
        sizes_(sizes),
        places_(places) {}

  __device__ void Run() {
    ForElements(0, [&](int c, int r) { At(c, r) = a_[begin_ + r + c * lda_]; });
    __syncthreads();
    for (int j = 0; j < k_; ++j) {
      Propose(j);
      Meet(j + 1);
      Take(j);
    }
    ForElements(0, [&](int c, int r) { a_[begin_ + r + c * lda_] = At(c, r); });
  }

 private:
  static constexpr int kLeaders = 32;

  struct Candidate {
    R size;
    int row;
    __device__ bool Beats(const Candidate& other) const {
      return size > other.size || (size == other.size && row < other.row);
    }
  };
  struct Shared {
    Candidate of_thread[kLuThreads], of_block[kLuBlocks], of_leader[kLeaders];
    T pivot[kLuColumns], top[kLuColumns];
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) Shared memory;
    return memory;
  }

  __device__ T& At(int c, int r) const { return static_cast<T*>(DynamicShared())[c * stride_ + r]; }
  // By turns, so that a block may be one column ahead of another one that still reads.
  __device__ T* RowOf(int j, int block) const {
    return rows_ + (Index(j & 1) * (blocks_ + 1) + block) * n_;
  }
  __device__ bool Owns(Index row) const { return begin_ <= row && row < begin_ + count_; }

  __device__ void Meet(int times) {
    __syncthreads();
    if (blocks_ == 1) return;
    if (threadIdx.x == 0) {
      Arrive(met_);
      while (!Seen(met_, static_cast<unsigned>(times) * gridDim.x)) {
      }
    }
    __syncthreads();
  }

  // f(column, row of this block) for columns from `first` on; a thread has a row's elements as far
  // as there are rows enough.
  template <typename F>
  __device__ void ForElements(int first, const F& f) const {
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int width = max(1, min(threads, count_)), teams = threads / width;
    if (thread >= teams * width) return;
    for (int r = thread % width; r < count_; r += width) {
      for (int c = first + thread / width; c < n_; c += teams) f(c, r);
    }
  }

  // The best of `count` candidates; every thread gets it.
  __device__ Candidate Best(const Candidate* candidates, int count) const {
    Shared& s = shared();
    const int leaders = min(kLeaders, static_cast<int>(blockDim.x));
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads();
    if (thread < leaders) {
      Candidate best = {-1, kNoInfo};
      for (int i = thread; i < count; i += leaders) {
        if (candidates[i].Beats(best)) best = candidates[i];
      }
      s.of_leader[thread] = best;
    }
    __syncthreads();
    Candidate best = s.of_leader[0];
    for (int i = 1; i < leaders; ++i) {
      if (s.of_leader[i].Beats(best)) best = s.of_leader[i];
    }
    return best;
  }

  __device__ void Propose(int j) {
    Shared& s = shared();
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    Candidate mine = {-1, kNoInfo};
    for (int r = thread; r < count_; r += threads) {
      const int row = static_cast<int>(begin_ + r);
      const Candidate candidate = {PivotSize(At(j, r)), row};
      if (row >= j && candidate.Beats(mine)) mine = candidate;
    }
    s.of_thread[thread] = mine;
    const Candidate best = Best(s.of_thread, threads);
    if (thread == 0) {
      sizes_[(j & 1) * blocks_ + block_] = best.size;
      places_[(j & 1) * blocks_ + block_] = best.row;
    }
    for (int c = thread; c < n_; c += threads) {
      if (best.size >= 0) RowOf(j, block_)[c] = At(c, static_cast<int>(best.row - begin_));
      if (Owns(j)) RowOf(j, blocks_)[c] = At(c, static_cast<int>(j - begin_));
    }
  }

  __device__ void Take(int j) {
    Shared& s = shared();
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    for (int b = thread; b < blocks_; b += threads) {
      s.of_block[b] = {sizes_[(j & 1) * blocks_ + b], places_[(j & 1) * blocks_ + b]};
    }
    const Candidate best = Best(s.of_block, blocks_);
    const int owner = best.row / stride_;
    for (int c = thread; c < n_; c += threads) {
      s.pivot[c] = RowOf(j, owner)[c];
      s.top[c] = RowOf(j, blocks_)[c];
      if (best.row != j && Owns(best.row)) At(c, static_cast<int>(best.row - begin_)) = s.top[c];
      if (Owns(j)) At(c, static_cast<int>(j - begin_)) = s.pivot[c];
    }
    __syncthreads();
    const T pivot = s.pivot[j];
    const bool zero = best.size == 0;
    if (block_ == 0 && thread == 0) {
      pivots_[j] = static_cast<int>(offset_ + best.row);
      if (zero) *info_ = min(*info_, static_cast<int>(offset_ + j + 1));
      if (!Finite(pivot)) *info_ = min(*info_, kNotFinite);
    }
    // The column below a pivot of zero is zero, and stays so.
    if (!zero) {
      for (int r = thread; r < count_; r += threads) {
        if (begin_ + r > j) At(j, r) = Divide(At(j, r), pivot);
      }
    }
    __syncthreads();
    ForElements(j + 1, [&](int c, int r) {
      if (begin_ + r > j) At(c, r) = MultiplyAdd(Scale(At(j, r), -1), s.pivot[c], At(c, r));
    });
    __syncthreads();
  }

  const int n_, k_;
  const int blocks_, block_, stride_;
  const Index begin_;
  const int count_;
  T* const a_;
  const Index lda_, offset_;
  int* const pivots_;
  int* const info_;
  unsigned* const met_;
  T* const rows_;
  R* const sizes_;
  int* const places_;
};

// One block. What `count` interchanges of rows i and pivots[i] - offset, at most kLuSwaps, amount
// to: row to[i] becomes what row from[i] was, for i < 2 * count; -1 where nothing moves.
__device__ inline void PlanSwaps(int backward, int count, Index offset, const int* pivots,
                                 int* from, int* to) {
  // The rows that are touched: the first `count` ones, and pivots behind them by their first
  // interchange.
  __shared__ int content[2 * kLuSwaps], slot[kLuSwaps];
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < count; i += threads) {
    const int row = static_cast<int>(pivots[i] - offset);
    int first = 0;
    while (pivots[first] != pivots[i]) ++first;
    slot[i] = row < count ? row : count + first;
    content[i] = i;
    content[count + i] = count + i;
  }
  __syncthreads();
  if (thread == 0) {
    for (int step = 0; step < count; ++step) {
      const int i = backward != 0 ? count - 1 - step : step;
      const int held = content[i];
      content[i] = content[slot[i]];
      content[slot[i]] = held;
    }
  }
  __syncthreads();
  auto row_of = [&](int place) {
    return place < count ? place : static_cast<int>(pivots[place - count] - offset);
  };
  for (int place = thread; place < 2 * count; place += threads) {
    const bool moves = content[place] != place;
    from[place] = moves ? row_of(content[place]) : -1;
    to[place] = moves ? row_of(place) : -1;
  }
}

// Columns by blocks: rows `from` to rows `to`, as PlanSwaps has them. Element (i, j) of the n
// columns is a[i * row + j * column], so that this moves columns of a matrix as well.
template <typename T>
__device__ void MoveRows(Index n, int count, const int* from, const int* to, T* a, Index row,
                         Index column) {
  __shared__ __align__(16) unsigned char memory[2 * kLuSwaps * sizeof(T)];
  T* values = reinterpret_cast<T*>(memory);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  for (Index j = blockIdx.x; j < n; j += gridDim.x) {
    T* line = a + j * column;
    for (int i = thread; i < 2 * count; i += threads) {
      if (from[i] >= 0) values[i] = line[from[i] * row];
    }
    __syncthreads();
    for (int i = thread; i < 2 * count; i += threads) {
      if (to[i] >= 0) line[to[i] * row] = values[i];
    }
    __syncthreads();
  }
}

// One block of at most kThreads. *log_abs += log |det| of the upper triangle; *sign times its sign
// and that of the interchanges. In an order that does not depend on timing, logarithms in double
// precision.
template <typename T>
__device__ void AddDeterminant(Index n, const T* u, Index ldu, Index offset, const int* pivots,
                               typename RealOf<T>::type* log_abs, T* sign) {
  using R = typename RealOf<T>::type;
  __shared__ double sums[kThreads];
  __shared__ __align__(16) unsigned char memory[kThreads * sizeof(T)];
  T* phases = reinterpret_cast<T*>(memory);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  T phase = FromReal<T>(1);
  for (Index j = thread; j < n; j += threads) {
    const T x = u[j * ldu + j];
    const R size = hypot(RealPart(x), ImaginaryPart(x));
    sum += log(static_cast<double>(size));
    const R turned = pivots[j] == offset + j ? 1 : -1;
    phase = Times(phase, FromParts<T>(size == 0 ? 0 : turned * (RealPart(x) / size),
                                      size == 0 ? 0 : turned * (ImaginaryPart(x) / size)));
  }
  sums[thread] = sum;
  phases[thread] = phase;
  __syncthreads();
  if (thread != 0) return;
  for (int i = 1; i < threads; ++i) {
    sum += sums[i];
    phase = Times(phase, phases[i]);
  }
  *log_abs += static_cast<R>(sum);
  *sign = Times(*sign, phase);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_CUH_
