// Reduction of stacks of symmetric matrices to tridiagonal form: StackKernels::ReduceToTridiagonal.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_TRIDIAGONAL_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_TRIDIAGONAL_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/copies.cuh"
#include "xla_ffi/device/cuda/scalars.cuh"
#include "xla_ffi/device/cuda/warps.cuh"

namespace jaxmg::kernels {

// One block for each matrix, n x n with n > 1. A step goes over what is left of the matrix once: it
// applies the update of the last step, A - v w^T - w v^T, and multiplies by the next v (LAPACK's
// sytrd goes over it twice). Warps have rows of it, a few at a time, lanes their columns.
template <typename R>
class StackedTridiagonal {
  static constexpr int kRows = 4;  // that a warp has at a time

 public:
  // Row j of `a` becomes v_j, with zeros up to element j and 1 behind it. d and e get the diagonal
  // and what is beside it, n and n - 1 numbers, tau the factors of the reflectors, n of them.
  // Shared memory has 4 n numbers, and two for each warp.
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
        w_(static_cast<R*>(DynamicShared())),
        y_(w_ + n),
        old_(y_ + n),
        new_(old_ + n),
        products_(new_ + n),
        squares_(products_ + warps_) {}

  __device__ void Run() {
    for (int c = thread_; c < n_; c += threads_) w_[c] = y_[c] = new_[c] = 0;
    for (int i = thread_; i < warps_; i += threads_) products_[i] = 0;
    __syncthreads();
    R factor = 0;
    for (int j = 0; j + 1 < n_; ++j) factor = Step(j, factor);
    const R inner = Sum(products_) * factor / 2;
    if (thread_ == 0) {
      const int last = n_ - 1;
      // The last v is 1 there, and w what FinishW gives.
      const R w = factor * (y_[last] - inner * new_[last]);
      d_[last] = a_[last * Index(n_) + last] - 2 * new_[last] * w;
      tau_[last] = 0;
    }
  }

 private:
  __device__ R Sum(const R* numbers) const {
    R sum = 0;
    for (int i = 0; i < warps_; ++i) sum += numbers[i];
    return sum;
  }

  // `factor` is the last step's; returns this one's.
  __device__ R Step(int j, R factor) {
    // w of the last step, and row j with its update.
    const R inner = Sum(products_) * factor / 2;
    const R v_here = new_[j], w_here = factor * (y_[j] - inner * v_here);
    const R v_next = new_[j + 1], w_next = factor * (y_[j + 1] - inner * v_next);
    R* const row = a_ + j * Index(n_);
    const R diagonal = row[j] - 2 * v_here * w_here;
    const R head = row[j + 1] - v_next * w_here - w_next * v_here;
    R rest = 0;
    for (int c = j + thread_; c < n_; c += threads_) {
      const R v = new_[c], w = factor * (y_[c] - inner * v);
      w_[c] = w;
      const R x = c > j + 1 ? row[c] - v * w_here - w * v_here : R(0);
      old_[c] = x;  // for a moment; its last reader was the last step's pass
      rest = MultiplyAdd(x, x, rest);
    }
    rest = SumOfWarp(rest);
    if (lane_ == 0) squares_[warp_] = rest;
    __syncthreads();
    rest = Sum(squares_);
    constexpr R kLeast = sizeof(R) == 4 ? R(0x1p-100) : R(0x1p-960);  // far below rounding
    const bool nothing = rest == 0 || head * head + rest < kLeast;
    const R length = sqrt(head * head + rest);
    const R beta = nothing ? head : head > 0 ? -length : length;
    const R divisor = nothing ? R(1) : head - beta;
    const R next_factor = nothing ? R(0) : (beta - head) / beta;
    for (int c = thread_; c < n_; c += threads_) {
      const R x = c > j + 1 && !nothing ? old_[c] / divisor : c == j + 1 ? R(1) : R(0);
      old_[c] = new_[c];
      new_[c] = x;
      row[c] = x;
    }
    if (thread_ == 0) d_[j] = diagonal, e_[j] = beta, tau_[j] = next_factor;
    __syncthreads();
    Pass(j + 1);
    __syncthreads();
    return next_factor;
  }

  // A -= v w^T + w v^T with the old v, and y = A v with the new one, from row and column `first`
  // on.
  __device__ void Pass(int first) {
    R product = 0;
    for (int begin = first + warp_ * kRows; begin < n_; begin += warps_ * kRows) {
      R sums[kRows], v[kRows], w[kRows];
#pragma unroll
      for (int p = 0; p < kRows; ++p) {
        const int i = min(begin + p, n_ - 1);
        sums[p] = 0, v[p] = -old_[i], w[p] = -w_[i];
      }
      for (int c = first + lane_; c < n_; c += 32) {
        const R v_c = old_[c], w_c = w_[c], by = new_[c];
        R x[kRows];
#pragma unroll
        for (int p = 0; p < kRows; ++p) {
          if (begin + p < n_) x[p] = a_[(begin + p) * Index(n_) + c];
        }
#pragma unroll
        for (int p = 0; p < kRows; ++p) {
          if (begin + p >= n_) continue;
          x[p] = MultiplyAdd(v[p], w_c, MultiplyAdd(w[p], v_c, x[p]));
          a_[(begin + p) * Index(n_) + c] = x[p];
          sums[p] = MultiplyAdd(x[p], by, sums[p]);
        }
      }
#pragma unroll
      for (int p = 0; p < kRows; ++p) {
        const R sum = SumOfWarp(sums[p]);
        if (begin + p >= n_) continue;
        if (lane_ == 0) y_[begin + p] = sum;
        product = MultiplyAdd(sum, new_[begin + p], product);
      }
    }
    if (lane_ == 0) products_[warp_] = product;
  }

  const int n_, thread_, threads_, lane_, warp_, warps_;
  R *const a_, *const d_, *const e_, *const tau_;
  // In shared memory: w and v of the last step, y and v of this one; sums of the warps.
  R *const w_, *const y_, *const old_, *const new_, *const products_, *const squares_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_TRIDIAGONAL_STACKS_CUH_
