// Kernels for panels of orthogonal reductions (panel_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_QR_PANEL_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_QR_PANEL_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/signals.cuh"

namespace jaxmg::kernels {

// Uses one block. Computes column j of the k x k matrix T: -tau T (V^H v) above the diagonal and
// tau on it. `products` is V^H v. `sums` is workspace: kParts numbers for each row.
template <int kParts, typename T, typename Sums>
__device__ void MakeColumnOfT(int k, int j, T tau, const T* products, Sums& sums, T* t, Index ldt) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < j * kParts; i += threads) {
    const int r = i % j, part = i / j;
    T sum = FromReal<T>(0);
    for (int l = part; l < j; l += kParts) {
      if (l >= r) sum = MultiplyAdd(t[r + l * ldt], products[l], sum);
    }
    sums[r][part] = sum;
  }
  __syncthreads();
  for (int r = thread; r < k; r += threads) {
    T total = FromReal<T>(r == j ? 1 : 0);
    for (int i = 0; r < j && i < kParts; ++i) total = Plus(total, Scale(sums[r][i], -1));
    t[r + j * ldt] = r > j ? FromReal<T>(0) : Times(total, tau);
  }
  __syncthreads();
}

// QR of an m x n panel, n at most kPanelColumns, with blocks that run concurrently and synchronize
// once per column. Each block has its own rows. If there are several blocks, the last one has no
// rows and computes T.
//
// x is the part of column j below the diagonal. A reflector's v is a multiple of x. So the blocks
// need to sum only the products of x with all columns, and its norm: the products with later
// columns give the update, and the products with earlier ones give T. Each block writes its partial
// sums for column j + 1 while it updates its rows with column j. Every block adds the partial sums
// of all blocks, in the same order. (For the update and T see LAPACK's xGEQRT2.)
//
// x is scaled by a power of two, so that squares neither overflow nor underflow. Each block scales
// its partial sums by its own power, because the largest element of all blocks is not yet known.
//
// A team of kLanes threads processes a few columns at a time; a thread has every kLanes-th row.
template <typename T, int kLanes>
class PanelFactor {
  using R = typename RealOf<T>::type;
  static constexpr int kAtOnce = 4;

 public:
  // `arrivals` is initially 0. `sums` has 2 * n * (1 + owners) elements, `largest` 2 * owners.
  __device__ PanelFactor(Index m, int n, T* a, Index lda, T* t, Index ldt, unsigned* arrivals,
                         T* sums, R* largest)
      : n_(n),
        k_(static_cast<int>(min(m, Index(n)))),
        owners_(gridDim.x > 1 ? static_cast<int>(gridDim.x) - 1 : 1),
        block_(static_cast<int>(blockIdx.x)),
        begin_(min(m, Rows(m) * block_)),
        end_(block_ < owners_ ? min(m, begin_ + Rows(m)) : begin_),
        a_(a),
        lda_(lda),
        t_(t),
        ldt_(ldt),
        arrivals_(arrivals),
        sums_(sums),
        largest_(largest) {}

  __device__ void Run() {
    const bool owns = block_ < owners_, makes_t = block_ + 1 == static_cast<int>(gridDim.x);
    if (owns) Pass(-1, Reflector{});
    for (int j = 0; j < k_; ++j) {
      SyncBlocks(j + 1);
      const Reflector h = Combine(j);
      if (makes_t) MakeColumnOfT<kLanes>(k_, j, h.tau, shared().factors, shared().sums, t_, ldt_);
      if (owns) Pass(j, h);
    }
  }

 private:
  // v = scale * (unit * x), and the diagonal becomes beta.
  struct Reflector {
    T tau, scale;
    R unit, beta;
  };

  struct Shared {
    T sums[kPanelColumns][kLanes + 1];
    T row[kPanelColumns], total[kPanelColumns];
    // For a later column, the number to subtract from its row j; for an earlier column l, v_l^H v.
    T factors[kPanelColumns];
    R maxima[kPanelThreads];
    R largest[kPanelBlocks];
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) Shared memory;
    return memory;
  }

  __device__ Index Rows(Index m) const { return (m + owners_ - 1) / owners_; }
  __device__ T& At(Index i, int j) const { return a_[i + j * lda_]; }

  // Double-buffered, because a block may be one column ahead of another block that still reads.
  __device__ T* Row(int j) const { return sums_ + (j & 1) * n_; }
  __device__ T* SumsOfColumn(int j, int c) const {
    return sums_ + 2 * n_ + ((j & 1) * n_ + c) * Index(owners_);
  }
  __device__ R* Largest(int j) const { return largest_ + (j & 1) * owners_; }

  // Barrier number `times` of all blocks.
  __device__ void SyncBlocks(int times) {
    __syncthreads();
    if (threadIdx.x == 0) {
      Arrive(arrivals_);
      while (!Seen(arrivals_, static_cast<unsigned>(times) * gridDim.x)) __nanosleep(20);
    }
    __syncthreads();
  }

  // Replaces this block's rows of column j by v, updates the later columns, and computes the
  // partial sums for the next column. j = -1 computes only the partial sums of column 0.
  __device__ void Pass(int j, const Reflector& h) {
    Shared& s = shared();
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int next = j + 1;
    if (begin_ <= j && j < end_) {
      for (int c = j + thread; c < n_; c += threads) {
        T& x = At(j, c);
        x = c == j ? FromReal<T>(h.beta) : Plus(x, Scale(s.factors[c], -1));
      }
    }
    const Index first = max(begin_, Index(next));
    R largest = 0;
    for (Index i = first + thread; i < end_; i += threads) {
      T v = FromReal<T>(0);
      if (j >= 0) {
        v = Times(h.scale, Scale(At(i, j), h.unit));
        At(i, j) = v;
      }
      if (next == n_) continue;
      T& x = At(i, next);
      if (j >= 0) x = MultiplyAdd(Scale(v, -1), s.factors[next], x);
      if (i > next) largest = Larger(largest, x);
    }
    if (next >= k_) return;
    s.maxima[thread] = largest;
    __syncthreads();
    if (thread < kLanes) {
      for (int i = thread; i < threads; i += kLanes) largest = fmax(largest, s.maxima[i]);
      s.largest[thread] = largest;
    }
    __syncthreads();
    for (int i = 0; i < min(kLanes, threads); ++i) largest = fmax(largest, s.largest[i]);
    if (thread == 0) Largest(next)[block_] = largest;

    const R unit = UnitOf(largest);
    ForTeams([&](int begin, int lane) {
      T sums[kAtOnce], factors[kAtOnce];
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        sums[q] = FromReal<T>(0);
        const int c = begin + q;
        factors[q] = j >= 0 && c > next && c < n_ ? Scale(s.factors[c], -1) : FromReal<T>(0);
      }
      for (Index i = first + lane; i < end_; i += kLanes) {
        const T x = Scale(At(i, next), unit), v = At(i, max(j, 0));
        T y[kAtOnce];
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) {
          if (begin + q < n_) y[q] = At(i, begin + q);
        }
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) {
          const int c = begin + q;
          if (c >= n_) continue;
          if (j >= 0 && c > next) {
            y[q] = MultiplyAdd(v, factors[q], y[q]);
            At(i, c) = y[q];
          }
          if (i == next) {
            Row(next)[c] = y[q];
          } else {
            sums[q] = MultiplyAdd(Conj(x), c == next ? x : y[q], sums[q]);
          }
        }
      }
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        if (begin + q < n_) s.sums[begin + q][lane] = sums[q];
      }
    });
    __syncthreads();
    for (int c = thread; c < n_; c += threads) SumsOfColumn(next, c)[block_] = Total(c);
  }

  // Computes the reflector of column j and `factors`.
  __device__ Reflector Combine(int j) {
    Shared& s = shared();
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int b = thread; b < owners_; b += threads) s.largest[b] = Largest(j)[b];
    for (int c = thread; c < n_; c += threads) s.row[c] = Row(j)[c];
    __syncthreads();
    R rest = 0;
    for (int b = 0; b < owners_; ++b) rest = fmax(rest, s.largest[b]);
    Reflector h;
    h.unit = UnitOf(Larger(rest, s.row[j]));
    ForTeams([&](int begin, int lane) {
      T sums[kAtOnce];
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) sums[q] = FromReal<T>(0);
      for (int b = lane; b < owners_; b += kLanes) {
        // At most 1, unless the sums are 0.
        const R ratio = h.unit / UnitOf(s.largest[b]);
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) {
          const int c = begin + q;
          if (c >= n_) continue;
          const T share = Scale(SumsOfColumn(j, c)[b], ratio);
          sums[q] = Plus(sums[q], c == j ? Scale(share, ratio) : share);
        }
      }
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        if (begin + q < n_) s.sums[begin + q][lane] = sums[q];
      }
    });
    __syncthreads();
    for (int c = thread; c < n_; c += threads) s.total[c] = Total(c);
    __syncthreads();

    const T x0 = Scale(s.row[j], h.unit);
    const R re = RealPart(x0), im = ImaginaryPart(x0);
    const bool nothing = rest == 0 && im == 0;
    const R norm = sqrt(re * re + im * im + RealPart(s.total[j]));
    const R beta = nothing ? 1 : re >= 0 ? -norm : norm;
    // 1 / (re - beta + i im), where |re - beta| >= |im|.
    const R difference = re - beta, ratio = im / difference, divisor = difference + im * ratio;
    h.tau = FromReal<T>(0);
    h.scale = h.tau;
    h.beta = RealPart(s.row[j]);
    if (!nothing) {
      h.tau = FromParts<T>((beta - re) / beta, -im / beta);
      h.scale = FromParts<T>(1 / divisor, -ratio / divisor);
      h.beta = beta / h.unit;
    }
    for (int c = thread; c < n_; c += threads) {
      // Computed from v^H a_c, the product of v with row j and the rows below; for earlier columns
      // v_c^H v.
      s.factors[c] = c > j ? Times(Conj(h.tau), MultiplyAdd(Conj(h.scale), s.total[c], s.row[c]))
                           : MultiplyAdd(h.scale, Conj(s.total[c]), Conj(s.row[c]));
    }
    __syncthreads();
    return h;
  }

  // Calls f(first column of kAtOnce, lane).
  template <typename F>
  __device__ void ForTeams(const F& f) const {
    const int teams = static_cast<int>(blockDim.x) / kLanes;
    const int team = static_cast<int>(threadIdx.x) / kLanes;
    for (int begin = team * kAtOnce; begin < n_; begin += teams * kAtOnce) {
      f(begin, static_cast<int>(threadIdx.x) % kLanes);
    }
  }
  __device__ static T Total(int c) {
    Shared& s = shared();
    T total = s.sums[c][0];
    for (int i = 1; i < kLanes; ++i) total = Plus(total, s.sums[c][i]);
    return total;
  }

  const int n_, k_;
  const int owners_, block_;
  const Index begin_, end_;
  T* const a_;
  const Index lda_;
  T* const t_;
  const Index ldt_;
  unsigned* const arrivals_;
  T* const sums_;
  R* const largest_;
};

template <typename T>
__device__ void UnpackReflectors(Index m, Index k, const T* a, Index lda, T* v, Index ldv) {
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < m * k;
       i += gridDim.x * Index(blockDim.x)) {
    const Index row = i % m, column = i / m;
    v[row + column * ldv] = row > column ? a[row + column * lda] : FromReal<T>(row == column);
  }
}

template <typename T>
__device__ void PackBand(Index m, Index n, Index k, const T* a, Index lda, T* band, Index ldb) {
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < ldb * n;
       i += gridDim.x * Index(blockDim.x)) {
    const Index below = i % ldb, column = i / ldb;
    T x = FromReal<T>(0);
    if (below < m - column + min(column + 1, k)) x = a[column + below + column * lda];
    band[i] = below == 0 ? FromReal<T>(RealPart(x)) : x;
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_QR_PANEL_CUH_
