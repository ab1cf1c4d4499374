// The engine's own kernels: everything beside cuBLAS and cuSOLVER that has to run on the device.
// Matrices are column-major. Compiled by NVRTC, so without the standard library.
#include <cuComplex.h>

namespace {

using Index = long long;

constexpr int kNoInfo = 0x7fffffff, kDifferentOperands = -2, kMisplaced = -101;  // device.h
constexpr int kTile = 32;
constexpr int kSolveColumns = 128;  // as in kernels.h
constexpr int kCopySegment = 256 * 64;

template <typename T>
struct RealOf {
  using type = T;
};
template <>
struct RealOf<cuComplex> {
  using type = float;
};
template <>
struct RealOf<cuDoubleComplex> {
  using type = double;
};

template <typename T>
__device__ T Conj(T x) {
  return x;
}
__device__ cuComplex Conj(cuComplex x) { return cuConjf(x); }
__device__ cuDoubleComplex Conj(cuDoubleComplex x) { return cuConj(x); }

__device__ float RealPart(float x) { return x; }
__device__ double RealPart(double x) { return x; }
__device__ float RealPart(cuComplex x) { return x.x; }
__device__ double RealPart(cuDoubleComplex x) { return x.x; }

template <typename T>
__device__ T FromReal(typename RealOf<T>::type x) {
  return x;
}
template <>
__device__ cuComplex FromReal<cuComplex>(float x) {
  return make_cuComplex(x, 0);
}
template <>
__device__ cuDoubleComplex FromReal<cuDoubleComplex>(double x) {
  return make_cuDoubleComplex(x, 0);
}

template <typename T>
__device__ T Nan();
template <>
__device__ float Nan<float>() {
  return __int_as_float(0x7fc00000);
}
template <>
__device__ double Nan<double>() {
  return __longlong_as_double(0x7ff8000000000000);
}
template <>
__device__ cuComplex Nan<cuComplex>() {
  return make_cuComplex(Nan<float>(), 0);
}
template <>
__device__ cuDoubleComplex Nan<cuDoubleComplex>() {
  return make_cuDoubleComplex(Nan<double>(), 0);
}

__device__ float MultiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }
__device__ double MultiplyAdd(double a, double b, double c) { return fma(a, b, c); }
__device__ cuComplex MultiplyAdd(cuComplex a, cuComplex b, cuComplex c) { return cuCfmaf(a, b, c); }
__device__ cuDoubleComplex MultiplyAdd(cuDoubleComplex a, cuDoubleComplex b, cuDoubleComplex c) {
  return cuCfma(a, b, c);
}

__device__ float Scale(float x, float factor) { return x * factor; }
__device__ double Scale(double x, double factor) { return x * factor; }
__device__ cuComplex Scale(cuComplex x, float factor) {
  return make_cuComplex(x.x * factor, x.y * factor);
}
__device__ cuDoubleComplex Scale(cuDoubleComplex x, double factor) {
  return make_cuDoubleComplex(x.x * factor, x.y * factor);
}

__device__ bool Finite(float x) { return isfinite(x); }
__device__ bool Finite(double x) { return isfinite(x); }
__device__ bool Finite(cuComplex x) { return isfinite(x.x) && isfinite(x.y); }
__device__ bool Finite(cuDoubleComplex x) { return isfinite(x.x) && isfinite(x.y); }

__device__ Index FirstElement() { return blockIdx.x * Index(blockDim.x) + threadIdx.x; }
__device__ Index ElementStride() { return gridDim.x * Index(blockDim.x); }

template <typename T>
__device__ void Fill(Index m, Index n, T* a, Index lda, T value) {
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) a[i / m * lda + i % m] = value;
}

// One block. 2 log of the product of the diagonal, in an order that does not depend on timing.
template <typename T>
__device__ void AddLogDet(Index n, const T* l, Index ldl, typename RealOf<T>::type* sum) {
  using R = typename RealOf<T>::type;
  __shared__ R partial[256];
  R mine = 0;
  for (Index j = threadIdx.x; j < n; j += blockDim.x) mine += log(RealPart(l[j * ldl + j]));
  partial[threadIdx.x] = mine;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum += 2 * partial[0];
}

// One block of 256. w[i] := max(w[0], ..., w[i]): each thread takes a run of elements, then the
// largest of all runs before its own.
template <typename R>
__device__ void Ascend(Index n, R* w) {
  __shared__ R last[256];
  const Index run = (n + blockDim.x - 1) / blockDim.x;
  const Index begin = min(threadIdx.x * run, n), end = min(begin + run, n);
  for (Index i = begin + 1; i < end; ++i) {
    if (w[i] < w[i - 1]) w[i] = w[i - 1];
  }
  if (begin < end) last[threadIdx.x] = w[end - 1];
  __syncthreads();
  if (begin == end || threadIdx.x == 0) return;
  R before = last[0];
  for (int i = 1; i < threadIdx.x; ++i) {
    if (before < last[i]) before = last[i];
  }
  for (Index i = begin; i < end && w[i] < before; ++i) w[i] = before;
}

// One block. *failed: the order of the first leading minor of the tile that is not positive
// definite, or 0. The solver need not stop at a diagonal that is not finite. *info: see
// Blas::Potrf.
template <typename T>
__device__ void CheckFactor(Index n, const T* a, Index lda, Index offset, const int* solver_info,
                            int* failed, int* info) {
  __shared__ int first;
  if (threadIdx.x == 0) first = *solver_info > 0 ? *solver_info : kNoInfo;
  __syncthreads();
  for (Index j = threadIdx.x; j < n; j += blockDim.x) {
    if (!Finite(a[j * lda + j])) atomicMin(&first, static_cast<int>(j + 1));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  *failed = first == kNoInfo ? 0 : first;
  if (first != kNoInfo) *info = min(*info, static_cast<int>(offset + first));
}

// *first: the smallest of itself and offset + the column, from 1, where the lower trapezoid of an
// m x n block holds NaN or infinity.
template <typename T>
__device__ void CheckFinite(Index m, Index n, const T* a, Index lda, Index offset, int* first) {
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) {
    const Index row = i % m, column = i / m;
    if (row >= column && !Finite(a[column * lda + row])) {
      atomicMin(first, static_cast<int>(offset + column + 1));
    }
  }
}

// b := a^H through shared memory; a is m x n. One block a tile.
template <typename T>
__device__ void ConjTranspose(Index m, Index n, const T* a, Index lda, T* b, Index ldb) {
  __shared__ T tile[kTile][kTile + 1];
  const Index tiles_m = (m + kTile - 1) / kTile;
  const Index row = blockIdx.x % tiles_m * kTile, column = blockIdx.x / tiles_m * kTile;
  for (int j = threadIdx.y; j < kTile; j += blockDim.y) {
    if (row + threadIdx.x < m && column + j < n) {
      tile[j][threadIdx.x] = a[(column + j) * lda + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTile; j += blockDim.y) {
    if (column + threadIdx.x < n && row + j < m) {
      b[(row + j) * ldb + column + threadIdx.x] = Conj(tile[threadIdx.x][j]);
    }
  }
}

// A block's segment of a column of `height` bytes, Unit by Unit, a few of them under way at a time.
template <typename Unit>
__device__ void CopySegment(char* target, Index target_pitch, const char* source,
                            Index source_pitch, Index height) {
  constexpr int kAtOnce = 4;
  const Index segments = (height + kCopySegment - 1) / kCopySegment;
  const Index column = blockIdx.x / segments, begin = blockIdx.x % segments * kCopySegment;
  Unit* to = reinterpret_cast<Unit*>(target + column * target_pitch + begin);
  const Unit* from = reinterpret_cast<const Unit*>(source + column * source_pitch + begin);
  const int count = static_cast<int>(min(height - begin, Index(kCopySegment)) / sizeof(Unit));
  for (int i = threadIdx.x; i < count; i += kAtOnce * blockDim.x) {
    Unit units[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * blockDim.x < count) units[j] = from[i + j * blockDim.x];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * blockDim.x < count) to[i + j * blockDim.x] = units[j];
    }
  }
}

// The bytes of one element to shared memory, on their own; see AwaitCopies. On the host, where
// tests/cc/kernels_test.cc runs all of this, at once.
template <int kBytes>
__device__ void CopyAsync(void* shared, const void* global) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "n"(kBytes)
               : "memory");
#else
  __builtin_memcpy(shared, global, kBytes);
#endif
}
__device__ void AwaitCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// X := B L^-H, or B L^-1 where `backward`, by substitution: a thread a row; n is at most
// kSolveColumns. Columns are taken in the order in which they are solved for (from the last one on
// where backward), a few at a time: first those before are subtracted, with which the row comes
// back from memory, then they are solved for in registers. What the next step needs is on its way
// meanwhile. The code is short on purpose: most of a small call is the time to fetch it.
template <typename T>
class RowSolver {
  using R = typename RealOf<T>::type;
  static constexpr bool kComplex = sizeof(T) > sizeof(R);
  static constexpr int kColumns = sizeof(T) == 16 ? 8 : 16;  // that are solved for at a time
  static constexpr int kAhead = kComplex ? 4 : 8;            // columns before them, likewise
  using Factors = T[kSolveColumns][kColumns];  // [i][j]: of x_i in the equation for x_begin+j

 public:
  // The first column in that order, and the way from each to the next, is where the operands begin.
  __device__ RowSolver(Index m, Index n, int backward, const T* l, Index ldl, const T* b, Index ldb,
                       T* x, Index ldx)
      : inside_(FirstElement() < m),
        n_(static_cast<int>(n)),
        conjugate_(!backward),
        l_(backward ? l + (n - 1) * (ldl + 1) : l),
        l_solved_(backward ? -1 : ldl),
        l_equation_(backward ? -ldl : 1),
        b_((backward ? b + (n - 1) * ldb : b) + FirstElement()),
        b_step_(backward ? -ldb : ldb),
        x_((backward ? x + (n - 1) * ldx : x) + FirstElement()),
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
      if (!inside_) continue;
      Subtract(begin, factors[parity], sum);
      Solve(begin, factors[parity], reciprocals, sum);
    }
  }

 private:
  // Columns from `begin` on of B, and what x before and among them is multiplied with.
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
      right_side[j] = inside_ && begin + j < n_ ? *source : FromReal<T>(0);
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

  // Beyond n is what nobody stores.
  __device__ void Solve(int begin, const Factors& factors, const R* reciprocals, T* sum) {
    T* column = x_ + begin * x_step_;
#pragma unroll
    for (int j = 0; j < kColumns; ++j, column += x_step_) {
      const T solved = Scale(sum[j], reciprocals[begin + j]);
      if (begin + j < n_) *column = solved;
#pragma unroll
      for (int k = j + 1; k < kColumns; ++k) {
        sum[k] = Minus(solved, factors[begin + j][k], sum[k]);
      }
    }
  }

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

// One block a tile of the n x n block; those above the diagonal have nothing to do.
template <typename T>
__device__ void MirrorLower(Index n, T* a, Index lda) {
  __shared__ T tile[kTile][kTile + 1];
  const Index tiles = (n + kTile - 1) / kTile;
  const Index row = blockIdx.x % tiles * kTile, column = blockIdx.x / tiles * kTile;
  if (row < column) return;
  for (int j = threadIdx.y; j < kTile; j += blockDim.y) {
    // Above the diagonal may lie what nobody has written.
    if (row + threadIdx.x < n && row + threadIdx.x >= column + j) {
      tile[j][threadIdx.x] = a[(column + j) * lda + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kTile; j += blockDim.y) {
    const Index target_row = column + threadIdx.x, target_column = row + j;
    if (target_row >= n || target_column >= n || target_row > target_column) continue;
    T value = Conj(tile[threadIdx.x][j]);
    if (target_row == target_column) value = FromReal<T>(RealPart(value));
    a[target_column * lda + target_row] = value;
  }
}

}  // namespace

#define KERNEL extern "C" __global__ void

#define KERNELS(T, R, letter)                                                                      \
  KERNEL jaxmg_add_log_det_##letter(Index n, const T* l, Index ldl, R* sum) {                      \
    AddLogDet(n, l, ldl, sum);                                                                     \
  }                                                                                                \
  KERNEL jaxmg_ascend_##letter(Index n, R* w) { Ascend(n, w); }                                    \
  KERNEL jaxmg_check_factor_##letter(Index n, const T* a, Index lda, Index offset,                 \
                                     const int* solver_info, int* failed, int* info) {             \
    CheckFactor(n, a, lda, offset, solver_info, failed, info);                                     \
  }                                                                                                \
  KERNEL jaxmg_check_finite_##letter(Index m, Index n, const T* a, Index lda, Index offset,        \
                                     int* first) {                                                 \
    CheckFinite(m, n, a, lda, offset, first);                                                      \
  }                                                                                                \
  KERNEL jaxmg_clear_if_##letter(const int* first, Index n, T* a, Index lda) {                     \
    if (*first != kNoInfo) Fill(n, n, a, lda, FromReal<T>(0));                                     \
  }                                                                                                \
  KERNEL jaxmg_conj_transpose_##letter(Index m, Index n, const T* a, Index lda, T* b, Index ldb) { \
    ConjTranspose(m, n, a, lda, b, ldb);                                                           \
  }                                                                                                \
  KERNEL jaxmg_conjugate_##letter(Index m, Index n, T* a, Index lda) {                             \
    for (Index i = FirstElement(); i < m * n; i += ElementStride()) {                              \
      a[i / m * lda + i % m] = Conj(a[i / m * lda + i % m]);                                       \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_identity_##letter(Index n, T* a, Index lda) {                                       \
    for (Index i = FirstElement(); i < n * n; i += ElementStride()) {                              \
      a[i / n * lda + i % n] = FromReal<T>(i / n == i % n ? 1 : 0);                                \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_mirror_lower_##letter(Index n, T* a, Index lda) { MirrorLower(n, a, lda); }         \
  KERNEL jaxmg_poison_if_##letter(const int* status, Index m, Index n, T* a, Index lda) {          \
    if (*status != 0) Fill(m, n, a, lda, Nan<T>());                                                \
  }                                                                                                \
  KERNEL jaxmg_solve_rows_##letter(Index m, Index n, int backward, const T* l, Index ldl,          \
                                   const T* b, Index ldb, T* x, Index ldx) {                       \
    RowSolver<T>(m, n, backward, l, ldl, b, ldb, x, ldx).Run();                                    \
  }                                                                                                \
  KERNEL jaxmg_sum_reals_##letter(const R* terms, Index stride, Index count, R* sum) {             \
    if (threadIdx.x != 0) return;                                                                  \
    R total = 0;                                                                                   \
    for (Index i = 0; i < count; ++i) total += terms[i * stride];                                  \
    *sum = total;                                                                                  \
  }

KERNELS(float, float, s)
KERNELS(double, double, d)
KERNELS(cuComplex, float, c)
KERNELS(cuDoubleComplex, double, z)

// Columns of `height` bytes. Pointers, pitches and heights are multiples of 4.
KERNEL jaxmg_copy_columns(char* target, Index target_pitch, const char* source, Index source_pitch,
                          Index height) {
  const Index all = reinterpret_cast<Index>(target) | reinterpret_cast<Index>(source) |
                    target_pitch | source_pitch | height;
  if (all % 16 == 0) {
    CopySegment<uint4>(target, target_pitch, source, source_pitch, height);
  } else if (all % 8 == 0) {
    CopySegment<uint2>(target, target_pitch, source, source_pitch, height);
  } else {
    CopySegment<unsigned>(target, target_pitch, source, source_pitch, height);
  }
}

KERNEL jaxmg_fill_int32(int* data, Index count, int value) {
  for (Index i = FirstElement(); i < count; i += ElementStride()) data[i] = value;
}

// One block. `stale` is memory of the host, or null.
KERNEL jaxmg_init_info(const int* place, int rank, int group, int* info, int* stale) {
  if (threadIdx.x != 0) return;
  const bool misplaced = place[0] != rank || place[1] != group;
  *info = misplaced ? kMisplaced : kNoInfo;
  if (misplaced && stale != nullptr) *stale = 1;
}

// *digest, which is 0, grows by what the host's device computes: sums of integers are the same in
// any order.
KERNEL jaxmg_digest(const unsigned* words, Index count, int* digest) {
  unsigned sum = 0;
  for (Index i = FirstElement(); i < count; i += ElementStride()) {
    sum += words[i] * static_cast<unsigned>(2 * i + 1);
  }
  atomicAdd(reinterpret_cast<unsigned*>(digest), sum);
}

KERNEL jaxmg_reduce_info(const int* pairs, Index stride, Index count, int* status) {
  if (threadIdx.x != 0) return;
  int least = kNoInfo;
  for (Index i = 0; i < count; ++i) {
    least = min(least, pairs[i * stride]);
    if (pairs[i * stride + 1] != pairs[1]) least = min(least, kDifferentOperands);
  }
  *status = least == kNoInfo ? 0 : least;
}

// What the check of the matrix found goes before what the solver said of zeros.
KERNEL jaxmg_set_syevd_info(const int* first, const int* solver_info, int* info) {
  if (threadIdx.x == 0) *info = *first != kNoInfo ? *first : *solver_info;
}
