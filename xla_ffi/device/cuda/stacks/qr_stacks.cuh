// QR of stacks of matrices: the kernel of StackKernels::FactorQr other than products. Matrices are
// row-major, one after the other.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_QR_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_QR_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/warps.cuh"

namespace jaxmg::kernels {

// The QR of one panel of each matrix, with one block per matrix: the columns [first, first + width)
// of its rows from `first` on, width <= kStackQrColumns.
//
// Lane c of a warp has column c, and warp w the rows w, w + owners, ... counted from `first`. The
// last warp of the block has no rows and computes T. A step passes over the rows once. It applies
// the reflector of column j and sums the products of column j + 1, below the diagonal, with all
// columns. These give the next reflector, its products with later columns and, for T, its products
// with earlier ones. So blocks synchronize once per column.
template <typename T>
class StackedQrPanel {
  using R = typename RealOf<T>::type;
  static constexpr int kColumns = kStackQrColumns;
  static constexpr int kLd = kColumns + 1;  // leading dimension of T in shared memory
  static constexpr int kAtOnce = 4;         // rows that a warp reads at a time
  static_assert(kColumns == 32, "one for each lane");

 public:
  // `a` is m x n. `v` receives the reflectors, m x k, with ones on the diagonal and zeros above it,
  // and `t` the kColumns x kColumns matrix of each panel. Unless q is null, its columns of the
  // panel, m x k, become columns of the identity. Shared memory must have the size of
  // StackedQr::SharedBytes (stack_qr.h), plus the panel if `in_shared`.
  __device__ StackedQrPanel(int m, int n, int first, int width, int in_shared, T* a, T* v, T* t,
                            T* q)
      : rows_(m - first),
        first_(first),
        width_(width),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        owners_(static_cast<int>(blockDim.x) / 32 - 1),
        lda_(n),
        ldv_(min(m, n)),
        in_shared_(in_shared != 0),
        a_(a + (blockIdx.x * Index(m) + first) * n + first),
        v_(v + (blockIdx.x * Index(m) + first) * ldv_ + first),
        t_(t + blockIdx.x * Index((ldv_ + kColumns - 1) / kColumns) * kColumns * kColumns +
           first / kColumns * kColumns * kColumns),
        q_(q == nullptr ? q : q + blockIdx.x * Index(m) * ldv_ + first),
        sums_(static_cast<T*>(DynamicShared())),
        row_(sums_ + 2 * owners_ * kColumns),
        triangle_(row_ + 2 * kColumns),
        x_(in_shared_ ? triangle_ + kColumns * kLd : a_),
        ldx_(in_shared_ ? kColumns : lda_) {}

  __device__ void Run() {
    T sum = FromReal<T>(0);
    ForRows(
        0,
        [&](int i, T value) {
          if (in_shared_) x_[i * ldx_ + lane_] = value;
          sum = Announce(i, 0, value, sum);
        },
        a_, lda_);
    for (int j = 0; j < width_; ++j) {
      T* const sums = sums_ + (j & 1) * owners_ * kColumns;
      if (warp_ < owners_) sums[warp_ * kColumns + lane_] = sum;
      __syncthreads();
      T total = FromReal<T>(0);
      for (int warp = 0; warp < owners_; ++warp) {
        total = Plus(total, sums[warp * kColumns + lane_]);
      }
      const T row = row_[(j & 1) * kColumns + lane_];
      const Reflector h = Reflect(OfLane(row, j), RealPart(OfLane(total, j)));
      if (warp_ == owners_) {
        // v_c^H v_j for the columns c before j.
        MakeT(j, h.tau, MultiplyAdd(h.scale, Conj(total), Conj(row)));
      } else {
        sum = Update(j, h, Times(Conj(h.tau), MultiplyAdd(Conj(h.scale), total, row)));
      }
    }
    Store();
  }

 private:
  // v = scale x below the diagonal; the diagonal becomes beta.
  struct Reflector {
    T tau, scale;
    R beta;
  };

  // Calls f with this warp's rows from `begin` on, and with this lane's element of each row of `x`.
  template <typename F>
  __device__ void ForRows(int begin, const F& f, const T* x, Index ldx) const {
    int i = begin + (warp_ + owners_ - begin % owners_) % owners_;
    if (warp_ == owners_) i = rows_;
    for (; i < rows_; i += kAtOnce * owners_) {
      T values[kAtOnce];
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        const int row = i + p * owners_;
        values[p] = row < rows_ && lane_ < width_ ? x[row * ldx + lane_] : FromReal<T>(0);
      }
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (i + p * owners_ < rows_) f(i + p * owners_, values[p]);
      }
    }
  }

  // Returns the sum plus row i's contribution to the products of column j, below the diagonal, with
  // all columns. Writes row j itself for all warps.
  __device__ T Announce(int i, int j, T value, T sum) const {
    const T x = OfLane(value, j);
    if (i == j) row_[(j & 1) * kColumns + lane_] = value;
    return i > j ? MultiplyAdd(Conj(x), value, sum) : sum;
  }

  // LAPACK's larfg. A column counts as zero if it is far below the rounding errors of one of length
  // 1.
  __device__ static Reflector Reflect(T head, R rest) {
    constexpr R kLeast = sizeof(R) == 4 ? R(0x1p-100) : R(0x1p-960);
    const R re = RealPart(head), im = ImaginaryPart(head);
    const R square = re * re + im * im + rest;
    if (square < kLeast || (rest == 0 && im == 0)) return {FromReal<T>(0), FromReal<T>(0), re};
    const R beta = re >= 0 ? -sqrt(square) : sqrt(square);
    return {FromParts<T>((beta - re) / beta, -im / beta),
            Divide(FromReal<T>(1), FromParts<T>(re - beta, im)), beta};
  }

  // Applies H^H to this warp's rows; `factor` is the number to subtract from row j of this lane's
  // column. Returns the sums of column j + 1.
  __device__ T Update(int j, const Reflector& h, T factor) {
    const bool goes_on = j + 1 < width_;
    const T minus = lane_ > j ? Scale(factor, R(-1)) : FromReal<T>(0);
    T sum = FromReal<T>(0);
    ForRows(
        j,
        [&](int i, T value) {
          const T v = i == j ? FromReal<T>(1) : Times(h.scale, OfLane(value, j));
          T updated = MultiplyAdd(v, minus, value);
          if (lane_ == j) updated = i == j ? FromReal<T>(h.beta) : v;
          if (lane_ >= j && lane_ < width_) x_[i * ldx_ + lane_] = updated;
          if (goes_on) sum = Announce(i, j + 1, updated, sum);
        },
        x_, ldx_);
    return sum;
  }

  // Column j of T: -tau T (V^H v) above the diagonal and tau on it. Runs on one warp.
  __device__ void MakeT(int j, T tau, T product) {
    T sum = FromReal<T>(0);
    for (int l = 0; l < j; ++l) {
      const T factor = OfLane(product, l);
      if (l >= lane_) sum = MultiplyAdd(triangle_[lane_ * kLd + l], factor, sum);
    }
    const T above = Scale(Times(tau, sum), R(-1));
    triangle_[lane_ * kLd + j] = lane_ < j ? above : lane_ == j ? tau : FromReal<T>(0);
    __syncwarp();
  }

  __device__ void Store() {
    const T zero = FromReal<T>(0), one = FromReal<T>(1);
    if (warp_ == owners_) {
      for (int j = 0; j < kColumns; ++j) {
        t_[j * kColumns + lane_] = j < width_ && lane_ < width_ ? triangle_[j * kLd + lane_] : zero;
      }
    }
    ForRows(
        0,
        [&](int i, T value) {
          if (lane_ >= width_) return;
          v_[i * ldv_ + lane_] = i > lane_ ? value : i == lane_ ? one : zero;
          a_[i * lda_ + lane_] = i > lane_ ? zero : value;
        },
        x_, ldx_);
    if (q_ == nullptr || warp_ == owners_ || lane_ >= width_) return;
    for (int i = warp_; i < first_ + rows_; i += owners_) {
      q_[i * ldv_ + lane_] = i == first_ + lane_ ? one : zero;
    }
  }

  const int rows_, first_, width_;
  const int lane_, warp_, owners_;
  const Index lda_, ldv_;
  const bool in_shared_;
  T *const a_, *const v_, *const t_, *const q_;
  // In shared memory: the sums of each warp and the diagonal's row, double-buffered for this column
  // and the next; and T, row by row.
  T *const sums_, *const row_, *const triangle_;
  T* const x_;  // the panel
  const Index ldx_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_QR_STACKS_CUH_
