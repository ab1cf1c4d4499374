// Reduces stacks of symmetric matrices to tridiagonal form: StackKernels::ReduceToTridiagonal.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_TRIDIAGONAL_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_TRIDIAGONAL_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/warps.cuh"

namespace jaxmg::kernels {

// Uses one block for each matrix, n x n with n > 1. A step passes once over the upper triangle of
// the remaining matrix: it applies the update of the last step, A - v w^T - w v^T, and multiplies
// by the next v (LAPACK's sytrd passes over it twice). An element above the diagonal also
// represents the one below it. Warps process kRows rows at a time, and lanes their columns. The
// time of a step is the time to read and write the triangle in the cache.
template <typename R>
class StackedTridiagonal {
 public:
  // Row j of `a` becomes v_j, with zeros up to element j, followed by 1. d and e receive the
  // diagonal and the off-diagonal, n and n - 1 numbers, and tau the factors of the reflectors, n
  // numbers. Shared memory has 5 n numbers, and n + 2 for each of at most 32 warps.
  __device__ StackedTridiagonal(int n, R* a, R* d, R* e, R* tau)
      : n_(n),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        warps_(threads_ / 32),
        a_(a + blockIdx.x * Index(n) * n),
        d_(d + blockIdx.x * Index(n)),
        e_(e + blockIdx.x * Index(n - 1)),
        tau_(tau + blockIdx.x * Index(n)),
        row_(static_cast<R*>(DynamicShared())),
        w_(row_ + n),
        y_(w_ + n),
        old_(y_ + n),
        new_(old_ + n),
        parts_(new_ + n),
        products_(parts_ + warps_ * n),
        squares_(products_ + warps_) {}

  __device__ void Run() {
    for (int c = thread_; c < n_; c += threads_) row_[c] = a_[c], y_[c] = new_[c] = 0;
    for (int i = thread_; i < warps_ * (n_ + 1); i += threads_) parts_[i] = 0;  // products_ too
    __syncthreads();
    R factor = 0;
    for (int j = 0; j + 1 < n_; ++j) factor = Step(j, factor);
    const R inner = SumOfWarps(products_) * factor / 2;
    if (thread_ == 0) {
      const int last = n_ - 1;
      const R v = new_[last], w = factor * (y_[last] - inner * v);
      d_[last] = row_[last] - 2 * v * w;
      tau_[last] = 0;
    }
  }

 private:
  static constexpr int kRows = kStackTridiagonalRows;

  // Returns the sum of one number of each warp.
  __device__ R SumOfWarps(const R* numbers) const {
    return SumOfWarp(lane_ < warps_ ? numbers[lane_] : R(0));
  }

  // Takes the last step's `factor`; returns this step's.
  __device__ R Step(int j, R factor) {
    // w of the last step, and row j with its update.
    const R inner = SumOfWarps(products_) * factor / 2;
    const R v_here = new_[j], w_here = factor * (y_[j] - inner * v_here);
    const R v_next = new_[j + 1], w_next = factor * (y_[j + 1] - inner * v_next);
    const R diagonal = row_[j] - 2 * v_here * w_here;
    const R head = row_[j + 1] - v_next * w_here - w_next * v_here;
    R rest = 0;
    for (int c = j + thread_; c < n_; c += threads_) {
      const R v = new_[c], w = factor * (y_[c] - inner * v);
      w_[c] = w;
      const R x = c > j + 1 ? row_[c] - v * w_here - w * v_here : R(0);
      old_[c] = x;  // temporarily; its last reader was the last step's pass
      rest = MultiplyAdd(x, x, rest);
    }
    rest = SumOfWarp(rest);
    if (lane_ == 0) squares_[warp_] = rest;
    __syncthreads();
    rest = SumOfWarps(squares_);
    constexpr R kLeast = sizeof(R) == 4 ? R(0x1p-100) : R(0x1p-960);  // far below rounding
    const bool nothing = rest == 0 || head * head + rest < kLeast;
    const R length = sqrt(head * head + rest);
    const R beta = nothing ? head : head > 0 ? -length : length;
    const R scale = nothing ? R(0) : 1 / (head - beta);
    const R next_factor = nothing ? R(0) : (beta - head) / beta;
    R* const row = a_ + j * Index(n_);
    for (int c = thread_; c < n_; c += threads_) {
      const R x = c > j + 1 && !nothing ? old_[c] * scale : c == j + 1 ? R(1) : R(0);
      old_[c] = new_[c];
      new_[c] = x;
      row[c] = x;
    }
    if (thread_ == 0) d_[j] = diagonal, e_[j] = beta, tau_[j] = next_factor;
    __syncthreads();
    Pass(j + 1);
    __syncthreads();
    AddParts(j + 1);
    __syncthreads();
    return next_factor;
  }

  // A -= v w^T + w v^T with the old v, from row and column `first` on; row_ receives row `first`.
  // Adds this warp's part of y = A v with the new v.
  __device__ void Pass(int first) {
    R* const part = parts_ + warp_ * n_;
    // Every other round begins with the last warp, because its rows are shorter.
    for (int round = 0; first + round * warps_ * kRows < n_; ++round) {
      const int turn = round % 2 == 0 ? warp_ : warps_ - 1 - warp_;
      const int begin = first + (round * warps_ + turn) * kRows;
      if (begin >= n_) continue;
      Rows rows;
#pragma unroll
      for (int p = 0; p < kRows; ++p) {
        const int i = min(begin + p, n_ - 1);
        rows.v[p] = -old_[i], rows.w[p] = -w_[i], rows.by[p] = new_[i], rows.sums[p] = 0;
      }
      R* const out = begin == first ? row_ : nullptr;
      int c = begin + lane_;
      if (c < n_) Update<true>(begin, c, rows, part, out);
      for (c += 32; c < n_; c += 32) Update<false>(begin, c, rows, part, out);
      __syncwarp();  // other lanes have added to these elements
#pragma unroll
      for (int four = 0; four < kRows; four += 4) {
        const R sums[] = {rows.sums[four], rows.sums[four + 1], rows.sums[four + 2],
                          rows.sums[four + 3]};
        const R sum = SumsOfWarp(sums, lane_);
        const int i = begin + four + lane_ / 8;
        if (lane_ % 8 == 0 && i < n_) part[i] += sum;
      }
    }
  }

  // A warp's data of its rows: -v, -w, the elements of the new v, and the sums of their products.
  struct Rows {
    R v[kRows], w[kRows], by[kRows], sums[kRows];
  };

  // Updates column c of the rows, with kDiagonal only elements on or above the diagonal. The first
  // row is also written to `row`, unless it is null.
  template <bool kDiagonal>
  __device__ void Update(int begin, int c, Rows& rows, R* part, R* row) {
    R* const a = a_ + begin * Index(n_) + c;
    const R v = old_[c], w = w_[c], by = new_[c];
    R x[kRows], sum = 0;
#pragma unroll
    for (int p = 0; p < kRows; ++p) {
      if (!kDiagonal || c >= begin + p) x[p] = a[p * n_];
    }
#pragma unroll
    for (int p = 0; p < kRows; ++p) {
      if (kDiagonal && c < begin + p) continue;
      x[p] = MultiplyAdd(rows.v[p], w, MultiplyAdd(rows.w[p], v, x[p]));
      a[p * n_] = x[p];
      rows.sums[p] = MultiplyAdd(x[p], by, rows.sums[p]);
      if (!kDiagonal || c > begin + p) sum = MultiplyAdd(x[p], rows.by[p], sum);
    }
    part[c] += sum;
    if (row != nullptr) row[c] = x[0];
  }

  // Computes y from the parts of all warps, which become 0, and y^T v.
  __device__ void AddParts(int first) {
    R product = 0;
    for (int c = first + thread_; c < n_; c += threads_) {
      R y = 0;
      for (int warp = 0; warp < warps_; ++warp) {
        y += parts_[warp * n_ + c];
        parts_[warp * n_ + c] = 0;
      }
      y_[c] = y;
      product = MultiplyAdd(y, new_[c], product);
    }
    product = SumOfWarp(product);
    if (lane_ == 0) products_[warp_] = product;
  }

  const int n_, thread_, threads_, lane_, warp_, warps_;
  R *const a_, *const d_, *const e_, *const tau_;
  // In shared memory: the next row, w and v of the last step, y and v of this step; y by warp; and
  // sums of the warps.
  R *const row_, *const w_, *const y_, *const old_, *const new_;
  R *const parts_, *const products_, *const squares_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_TRIDIAGONAL_STACKS_CUH_
