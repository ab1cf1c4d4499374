// The engine's own kernels: everything beside cuBLAS and cuSOLVER that has to run on the device.
// Matrices are column-major. Compiled by NVRTC, so without the standard library.
#include <cuComplex.h>

namespace {

using Index = long long;

constexpr int kNoInfo = 0x7fffffff;
constexpr int kTile = 32;

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

// The inverse of a lower triangular matrix with a real diagonal, by one block of 256 threads in
// tiles of 32 x 32; zeros above the diagonal. First the diagonal tiles, a warp each, a column a
// thread; then diagonal by diagonal below them W_ij = -W_ii sum_k L_ik W_kj.
template <typename T>
class TriangularInverse {
 public:
  // L is size x size; its inverse has leading dimension ld, of which `ld` rows are written.
  __device__ TriangularInverse(Index size, const T* l, Index ldl, T* inverse, Index ld)
      : size_(size), l_(l), ldl_(ldl), inverse_(inverse), ld_(ld) {}

  __device__ void Compute(T (*left)[kTile], T (*right)[kTile]) {
    for (Index i = threadIdx.x; i < size_ * ld_; i += blockDim.x) inverse_[i] = FromReal<T>(0);
    __syncthreads();
    const Index tiles = (size_ + kTile - 1) / kTile;
    for (Index i = threadIdx.x / kTile; i < tiles; i += blockDim.x / kTile) InvertDiagonal(i);
    __syncthreads();
    for (Index distance = 1; distance < tiles; ++distance) {
      for (Index i = distance; i < tiles; ++i) Below(i, i - distance, left, right);
    }
  }

 private:
  static constexpr int kRows = 4;  // of a tile, that one of 256 threads computes

  // Beyond the matrix L goes on as the identity.
  __device__ T Lower(Index row, Index column) const {
    if (row < column) return FromReal<T>(0);
    if (row >= size_ || column >= size_) return FromReal<T>(row == column);
    return l_[column * ldl_ + row];
  }
  __device__ T Inverse(Index row, Index column) const {
    return row < ld_ && column < size_ ? inverse_[column * ld_ + row] : FromReal<T>(0);
  }
  __device__ void Store(Index row, Index column, T value) {
    if (row < size_ && column < size_) inverse_[column * ld_ + row] = value;
  }

  __device__ void InvertDiagonal(Index tile) {
    const Index first = tile * kTile;
    const int column = threadIdx.x % kTile;
    T x[kTile];
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      T sum = FromReal<T>(i == column);
#pragma unroll
      for (int k = 0; k < i; ++k) {
        sum = MultiplyAdd(Scale(Lower(first + i, first + k), -1), x[k], sum);
      }
      x[i] = Scale(sum, 1 / RealPart(Lower(first + i, first + i)));
    }
#pragma unroll
    for (int i = 0; i < kTile; ++i) Store(first + i, first + column, x[i]);
  }

  // sum[r] += (left right)(y + 8 r, x), the tiles with the inner index first.
  __device__ void Multiply(T (*left)[kTile], T (*right)[kTile], T* sum) const {
    const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;
    for (int k = 0; k < kTile; ++k) {
      for (int r = 0; r < kRows; ++r) {
        sum[r] = MultiplyAdd(left[k][y + 8 * r], right[k][x], sum[r]);
      }
    }
  }

  __device__ void Below(Index i, Index j, T (*left)[kTile], T (*right)[kTile]) {
    const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;
    T sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = FromReal<T>(0);
    for (Index k = j; k < i; ++k) {
      for (int r = 0; r < kRows; ++r) {  // neighbours in x are neighbours in memory
        left[y + 8 * r][x] = Lower(i * kTile + x, k * kTile + y + 8 * r);
        right[x][y + 8 * r] = Inverse(k * kTile + x, j * kTile + y + 8 * r);
      }
      __syncthreads();
      Multiply(left, right, sum);
      __syncthreads();
    }
    for (int r = 0; r < kRows; ++r) {
      left[y + 8 * r][x] = Inverse(i * kTile + x, i * kTile + y + 8 * r);
      right[y + 8 * r][x] = Scale(sum[r], -1);
      sum[r] = FromReal<T>(0);
    }
    __syncthreads();
    Multiply(left, right, sum);
    for (int r = 0; r < kRows; ++r) Store(i * kTile + y + 8 * r, j * kTile + x, sum[r]);
    __syncthreads();
  }

  const Index size_;
  const T* const l_;
  const Index ldl_;
  T* const inverse_;
  const Index ld_;
};

// One block a diagonal block of `block` columns; their inverses follow each other. Zeros above the
// diagonals of both.
template <typename T>
__device__ void InvertBlocks(Index n, Index block, T* l, Index ldl, T* inverses) {
  __shared__ T left[kTile][kTile], right[kTile][kTile];
  const Index first = blockIdx.x * block, size = min(block, n - first);
  T* corner = l + first * ldl + first;
  TriangularInverse<T> inverse(size, corner, ldl, inverses + first * block, block);
  inverse.Compute(left, right);
  for (Index i = threadIdx.x; i < size * size; i += blockDim.x) {
    if (i % size < i / size) corner[i / size * ldl + i % size] = FromReal<T>(0);
  }
}

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
  KERNEL jaxmg_invert_blocks_##letter(Index n, Index block, T* l, Index ldl, T* inverses) {        \
    InvertBlocks(n, block, l, ldl, inverses);                                                      \
  }                                                                                                \
  KERNEL jaxmg_mirror_lower_##letter(Index n, T* a, Index lda) { MirrorLower(n, a, lda); }         \
  KERNEL jaxmg_poison_if_##letter(const int* status, Index m, Index n, T* a, Index lda) {          \
    if (*status != 0) Fill(m, n, a, lda, Nan<T>());                                                \
  }                                                                                                \
  KERNEL jaxmg_sum_reals_##letter(const R* terms, Index count, R* sum) {                           \
    if (threadIdx.x != 0) return;                                                                  \
    R total = 0;                                                                                   \
    for (Index i = 0; i < count; ++i) total += terms[i];                                           \
    *sum = total;                                                                                  \
  }

KERNELS(float, float, s)
KERNELS(double, double, d)
KERNELS(cuComplex, float, c)
KERNELS(cuDoubleComplex, double, z)

KERNEL jaxmg_fill_int32(int* data, Index count, int value) {
  for (Index i = FirstElement(); i < count; i += ElementStride()) data[i] = value;
}

KERNEL jaxmg_reduce_info(const int* infos, Index count, int* status) {
  if (threadIdx.x != 0) return;
  int least = kNoInfo;
  for (Index i = 0; i < count; ++i) least = min(least, infos[i]);
  *status = least == kNoInfo ? 0 : least;
}

// What the check of the matrix found goes before what the solver said of zeros.
KERNEL jaxmg_set_syevd_info(const int* first, const int* solver_info, int* info) {
  if (threadIdx.x == 0) *info = *first != kNoInfo ? *first : *solver_info;
}
