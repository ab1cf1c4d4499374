// Substitution with a triangle of each matrix of a stack, for one right-hand side: the kernel of
// StackKernels::SolveTriangle. Matrices are n x n, row-major, one after the other.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SUBSTITUTION_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SUBSTITUTION_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// x := T^-1 x, or T^-H x, with one block of threads, kStackTriangle unknowns at a time. Neighboring
// threads read neighboring elements. With T, a warp subtracts the products of rows with the known
// part of x before it solves for these unknowns. With T^H, a thread has a later unknown and
// subtracts the contributions of the unknowns that were just solved for.
template <typename T>
class StackedSubstitution {
  static constexpr int kOrder = kStackTriangle;
  static constexpr int kRows = 4;  // rows of a warp at a time

 public:
  // x[i] is b[i * nrhs]. `shared` has space for n elements.
  __device__ StackedSubstitution(int n, int upper, int adjoint, int unit, const T* a, int nrhs,
                                 T* b, T* shared)
      : n_(n),
        upper_(upper),
        adjoint_(adjoint),
        unit_(unit),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_(static_cast<int>(threadIdx.x / 32)),
        a_(a),
        nrhs_(nrhs),
        b_(b),
        x_(shared) {}

  __device__ void Run() const {
    __shared__ __align__(16) unsigned char memory[kOrder * (kOrder + 1) * sizeof(T)];
    T* const block = reinterpret_cast<T*>(memory);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < n_; i += threads) x_[i] = b_[i * Index(nrhs_)];
    const bool forward = upper_ == adjoint_;
    const int blocks = (n_ + kOrder - 1) / kOrder;
    for (int step = 0; step < blocks; ++step) {
      const int first = (forward ? step : blocks - 1 - step) * kOrder;
      const int width = n_ - first < kOrder ? n_ - first : kOrder;
      __syncthreads();  // the last block is no longer used, and all is subtracted
      Load(first, width, block);
      const int known = forward ? 0 : first + width, end = forward ? first : n_;
      if (!adjoint_) SubtractRows(first, width, known, end);
      AwaitCopies();
      __syncthreads();
      if (warp_ == 0) Solve(first, width, forward, block);
      __syncthreads();
      const int begin = forward ? first + width : 0, later = forward ? n_ : first;
      if (adjoint_) SubtractColumns(first, width, begin, later);
    }
    __syncthreads();
    for (int i = thread; i < n_; i += threads) b_[i * Index(nrhs_)] = x_[i];
  }

 private:
  __device__ T Value(T x) const { return adjoint_ ? Conj(x) : x; }

  // Loads T's diagonal block, with its element (i, j) at [j][i]; with T^H, the block of T^H.
  __device__ void Load(int first, int width, T* block) const {
    for (int i = warp_; i < width; i += static_cast<int>(blockDim.x / 32)) {
      if (lane_ >= width) continue;
      T* const x = block + (adjoint_ ? i * (kOrder + 1) + lane_ : lane_ * (kOrder + 1) + i);
      CopyAsync<sizeof(T)>(x, a_ + (first + i) * Index(n_) + first + lane_);
    }
  }

  __device__ void SubtractRows(int first, int width, int known, int end) const {
    const int warps = static_cast<int>(blockDim.x / 32);
    for (int row = warp_ * kRows; row < width; row += warps * kRows) {
      T sums[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = FromReal<T>(0);
#pragma unroll 2
      for (int j = known + lane_; j < end; j += 32) {
        const T x = x_[j];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int i = row + r < width ? row + r : row;
          sums[r] = MultiplyAdd(a_[(first + i) * Index(n_) + j], x, sums[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        for (int lanes = 16; lanes > 0; lanes /= 2)
          sums[r] = Plus(sums[r], Shuffled(sums[r], lanes));
        if (lane_ == 0 && row + r < width) {
          x_[first + row + r] = Plus(x_[first + row + r], Scale(sums[r], -1));
        }
      }
    }
  }

  __device__ void SubtractColumns(int first, int width, int begin, int end) const {
    for (int i = begin + static_cast<int>(threadIdx.x); i < end;
         i += static_cast<int>(blockDim.x)) {
      T sum = FromReal<T>(0);
      const T* const column = a_ + first * Index(n_) + i;
#pragma unroll 8
      for (int j = 0; j < width; ++j) {
        sum = MultiplyAdd(Conj(column[j * Index(n_)]), x_[first + j], sum);
      }
      x_[i] = Plus(x_[i], Scale(sum, -1));
    }
  }

  // Runs on one warp, with an unknown in each thread.
  __device__ void Solve(int first, int width, bool forward, const T* block) const {
    const bool inside = lane_ < width;
    T x = inside ? x_[first + lane_] : FromReal<T>(0);
    const T reciprocal = inside && !unit_
                             ? Divide(FromReal<T>(1), Value(block[lane_ * (kOrder + 1) + lane_]))
                             : FromReal<T>(1);
    for (int k = 0; k < width; ++k) {
      const int j = forward ? k : width - 1 - k;
      if (lane_ == j) x = Times(x, reciprocal);
      const T solved = FromLane(x, j);
      const bool later = forward ? lane_ > j : lane_ < j;
      if (inside && later) {
        x = MultiplyAdd(Scale(Value(block[j * (kOrder + 1) + lane_]), -1), solved, x);
      }
    }
    if (inside) x_[first + lane_] = x;
  }

  __device__ static T FromLane(T x, int lane) {
    return FromParts<T>(__shfl_sync(~0u, RealPart(x), lane),
                        __shfl_sync(~0u, ImaginaryPart(x), lane));
  }
  __device__ static T Shuffled(T x, int lanes) {
    return FromParts<T>(__shfl_xor_sync(~0u, RealPart(x), lanes),
                        __shfl_xor_sync(~0u, ImaginaryPart(x), lanes));
  }

  const int n_, upper_, adjoint_, unit_, lane_, warp_;
  const T* const a_;
  const int nrhs_;
  T* const b_;
  T* const x_;
};

// Uses one block for each matrix and right-hand side.
template <typename T>
__device__ void SolveStackedTriangle(int n, int nrhs, int upper, int adjoint, int unit, const T* a,
                                     T* b) {
  const int matrix = static_cast<int>(blockIdx.x) / nrhs;
  const int column = static_cast<int>(blockIdx.x) % nrhs;
  StackedSubstitution<T>(n, upper, adjoint, unit, a + matrix * Index(n) * n, nrhs,
                         b + matrix * Index(n) * nrhs + column, static_cast<T*>(DynamicShared()))
      .Run();
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SUBSTITUTION_STACKS_CUH_
