// Substitution of many rows at once with one triangle: the kernels behind Blas::SolveRight.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_ROW_SOLVER_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_ROW_SOLVER_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/copies.cuh"
#include "xla_ffi/device/cuda/scalars.cuh"

namespace jaxmg::kernels {

// X := B L^-H, or B L^-1 where `backward`, by substitution; n is at most kSolveColumns. Columns are
// taken in the order in which they are solved for (from the last one on where backward), a few at a
// time: first those before are subtracted, then they are solved for in registers. What the next
// step needs is on its way meanwhile. The code is short on purpose: most of a small call is the
// time to fetch it.
//
// A team of threads has a row. One thread alone gets what it has solved for back from memory, which
// is best where there are rows enough to hide the wait. Where there are few, four threads share the
// columns before: the row is in shared memory, their sums are added in a fixed order, and each
// solves for all of the next few columns.
template <typename T, int kTeam>
class RowSolver {
  using R = typename RealOf<T>::type;
  static constexpr bool kComplex = sizeof(T) > sizeof(R);
  static constexpr bool kAlone = kTeam == 1;
  static constexpr int kLarge = sizeof(T) == 16 ? 2 : 1;
  static constexpr int kRows = kAlone ? kSolveRows : kTeamRows / kLarge;  // of a block
  static constexpr int kColumns = (kAlone ? 16 : 8) / kLarge;  // that are solved for at a time
  static constexpr int kAhead = kComplex ? 4 : 8;              // columns before them, likewise
  // [i][j]: of x_i in the equation for x_begin+j; so far apart that a team reads different banks.
  using Factors = T[kSolveColumns][kColumns + (!kAlone && kLarge == 2)];
  using Sums = T[kTeam][kColumns][kRows];
  using Row = T[kSolveColumns][kRows];

 public:
  // The first column in that order, and the way from each to the next, is where the operands begin.
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
    __shared__ R reciprocals[kSolveColumns];
    T next[kColumns], sum[kColumns];
    Fetch(0, factors[0], next);
    for (int j = threadIdx.x; j < n_; j += blockDim.x) {
      reciprocals[j] = 1 / RealPart(l_[j * (l_solved_ + l_equation_)]);
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
  // Columns from `begin` on of B, of which each of a team has its own, and what x before and among
  // them is multiplied with.
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

  // Beyond n is what nobody stores.
  __device__ void Solve(int begin, const Factors& factors, const R* reciprocals, T* sum,
                        T (*known)[kRows]) {
    T* column = x_ + begin * x_step_;
#pragma unroll
    for (int j = 0; j < kColumns; ++j, column += x_step_) {
      const T solved = Scale(sum[j], reciprocals[begin + j]);
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
  const Index l_solved_, l_equation_;  // to the next x_i, and to the next equation
  const T* const b_;
  const Index b_step_;
  T* const x_;
  const Index x_step_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_ROW_SOLVER_CUH_
