// Elementwise operations on stacks and sums over their matrices: the kernels of StackElements.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_ELEMENT_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_ELEMENT_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// A block's piece of a matrix of `size` elements; each matrix has `pieces` blocks.
struct StackPiece {
  __device__ StackPiece(Index size, int pieces)
      : matrix(blockIdx.x / pieces),
        number(static_cast<int>(blockIdx.x) % pieces),
        first(size / pieces * number + min(Index(number), size % pieces)),
        end(first + size / pieces + (number < size % pieces ? 1 : 0)) {}

  const Index matrix;
  const int number;
  const Index first, end;  // elements of the matrix
};

// out[i] := of(i) for the elements of a piece. A thread reads several elements before it writes.
template <typename T, typename F>
__device__ void MapPiece(const StackPiece& piece, T* out, const F& of) {
  constexpr int kAtOnce = 4;
  const Index threads = blockDim.x;
  for (Index i = piece.first + threadIdx.x; i < piece.end; i += kAtOnce * threads) {
    T values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * threads < piece.end) values[j] = of(i + j * threads);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * threads < piece.end) out[i + j * threads] = values[j];
    }
  }
}

// Returns the bits of |x| as an integer. They have the order of the numbers, with NaN last.
__device__ inline unsigned long long OrderedBits(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}
__device__ inline unsigned long long OrderedBits(double x) {
  return static_cast<unsigned long long>(__double_as_longlong(x)) & 0x7fffffffffffffffull;
}

// Reduces one number of each thread of a block of kStackElementThreads. Thread 0 gets the result.
template <typename Number, typename F>
__device__ Number ReduceBlock(Number mine, const F& join) {
  __shared__ Number numbers[kStackElementThreads];
  numbers[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kStackElementThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      numbers[threadIdx.x] = join(numbers[threadIdx.x], numbers[threadIdx.x + half]);
    }
    __syncthreads();
  }
  return numbers[0];
}

// largest[block] := the bits of the largest magnitude in a piece.
template <typename T>
__device__ void LargestOfStack(Index size, int pieces, const T* a, unsigned long long* largest) {
  const StackPiece piece(size, pieces);
  const T* const matrix = a + piece.matrix * size;
  unsigned long long found = 0;
#pragma unroll 4
  for (Index i = piece.first + threadIdx.x; i < piece.end; i += blockDim.x) {
    found = max(found, OrderedBits(RealPart(matrix[i])));
    found = max(found, OrderedBits(ImaginaryPart(matrix[i])));
  }
  found = ReduceBlock(found, [](unsigned long long x, unsigned long long y) { return max(x, y); });
  if (threadIdx.x == 0) largest[blockIdx.x] = found;
}

// See StackElements::Scale. `largest` is the result of LargestOfStack.
template <typename T>
__device__ void ScaleStack(Index size, int pieces, int step, const unsigned long long* largest,
                           const T* a, T* scaled, int* exponents) {
  using R = typename RealOf<T>::type;
  constexpr int kDigits = sizeof(R) == 4 ? 23 : 52, kBias = sizeof(R) == 4 ? 127 : 1023;
  const StackPiece piece(size, pieces);
  unsigned long long bits = 0;
  for (int i = 0; i < pieces; ++i) bits = max(bits, largest[piece.matrix * pieces + i]);
  int exponent = static_cast<int>(bits >> kDigits) - kBias;
  const bool usable = bits != 0 && exponent <= kBias;
  exponent = max(exponent, 1 - kBias);
  const int below = exponent % step;
  exponent = usable ? exponent - (below < 0 ? below + step : below) : 0;
  if (piece.number == 0 && threadIdx.x == 0) exponents[piece.matrix] = exponent;
  const int half = -exponent >> 1;
  const R first = scalbn(R(1), half), second = scalbn(R(1), -exponent - half);
  const T* const matrix = a + piece.matrix * size;
  MapPiece(piece, scaled + piece.matrix * size,
           [=](Index i) { return Scale(Scale(matrix[i], first), second); });
}

// sums[block] := the sum over a piece; see StackElements::Sum. `what` is the number of a
// StackedSum.
template <typename T>
__device__ void SumStack(int what, Index size, int pieces, Index n, const T* x, const T* y,
                         double* sums) {
  const StackPiece piece(size, pieces);
  const Index begin = piece.matrix * size;
  double sum = 0;
#pragma unroll 4
  for (Index i = piece.first + threadIdx.x; i < piece.end; i += blockDim.x) {
    double re = RealPart(x[begin + i]), im = ImaginaryPart(x[begin + i]);
    if (what == kSumFromIdentity) {
      if (i / n == i % n) re = RealPart(x[begin + i]) - typename RealOf<T>::type(1);
      sum += re * re + im * im;
      continue;
    }
    const double re_y = RealPart(y[begin + i]), im_y = ImaginaryPart(y[begin + i]);
    if (what == kSumInner) {
      sum += re * re_y + im * im_y;
    } else {
      re -= re_y, im -= im_y;
      sum += re * re + im * im;
    }
  }
  sum = ReduceBlock(sum, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// sums[i] := the sum of the `pieces` parts of matrix i.
__device__ inline void AddStackParts(Index count, int pieces, const double* parts, double* sums) {
  const Index threads = gridDim.x * Index(blockDim.x);
  for (Index matrix = blockIdx.x * Index(blockDim.x) + threadIdx.x; matrix < count;
       matrix += threads) {
    double sum = 0;
    for (int i = 0; i < pieces; ++i) sum += parts[matrix * pieces + i];
    sums[matrix] = sum;
  }
}

// See StackElements::DivideByRoots.
template <typename T>
__device__ void DivideStack(Index size, int pieces, const double* sums, const T* a, T* x) {
  using R = typename RealOf<T>::type;
  const StackPiece piece(size, pieces);
  const double sum = sums[piece.matrix], root = sum == 0 ? 1 : sqrt(sum);
  const T* const matrix = a + piece.matrix * size;
  MapPiece(piece, x + piece.matrix * size, [=](Index i) {
    return FromParts<T>(static_cast<R>(RealPart(matrix[i]) / root),
                        static_cast<R>(ImaginaryPart(matrix[i]) / root));
  });
}

// See StackElements::Combine.
template <typename T>
__device__ void CombineStack(Index size, int pieces, Index n, const T* x, const T* y,
                             const typename RealOf<T>::type* of_x,
                             const typename RealOf<T>::type* of_y,
                             const typename RealOf<T>::type* of_identity,
                             typename RealOf<T>::type divisor, T* out) {
  using R = typename RealOf<T>::type;
  const StackPiece piece(size, pieces);
  const Index begin = piece.matrix * size;
  const R by_x = of_x[piece.matrix], by_y = of_y == nullptr ? R(0) : of_y[piece.matrix];
  const R by_identity = of_identity == nullptr ? R(0) : of_identity[piece.matrix];
  MapPiece(piece, out + begin, [=](Index i) {
    T sum = by_x == 0 ? FromReal<T>(0) : Scale(x[begin + i], by_x);
    if (by_y != 0) sum = Plus(sum, Scale(y[begin + i], by_y));
    if (by_identity != 0 && i / n == i % n) sum = Plus(sum, FromReal<T>(by_identity));
    return FromParts<T>(RealPart(sum) / divisor, ImaginaryPart(sum) / divisor);
  });
}

// See StackElements::MakeHermitian. A thread processes an element of the upper triangle at a time.
template <typename T>
__device__ void MakeStackHermitian(int pieces, Index n, T* a) {
  const StackPiece piece(n * n, pieces);
  T* const matrix = a + piece.matrix * n * n;
  for (Index e = piece.first + threadIdx.x; e < piece.end; e += blockDim.x) {
    const Index i = e / n, j = e % n;
    if (i > j) continue;
    const T mean =
        Scale(Plus(matrix[i * n + j], Conj(matrix[j * n + i])), typename RealOf<T>::type(0.5));
    matrix[i * n + j] = mean;
    matrix[j * n + i] = Conj(mean);
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_ELEMENT_STACKS_CUH_
