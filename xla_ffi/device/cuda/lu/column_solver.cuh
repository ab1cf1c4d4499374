// Substitution of many columns with one small unit lower triangle: the kernel of CudaBlas's
// SolveUnitLower.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_COLUMN_SOLVER_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_COLUMN_SOLVER_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// B := L^-1 B with L unit lower triangular of order at most kOrder. L's diagonal and upper triangle
// are not read. A thread solves for a column, half of the rows at a time, in registers. L is in
// shared memory, where all threads read the same element at the same time.
template <typename T>
class ColumnSolver {
 public:
  static constexpr int kOrder = kColumnSolverOrder<sizeof(T)>;

  __device__ ColumnSolver(int order, Index columns, const T* l, Index ldl, T* b, Index ldb)
      : order_(order), columns_(columns), l_(l), ldl_(ldl), b_(b), ldb_(ldb) {}

  __device__ void Run() const {
    Load();
    __syncthreads();
    const Index column = blockIdx.x * Index(blockDim.x) + threadIdx.x;
    if (column >= columns_) return;
    T* b = b_ + column * ldb_;
    for (int begin = 0; begin < order_; begin += kHalf) SolveHalf(begin, b);
  }

 private:
  static constexpr int kHalf = kOrder / 2;

  struct Shared {
    // Column by column: L's two diagonal triangles, and the square below the first one.
    T triangles[2][kHalf][kHalf];
    T square[kHalf][kHalf];
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) unsigned char memory[sizeof(Shared)];
    return *reinterpret_cast<Shared*>(memory);
  }

  // Returns L(i, k), or zero outside of L.
  __device__ T At(int i, int k) const {
    return k < i && i < order_ ? l_[i + k * ldl_] : FromReal<T>(0);
  }

  __device__ void Load() const {
    Shared& s = shared();
    for (int at = threadIdx.x; at < kHalf * kHalf; at += blockDim.x) {
      const int i = at % kHalf, k = at / kHalf;
      s.triangles[0][k][i] = At(i, k);
      s.triangles[1][k][i] = At(kHalf + i, kHalf + k);
      s.square[k][i] = At(kHalf + i, k);
    }
  }

  __device__ void SolveHalf(int begin, T* b) const {
    const Shared& s = shared();
    const auto& triangle = s.triangles[begin / kHalf];
    const int rows = min(kHalf, order_ - begin);
    T x[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) x[i] = i < rows ? b[begin + i] : FromReal<T>(0);
    // Subtracts the rows of the first half, which are already solved for.
    for (int k = 0; k < begin; ++k) Subtract(s.square[k], 0, b[k], x);
#pragma unroll
    for (int k = 0; k < kHalf; ++k) Subtract(triangle[k], k + 1, x[k], x);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if (i < rows) b[begin + i] = x[i];
    }
  }

  // Subtracts an earlier row's contribution, through a column of L, from the rows from `first` on.
  __device__ static void Subtract(const T (&column)[kHalf], int first, const T& solved,
                                  T (&x)[kHalf]) {
    const T minus = Scale(solved, -1);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if (i >= first) x[i] = MultiplyAdd(column[i], minus, x[i]);
    }
  }

  const int order_;
  const Index columns_;
  const T* const l_;
  const Index ldl_;
  T* const b_;
  const Index ldb_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_COLUMN_SOLVER_CUH_
