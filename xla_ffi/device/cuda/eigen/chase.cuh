// Kernels that chase bulges and expand reflectors to blocks (chase_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_CHASE_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_CHASE_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/signals.cuh"

namespace jaxmg::kernels {

// A thread block works on one sweep at a time. A thread holds every kGroups-th column of one row in
// registers; threads communicate through shared memory. Thread blocks take sweeps in ascending
// order, and a sweep waits only for the previous one. So the oldest running sweep always makes
// progress, whichever thread blocks run.
//
// Step j of a sweep updates the block below the diagonal, then the diagonal block. It follows step
// j + 1 of the previous sweep, whose blocks begin at the last row and column of the blocks of step
// j. All sweeps together take the time of about twice as many steps, so steps must be short: both
// blocks are read at the start.
//
// Supports at most kRows subdiagonals, with kRows * kGroups threads.
template <typename T, int kRows, int kGroups>
class Chaser {
  using R = typename RealOf<T>::type;
  static constexpr int kColumns = (kRows + kGroups - 1) / kGroups;  // per thread
  static constexpr int kLanes = kRows < 32 ? kRows : 32;
  static_assert((kLanes & (kLanes - 1)) == 0, "lanes are added up in pairs");
  static constexpr int kLd = kRows | 1;  // avoids bank conflicts of rows and columns

 public:
  // `progress` has sweeps + 1 words, initially 0: the number of sweeps taken, then each sweep's
  // number of completed steps.
  __device__ Chaser(Index n, Index b, T* band, Index ldb, Index first, Index sweeps, T* v,
                    Index ldv, T* tau, Index ldtau, unsigned* progress)
      : n_(n),
        b_(static_cast<int>(b)),
        row_(static_cast<int>(threadIdx.x) % kRows),
        group_(static_cast<int>(threadIdx.x) / kRows),
        band_(band),
        ld_(ldb - 1),
        first_(first),
        sweeps_(sweeps),
        v_(v),
        ldv_(ldv),
        tau_(tau),
        ldtau_(ldtau),
        progress_(progress) {}

  __device__ void Run() {
    __shared__ unsigned taken;
    for (;;) {
      if (threadIdx.x == 0) taken = atomicAdd(progress_, 1u);
      __syncthreads();
      const Index k = taken;
      __syncthreads();
      if (k >= sweeps_) return;
      Sweep(k);
    }
  }

 private:
  struct Shared {
    T block[kRows * kLd];
    T partial[kGroups][kRows];
    T v[2][kRows];  // of this and the previous step's reflector, alternating
    T x[kRows], w[kRows];
  };
  // One column of a row per group.
  struct Piece {
    T x[kColumns];
  };
  struct Reflector {
    T tau, scale;  // v = scale * (unit * x), except for its first element
    R unit, beta;
    bool nothing;
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) Shared memory;
    return memory;
  }

  __device__ Index Steps(Index sweep) const { return (n_ - 1 - sweep + b_ - 1) / b_; }
  __device__ int Column(int q) const { return group_ + q * kGroups; }

  __device__ void Sweep(Index k) {
    Shared& s = shared();
    const Index sweep = first_ + k;
    T tau = FromReal<T>(0);
    unsigned seen = 0;  // completed steps of the previous sweep
    for (Index j = 0; j < Steps(sweep); ++j) {
      if (threadIdx.x == 0 && k > 0) {
        const unsigned before = static_cast<unsigned>(min(j + 2, Steps(sweep - 1)));
        while (seen < before) seen = Read(progress_ + k);
      }
      __syncthreads();
      const Index row = sweep + 1 + j * b_;
      const int rows = static_cast<int>(min(Index(b_), n_ - row));
      T* const below = band_ + row + (j == 0 ? sweep : row - b_) * ld_;
      T* const diagonal = band_ + row + row * ld_;
      T* const v = s.v[j & 1];
      const Piece e = Load(rows, j == 0 ? 1 : b_, below);
      const Piece d = LoadLower(rows, diagonal);
      tau =
          j == 0 ? Begin(rows, e, below, v) : OffDiagonal(rows, tau, e, below, s.v[(j + 1) & 1], v);
      if (v_ != nullptr && group_ == 0) {
        if (row_ < rows) v_[k * ldv_ + (row - first_ - 1) + row_] = v[row_];
        if (row_ == 0) tau_[j + k * ldtau_] = tau;
      }
      Diagonal(rows, tau, d, diagonal, v);
      __syncthreads();
      if (threadIdx.x == 0) Publish(progress_ + 1 + k, static_cast<unsigned>(j + 1));
    }
  }

  // Loads a block's elements; elements outside of the block are 0.
  __device__ Piece Load(int rows, int columns, const T* a) const {
    Piece piece;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int c = Column(q);
      piece.x[q] = row_ < rows && c < columns ? a[c * ld_ + row_] : FromReal<T>(0);
    }
    return piece;
  }
  __device__ Piece LoadLower(int rows, const T* a) const {
    Piece piece;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int c = Column(q);
      piece.x[q] = row_ < rows && c <= row_ ? a[c * ld_ + row_] : FromReal<T>(0);
    }
    return piece;
  }

  // Reduces the first column of a sweep.
  __device__ T Begin(int rows, const Piece& e, T* column, T* v) {
    Shared& s = shared();
    if (group_ == 0) s.x[row_] = e.x[0];
    __syncthreads();
    const Reflector h = Reflect(rows);
    WriteColumn(rows, h, column, v);
    __syncthreads();
    return h.tau;
  }

  // Computes E H and applies from the left the reflector that clears its first column. Returns the
  // reflector's tau. `tau` and `before` are tau and v of H.
  __device__ T OffDiagonal(int rows, T tau, Piece e, T* a, const T* before, T* v) {
    Shared& s = shared();
    T sum = FromReal<T>(0);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (Column(q) < kRows) sum = MultiplyAdd(e.x[q], before[Column(q)], sum);
    }
    s.partial[group_][row_] = sum;
    __syncthreads();
    const T z = Scale(Times(tau, Total(row_)), -1);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int c = Column(q);
      if (c >= kRows) continue;
      e.x[q] = MultiplyAdd(z, Conj(before[c]), e.x[q]);
      s.block[c * kLd + row_] = e.x[q];
    }
    if (group_ == 0) s.x[row_] = e.x[0];
    __syncthreads();
    const Reflector h = Reflect(rows);
    WriteColumn(rows, h, a, v);
    __syncthreads();
    // v^H E: here a thread has every kGroups-th row of one column.
    sum = FromReal<T>(0);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int r = Column(q);
      if (r < kRows) sum = MultiplyAdd(Conj(v[r]), s.block[row_ * kLd + r], sum);
    }
    s.partial[group_][row_] = sum;
    __syncthreads();
    if (group_ == 0) s.w[row_] = Times(Scale(Conj(h.tau), -1), Total(row_));
    __syncthreads();
    const T mine = v[row_];
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int c = Column(q);
      if (c == 0 || c >= b_ || row_ >= rows) continue;
      a[c * ld_ + row_] = MultiplyAdd(s.w[c], mine, e.x[q]);
    }
    return h.tau;
  }

  // D := H^H D H = D - w v^H - v w^H in its lower triangle.
  __device__ void Diagonal(int rows, T tau, Piece d, T* a, const T* v) {
    Shared& s = shared();
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int c = Column(q);
      if (c > row_ || c >= kRows) continue;
      if (c == row_) d.x[q] = FromReal<T>(RealPart(d.x[q]));
      s.block[c * kLd + row_] = d.x[q];
      if (c < row_) s.block[row_ * kLd + c] = Conj(d.x[q]);
    }
    __syncthreads();
    T sum = FromReal<T>(0);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int c = Column(q);
      if (c < kRows) sum = MultiplyAdd(s.block[c * kLd + row_], v[c], sum);
    }
    s.partial[group_][row_] = sum;
    __syncthreads();
    R along = 0;
    for (int i = Lane(); i < kRows; i += kLanes) along += RealPart(Times(Conj(v[i]), Total(i)));
    along = SumOfLanes(along);
    const R half = -RealPart(Times(Conj(tau), tau)) * along / 2;
    const T mine = v[row_];
    const T w = MultiplyAdd(tau, Total(row_), Scale(mine, half));
    if (group_ == 0) s.w[row_] = w;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int c = Column(q);
      if (c > row_ || row_ >= rows) continue;
      T x = MultiplyAdd(Scale(w, -1), Conj(v[c]), d.x[q]);
      x = MultiplyAdd(Scale(mine, -1), Conj(s.w[c]), x);
      a[c * ld_ + row_] = c == row_ ? FromReal<T>(RealPart(x)) : x;
    }
  }

  // Computes the reflector of x; every thread computes all of it. Scales x by a power of two if
  // squares could overflow or underflow.
  __device__ Reflector Reflect(int rows) {
    Shared& s = shared();
    constexpr bool kSingle = sizeof(R) == 4;
    const R least = kSingle ? R(1e-25f) : R(1e-250), most = kSingle ? R(1e30f) : R(1e280);
    Reflector h;
    h.unit = 1;
    R sum = SumOfSquares(rows, 1), head = Square(s.x[0], 1);
    h.nothing = false;
    if (!(sum >= least && sum + head <= most)) {
      R rest = 0;
      for (int i = Lane(); i < rows; i += kLanes) {
        if (i > 0) rest = Larger(rest, s.x[i]);
      }
      rest = LargestOfLanes(rest);
      h.nothing = rest == 0 && ImaginaryPart(s.x[0]) == 0;
      h.unit = UnitOf(Larger(rest, s.x[0]));
      sum = SumOfSquares(rows, h.unit);
      head = Square(s.x[0], h.unit);
    }
    const T x0 = Scale(s.x[0], h.unit);
    const R re = RealPart(x0), im = ImaginaryPart(x0);
    const R norm = sqrt(sum + head);
    const R beta = h.nothing ? 1 : re >= 0 ? -norm : norm;
    // 1 / (re - beta + i im), where |re - beta| >= |im|.
    const R difference = h.nothing ? 1 : re - beta;
    const R ratio = im / difference, divisor = difference + im * ratio;
    h.scale = h.nothing ? FromReal<T>(0) : FromParts<T>(1 / divisor, -ratio / divisor);
    h.tau = h.nothing ? FromReal<T>(0) : FromParts<T>((beta - re) / beta, -im / beta);
    h.beta = h.nothing ? RealPart(s.x[0]) : beta / h.unit;
    return h;
  }

  // Stores v, and beta e_0 in the column.
  __device__ void WriteColumn(int rows, const Reflector& h, T* column, T* v) {
    Shared& s = shared();
    if (group_ != 0) return;
    v[row_] = row_ == 0      ? FromReal<T>(1)
              : row_ >= rows ? FromReal<T>(0)
                             : Times(h.scale, Scale(s.x[row_], h.unit));
    if (row_ < rows) column[row_] = FromReal<T>(row_ == 0 ? h.beta : R(0));
  }

  __device__ static T Total(int i) {
    Shared& s = shared();
    T total = s.partial[0][i];
#pragma unroll
    for (int g = 1; g < kGroups; ++g) total = Plus(total, s.partial[g][i]);
    return total;
  }

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  // Returns the sum over all lanes, in a fixed order.
  __device__ static R SumOfLanes(R x) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
  }
  __device__ static R LargestOfLanes(R x) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      x = fmax(x, __shfl_xor_sync(~0u, x, lanes));
    }
    return x;
  }
  // Returns the sum of squares of x without its first element.
  __device__ static R SumOfSquares(int rows, R unit) {
    Shared& s = shared();
    R sum = 0;
    for (int i = Lane(); i < rows; i += kLanes) {
      if (i > 0) sum += Square(s.x[i], unit);
    }
    return SumOfLanes(sum);
  }
  __device__ static R Square(T x, R unit) {
    const T scaled = Scale(x, unit);
    return RealPart(Times(Conj(scaled), scaled));
  }

  const Index n_;
  const int b_;
  const int row_, group_;  // this thread's
  T* const band_;
  const Index ld_;
  const Index first_, sweeps_;
  T* const v_;
  const Index ldv_;
  T* const tau_;
  const Index ldtau_;
  unsigned* const progress_;
};

template <typename T>
__device__ void TakeTridiagonal(Index n, const T* band, Index ldb, typename RealOf<T>::type* d,
                                typename RealOf<T>::type* e) {
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < n;
       i += gridDim.x * Index(blockDim.x)) {
    d[i] = RealPart(band[i * ldb]);
    if (i + 1 < n) e[i] = RealPart(band[i * ldb + 1]);
  }
}

// Uses one block of kExpandThreads per step, for at most kSweeps sweeps. Computes W = V T column by
// column, without T: w_k = tau_k (v_k - W V^H v_k), with W of the previous columns. A thread holds
// one row of W in registers.
template <typename T, int kRows, int kSweeps>
__device__ void ExpandReflectors(Index n, Index b, Index first, int sweeps, const T* v, Index ldv,
                                 const T* tau, Index ldtau, T* blocks, T* weighted) {
  static_assert(kRows <= kExpandThreads);
  __shared__ __align__(16) T columns[kSweeps][kRows | 1];
  __shared__ __align__(16) T gram[kSweeps * (kSweeps - 1) / 2];  // V^H V above its diagonal
  __shared__ T factors[kSweeps];
  const int height = static_cast<int>(b) + sweeps, thread = static_cast<int>(threadIdx.x);
  const Index j = blockIdx.x, begin = j * b;  // among the rows from first + 1 on
  const Index there = n - first - 1 - begin;  // the number of rows of the matrix from there on
  blocks += j * height * sweeps;
  weighted += j * height * sweeps;
  if (thread < kSweeps) {
    factors[thread] = thread < sweeps && thread < there ? tau[j + thread * ldtau] : FromReal<T>(0);
  }
  for (int i = thread; i < height * sweeps; i += blockDim.x) {
    const int k = i / height, r = i % height;
    const bool inside = r >= k && r < k + b && r < there;
    const T x = inside ? v[k * ldv + begin + r] : FromReal<T>(0);
    if (r + 1 < height) columns[k][r] = x;
    blocks[i] = x;
  }
  __syncthreads();
  for (int i = thread; i < sweeps * sweeps; i += blockDim.x) {
    const int k = i / sweeps, l = i % sweeps;
    if (l >= k) continue;
    T sum = FromReal<T>(0);
    for (int r = k; r < min(l + static_cast<int>(b), height); ++r) {
      sum = MultiplyAdd(Conj(columns[l][r]), columns[k][r], sum);
    }
    gram[k * (k - 1) / 2 + l] = sum;
  }
  __syncthreads();
  if (thread >= height) return;
  T row[kSweeps];
#pragma unroll
  for (int k = 0; k < kSweeps; ++k) {
    if (k >= sweeps) continue;
    T sum = thread + 1 < height ? columns[k][thread] : FromReal<T>(0);
#pragma unroll
    for (int l = 0; l < k; ++l)
      sum = MultiplyAdd(Scale(row[l], -1), gram[k * (k - 1) / 2 + l], sum);
    row[k] = Times(factors[k], sum);
    weighted[k * height + thread] = row[k];
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_CHASE_CUH_
