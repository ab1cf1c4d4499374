// Substitution of many rows with one triangle: the kernels of Blas::SolveRight.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_ROW_SOLVER_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_ROW_SOLVER_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// X := B L^-H, or B L^-1 if `backward`, by substitution; n is at most kSolveColumns. Processes
// columns in the order of the substitution (if backward, from the last one on), a few at a time. It
// subtracts the earlier columns, then solves for these in registers, while it loads the operands of
// the next step. The code is intentionally short: instruction fetch dominates the time of a small
// call.
//
// A team of threads processes a row. A team of one thread reloads the solved columns from memory,
// which is fastest if there are enough rows to hide the latency. With few rows, four threads share
// the earlier columns: the row is in shared memory, the threads' sums are added in a fixed order,
// and each thread solves for all of the next few columns.
template <typename T, int kTeam>
class RowSolver {
  using R = typename RealOf<T>::type;
  static constexpr bool kComplex = sizeof(T) > sizeof(R);
  static constexpr bool kAlone = kTeam == 1;
  static constexpr int kLarge = sizeof(T) == 16 ? 2 : 1;
  static constexpr int kRows = kAlone ? kSolveRows : kTeamRows / kLarge;  // rows of a block
  static constexpr int kColumns = (kAlone ? 16 : 8) / kLarge;  // columns solved at a time
  static constexpr int kAhead = kComplex ? 4 : 8;              // earlier columns at a time
  // [i][j] is the coefficient of x_i in the equation for x_begin+j. The padding lets a team read
  // different banks.
  using Factors = T[kSolveColumns][kColumns + (!kAlone && kLarge == 2)];
  using Sums = T[kTeam][kColumns][kRows];
  using Row = T[kSolveColumns][kRows];

 public:
  // The operands begin at the first column in this order. The strides lead from each column to the
  // next.
  __device__ RowSolver(Index m, Index n, int backward, const T* l, Index ldl, const T* b, Index ldb,
                       T* x, Index ldx)
      : row_(threadIdx.x % kRows),
        part_(threadIdx.x / kRows),
        inside_(blockIdx.x * Index(kRows) + row_ < m),
        n_(static_cast<int>(n)),
        conjugate_(!backward),
        l_(backward ? l + (n - 1) * (ldl + 1) : l),
        l_solved_(backward ? -1 : ldl),
        l_equation_(backward ? -ldl : 1),
        b_((backward ? b + (n - 1) * ldb : b) + blockIdx.x * Index(kRows) + row_),
        b_step_(backward ? -ldb : ldb),
        x_((backward ? x + (n - 1) * ldx : x) + blockIdx.x * Index(kRows) + row_),
        x_step_(backward ? -ldx : ldx) {}

  __device__ void Run() {
    __shared__ __align__(16) Factors factors[2];
    __shared__ T reciprocals[kSolveColumns];
    T next[kColumns], sum[kColumns];
    Fetch(0, factors[0], next);
    for (int j = threadIdx.x; j < n_; j += blockDim.x) {
      const T diagonal = l_[j * (l_solved_ + l_equation_)];
      reciprocals[j] = Divide(FromReal<T>(1), conjugate_ ? Conj(diagonal) : diagonal);
    }
    int parity = 0;
    for (int begin = 0; begin < n_; begin += kColumns, parity ^= 1) {
      AwaitCopies();
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[j] = next[j];
      if (begin + kColumns < n_) Fetch(begin + kColumns, factors[parity ^ 1], next);
      if constexpr (kAlone) {
        if (!inside_) continue;
        Subtract(begin, factors[parity], sum);
        Solve(begin, factors[parity], reciprocals, sum, nullptr);
      } else {
        __shared__ Row known;
        __shared__ Sums sums[2];
        SubtractPart(begin, factors[parity], known, sum);
        AddParts(sums[parity], sum);
        Solve(begin, factors[parity], reciprocals, sum, known);
      }
    }
  }

 private:
  // Loads the columns of B from `begin` on; each thread of a team loads its own. Also loads the
  // coefficients of the earlier columns of x and of these.
  __device__ void Fetch(int begin, Factors& factors, T* right_side) const {
    const int equation = threadIdx.x % kColumns;
    if (begin + equation < n_) {
      const T* source = l_ + (begin + equation) * l_equation_;
#pragma unroll 1
      for (int i = threadIdx.x / kColumns; i < begin + equation; i += blockDim.x / kColumns) {
        CopyAsync<sizeof(T)>(&factors[i][equation], source + i * l_solved_);
      }
    }
    const T* source = b_ + begin * b_step_;
#pragma unroll
    for (int j = 0; j < kColumns; ++j, source += b_step_) {
      right_side[j] = inside_ && begin + j < n_ && j % kTeam == part_ ? *source : FromReal<T>(0);
    }
  }

  __device__ T Minus(T x, T factor, T sum) const {
    if (kComplex && conjugate_) factor = Conj(factor);
    return MultiplyAdd(Scale(x, -1), factor, sum);
  }

  __device__ void Load(const T* column, T* known) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i, column += x_step_) known[i] = *column;
  }

  __device__ void Subtract(int end, const Factors& factors, T* sum) const {
    if (end == 0) return;
    T known[kAhead], ahead[kAhead];
    const T* column = x_;
    Load(column, ahead);
#pragma unroll 1
    for (int begin = 0; begin < end; begin += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) known[i] = ahead[i];
      column += kAhead * x_step_;
      if (begin + kAhead < end) Load(column, ahead);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) sum[j] = Minus(known[i], factors[begin + i][j], sum[j]);
      }
    }
  }

  __device__ void SubtractPart(int end, const Factors& factors, const Row& known, T* sum) const {
#pragma unroll 4
    for (int i = part_; i < end; i += kTeam) {
      const T x = known[i][row_];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[j] = Minus(x, factors[i][j], sum[j]);
    }
  }

  __device__ void AddParts(Sums& sums, T* sum) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sums[part_][j][row_] = sum[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      sum[j] = sums[0][j][row_];
#pragma unroll
      for (int part = 1; part < kTeam; ++part) {
        sum[j] = MultiplyAdd(FromReal<T>(1), sums[part][j][row_], sum[j]);
      }
    }
  }

  // Columns beyond n are never stored.
  __device__ void Solve(int begin, const Factors& factors, const T* reciprocals, T* sum,
                        T (*known)[kRows]) {
    T* column = x_ + begin * x_step_;
#pragma unroll
    for (int j = 0; j < kColumns; ++j, column += x_step_) {
      const T solved = Times(sum[j], reciprocals[begin + j]);
      if (j % kTeam == part_ && begin + j < n_) {
        if (inside_) *column = solved;
        if (!kAlone) known[begin + j][row_] = solved;
      }
#pragma unroll
      for (int k = j + 1; k < kColumns; ++k) {
        sum[k] = Minus(solved, factors[begin + j][k], sum[k]);
      }
    }
  }

  const int row_, part_;  // this thread's row in the block, and its part in the team
  const bool inside_;
  const int n_;
  const bool conjugate_;
  const T* const l_;
  const Index l_solved_, l_equation_;  // the strides to the next x_i and to the next equation
  const T* const b_;
  const Index b_step_;
  T* const x_;
  const Index x_step_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_ROW_SOLVER_CUH_
