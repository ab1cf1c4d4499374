// QR of a panel with all of its rows in registers (panel_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_QR_REGISTER_PANEL_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_QR_REGISTER_PANEL_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/signals.cuh"
#include "xla_ffi/device/cuda/core/warps.cuh"
#include "xla_ffi/device/cuda/qr/panel.cuh"

namespace jaxmg::kernels {

// Computes the same as PanelFactor for blocks of at most 32 * kRows rows. Each row stays in the
// registers of one lane. A warp has kWarpColumns columns of all rows of its block, lane l the rows
// l, l + 32, ...; a block has one warp per kWarpColumns columns of the panel.
//
// Blocks sum their partial products of a column x with all columns. A warp needs only the products
// with its own columns and of x with itself. So warps exchange them without synchronizing their
// blocks: each number has its own memory, and its bits show whether it has arrived (SendNumber). A
// block synchronizes once per column, after the warp that has x has written it to shared memory.
//
// If there are several blocks, the last one has no rows and computes T.
template <typename T>
class RegisterPanel {
  using R = typename RealOf<T>::type;
  static constexpr int kParts = sizeof(T) / sizeof(R);
  static constexpr int kColumns = kWarpColumns;
  static_assert(kColumns == 4, "SumsOfWarp sums up four numbers");

 public:
  static constexpr int kRows = kLaneRows<sizeof(T)>;

  // `numbers` has min(m, n) * (n + 1) * (owners + 1) elements, all bits of which are set.
  __device__ RegisterPanel(Index m, int n, T* a, Index lda, T* t, Index ldt, T* numbers)
      : n_(n),
        k_(static_cast<int>(min(m, Index(n)))),
        owners_(gridDim.x > 1 ? static_cast<int>(gridDim.x) - 1 : 1),
        block_(static_cast<int>(blockIdx.x)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_(static_cast<int>(threadIdx.x) / 32 * kColumns),
        begin_(static_cast<int>(min(m, block_ * Rows(m)))),
        rows_(block_ < owners_ ? static_cast<int>(min(m - begin_, Rows(m))) : 0),
        steps_((rows_ + 31) / 32),
        a_(a),
        lda_(lda),
        t_(t),
        ldt_(ldt),
        numbers_(numbers) {}

  __device__ void Run() {
    const bool makes_t = block_ + 1 == static_cast<int>(gridDim.x);
    Load();
    if (block_ < owners_) Share(0);
    for (int j = 0; j < k_; ++j) {
      // If this warp's columns are complete, their products with later ones are needed only for T.
      const bool done = first_ + kColumns <= j && !makes_t;
      if (!done) {
        T factor = FromReal<T>(0);
        const Reflector h = Combine(j, &factor);
        if (block_ < owners_) Update(j, h, factor);
        if (makes_t) MakeT(j, h.tau, factor);
      }
      if (block_ < owners_ && j + 1 < k_) Share(j + 1);
    }
    Store();
  }

 private:
  // v = scale * 2^-size x, and the diagonal becomes beta.
  struct Reflector {
    T tau, scale;
    int size;
    R beta;
  };
  struct Shared {
    T x[2][32 * kRows];
    T sums[kPanelColumns][kPanelParts];
    T factors[kPanelColumns];
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) Shared memory;
    return memory;
  }

  // The scales of several numbers are the exponents of powers of two near the largest number.
  static constexpr int kNothing = -4096;  // if all are zero
  static constexpr int kLeast = sizeof(R) == 4 ? -126 : -1022;
  __device__ static R Power(int exponent) {
    if (exponent < kLeast) return 0;
    if constexpr (sizeof(R) == 4) {
      return __int_as_float((exponent + 127) << 23);
    } else {
      return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
    }
  }
  // Returns the 32 bits of the absolute value that contain the exponent.
  __device__ static unsigned UpperBits(float x) { return __float_as_uint(fabsf(x)); }
  __device__ static unsigned UpperBits(double x) {
    return static_cast<unsigned>(__double_as_longlong(fabs(x)) >> 32);
  }
  __device__ static unsigned UpperBitsOf(T x) {
    if constexpr (kParts == 1) return UpperBits(RealPart(x));
    return max(UpperBits(RealPart(x)), UpperBits(ImaginaryPart(x)));
  }
  // Returns the exponent for the largest UpperBits; `nonzero` tells whether any number is not zero.
  __device__ static int SizeOf(unsigned bits, bool nonzero) {
    constexpr int kShift = sizeof(R) == 4 ? 23 : 20;
    const int exponent = static_cast<int>(bits >> kShift);
    if (exponent == 0) return nonzero ? kLeast : kNothing;
    return exponent > -2 * kLeast + 2 ? 0 : min(exponent + kLeast - 1, -kLeast);
  }
  __device__ static bool IsZero(T x) { return RealPart(x) == 0 && ImaginaryPart(x) == 0; }

  __device__ Index Rows(Index m) const { return (m + owners_ - 1) / owners_; }
  __device__ int RowOf(int r) const { return begin_ + r * 32 + lane_; }
  __device__ bool HasRow(int r) const { return r * 32 + lane_ < rows_; }
  __device__ bool HasRowOf(int j) const { return begin_ <= j && j < begin_ + rows_; }
  // Calls f for a lane's rows. Absent rows are zeros.
  template <typename F>
  __device__ void ForRows(const F& f) const {
#pragma unroll
    for (int r = 0; r < kRows / 2; ++r) f(r);
    if (2 * steps_ <= kRows) return;
#pragma unroll
    for (int r = kRows / 2; r < kRows; ++r) f(r);
  }
  __device__ bool HasColumn(int q) const { return first_ + q < n_; }

  // The numbers of column j: for each column c, the partial sums of all blocks and the element of
  // row j; and the scales of the blocks' parts of x.
  __device__ T* Share(int j, int c) const { return numbers_ + (j * (n_ + 1) + c) * (owners_ + 1); }
  __device__ T* Row(int j, int c) const { return Share(j, c) + owners_; }
  __device__ T* Sizes(int j) const { return Share(j, n_); }
  // Reads the number, and returns whether it has arrived.
  __device__ static bool Receive(const T* from, T* x) {
    *x = ReceiveNumber(from);
    return HasCome(*x);
  }

  __device__ void Load() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
        x_[r][q] = FromReal<T>(0);
        if (HasRow(r) && HasColumn(q)) x_[r][q] = a_[RowOf(r) + (first_ + q) * lda_];
      }
    }
  }
  __device__ void Store() const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
        if (HasRow(r) && HasColumn(q)) a_[RowOf(r) + (first_ + q) * lda_] = x_[r][q];
      }
    }
  }

  // Sends row j, if this block has it, and this block's partial products of x with all columns. x
  // is the part of column j below the diagonal.
  __device__ void Share(int j) {
    T* x = shared().x[j & 1];
    const bool has_x = first_ <= j && j < first_ + kColumns;
    if (has_x) {
      ForRows([&](int r) {
        T mine = x_[r][0];
#pragma unroll
        for (int q = 1; q < kColumns; ++q) mine = first_ + q == j ? x_[r][q] : mine;
        x[r * 32 + lane_] = RowOf(r) > j ? mine : FromReal<T>(0);
      });
    }
    if (HasRowOf(j)) SendRow(j);
    __syncthreads();
    unsigned bits = 0, any = 0;
    ForRows([&](int r) {
      bits = max(bits, UpperBitsOf(x[r * 32 + lane_]));
      any |= IsZero(x[r * 32 + lane_]) ? 0 : 1;
    });
    bits = LargestOfWarp(bits);
    size_ = SizeOf(bits, bits != 0 || LargestOfWarp(any) != 0);
    const R unit = Power(size_ == kNothing ? 0 : -size_);
    T sums[kColumns];
    R square = 0;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) sums[q] = FromReal<T>(0);
    ForRows([&](int r) {
      const T v = Scale(x[r * 32 + lane_], unit);
#pragma unroll
      for (int q = 0; q < kColumns; ++q) sums[q] = MultiplyAdd(Conj(v), x_[r][q], sums[q]);
      square = MultiplyAdd(RealPart(v), RealPart(v), square);
      if constexpr (kParts == 2) {
        square = MultiplyAdd(ImaginaryPart(v), ImaginaryPart(v), square);
      }
    });
    if (has_x) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
        if (first_ + q == j) sums[q] = FromReal<T>(square);
      }
      if (lane_ == 0) SendNumber(Sizes(j) + block_, FromReal<T>(static_cast<R>(size_)));
    }
    const T sum = SumsOfWarp(sums, lane_);
    const int c = first_ + lane_ / 8;
    if (lane_ % 8 == 0 && c < n_) SendNumber(Share(j, c) + block_, sum);
  }

  __device__ void SendRow(int j) const {
    T row[kColumns];
#pragma unroll
    for (int q = 0; q < kColumns; ++q) row[q] = x_[0][q];
    ForRows([&](int r) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) row[q] = RowOf(r) == j ? x_[r][q] : row[q];
    });
    if ((j - begin_) % 32 != lane_) return;
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (HasColumn(q)) SendNumber(Row(j, first_ + q), row[q]);
    }
  }

  // Computes the reflector of column j. *factor belongs to this lane's column: the number to
  // subtract from its row j or, for a column before j, the product of its v with this one.
  __device__ Reflector Combine(int j, T* factor) const {
    const int mine = min(first_ + lane_ / 8, n_ - 1);
    T sums[kColumns], square = FromReal<T>(0);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) sums[q] = FromReal<T>(0);
    int size = kNothing;
    T row, diagonal;
    for (int first = 0; first < owners_; first += 32) {
      const int block = min(first + lane_, owners_ - 1);
      T shares[kColumns], next_square, next_size;
      bool come = false;
      while (!come) {
        come = Receive(Row(j, mine), &row);
        come = Receive(Row(j, j), &diagonal) && come;
#pragma unroll
        for (int q = 0; q < kColumns; ++q) {
          come = Receive(Share(j, min(first_ + q, n_ - 1)) + block, &shares[q]) && come;
        }
        come = Receive(Share(j, j) + block, &next_square) && come;
        come = Receive(Sizes(j) + block, &next_size) && come;
      }
      if (first + lane_ >= owners_) continue;
      const int share_size = static_cast<int>(RealPart(next_size)), larger = max(size, share_size);
      const R old = Power(size - larger), ratio = Power(share_size - larger);
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
        sums[q] = Plus(Scale(sums[q], old), Scale(shares[q], ratio));
      }
      square = Plus(Scale(Scale(square, old), old), Scale(Scale(next_square, ratio), ratio));
      size = larger;
    }
    const unsigned largest = LargestOfWarp(static_cast<unsigned>(size - kNothing));
    const bool rest = largest != 0;
    const int diagonal_size = SizeOf(UpperBitsOf(diagonal), !IsZero(diagonal));
    Reflector h;
    h.size = max(static_cast<int>(largest) + kNothing, diagonal_size);
    if (h.size == kNothing) h.size = 0;
    const R ratio = Power(size - h.size), unit = Power(-h.size);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) sums[q] = Scale(sums[q], ratio);
    const R total_square = SumOfWarp(RealPart(square) * ratio * ratio);
    T total = SumsOfWarp(sums, lane_);
    if (mine == j) total = FromReal<T>(total_square);

    const T x0 = Scale(diagonal, unit);
    const R re = RealPart(x0), im = ImaginaryPart(x0);
    const bool nothing = !rest && im == 0;
    const R norm = sqrt(re * re + im * im + total_square);
    const R beta = nothing ? 1 : re >= 0 ? -norm : norm;
    // 1 / (re - beta + i im), where |re - beta| >= |im|.
    const R difference = re - beta, slope = kParts == 1 ? R(0) : im / difference;
    const R reciprocal = 1 / (difference + im * slope);
    h.tau = FromReal<T>(0);
    h.scale = h.tau;
    h.beta = RealPart(diagonal);
    if (!nothing) {
      h.tau = FromParts<T>((beta - re) / beta, -im / beta);
      h.scale = FromParts<T>(reciprocal, -slope * reciprocal);
      h.beta = beta * Power(h.size);
    }
    *factor = mine > j ? Times(Conj(h.tau), MultiplyAdd(Conj(h.scale), total, row))
                       : MultiplyAdd(h.scale, Conj(total), Conj(row));
    return h;
  }

  // Replaces column j by v and updates the later columns.
  __device__ void Update(int j, const Reflector& h, T factor) {
    T factors[kColumns];
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      factors[q] = Scale(OfLane(factor, 8 * q), -1);
      if (first_ + q <= j) factors[q] = FromReal<T>(0);
    }
    if (first_ + kColumns <= j) return;
    const T* x = shared().x[j & 1];
    const R unit = Power(-h.size);
    const bool has_row = HasRowOf(j), has_x = first_ <= j;
    ForRows([&](int r) {
      T v = Times(h.scale, Scale(x[r * 32 + lane_], unit));
      if (has_row && RowOf(r) == j) v = FromReal<T>(1);
#pragma unroll
      for (int q = 0; q < kColumns; ++q) x_[r][q] = MultiplyAdd(v, factors[q], x_[r][q]);
      if (has_x && RowOf(r) >= j) {
        if (RowOf(r) == j) v = FromReal<T>(h.beta);
#pragma unroll
        for (int q = 0; q < kColumns; ++q) x_[r][q] = first_ + q == j ? v : x_[r][q];
      }
    });
  }

  __device__ void MakeT(int j, T tau, T factor) const {
    Shared& s = shared();
    const int c = first_ + lane_ / 8;
    if (lane_ % 8 == 0 && c < n_) s.factors[c] = factor;
    __syncthreads();
    MakeColumnOfT<kPanelParts>(k_, j, tau, s.factors, s.sums, t_, ldt_);
  }

  const int n_, k_;
  const int owners_, block_;
  const int lane_, first_;  // first_: this warp's first column
  const int begin_, rows_, steps_;
  T* const a_;
  const Index lda_;
  T* const t_;
  const Index ldt_;
  T* const numbers_;
  T x_[kRows][kColumns];
  int size_;  // the scale of this block's part of x
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_QR_REGISTER_PANEL_CUH_
