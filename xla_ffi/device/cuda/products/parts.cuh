// Kernels that split a factor into parts (parts.h), bitwise equal to the host device.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_PARTS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_PARTS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

inline constexpr int kParts = 3;

struct SplitNumber {
  unsigned short part[kParts];

  __device__ SplitNumber(float x, bool halves) {
    if (halves) {
      x *= kHalfScale;
      part[0] = NearestHalf(x);
      const float first = OfHalf(part[0]);
      part[1] = NearestHalf((x - first) * kHalfShift);
      part[2] = NearestHalf(first / kHalfShift);
      return;
    }
    for (int p = 0; p < kParts; ++p) {
      part[p] = Nearest(x);
      const unsigned bits = static_cast<unsigned>(part[p]) << 16;
      x -= *reinterpret_cast<const float*>(&bits);
    }
  }

  // Rounds to nearest even, and towards zero if the result would be infinite.
  __device__ static unsigned short Nearest(float x) {
    if (x != x) return 0x7fff;
    const unsigned bits = *reinterpret_cast<const unsigned*>(&x);
    const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<unsigned short>((rounded & 0x7fff) == 0x7f80 ? bits >> 16 : rounded);
  }

  // Rounds x to the nearest float16 number, ties to even, with the largest number instead of
  // infinity, and NaN if x is not finite.
  __device__ static unsigned short NearestHalf(float x) {
    const unsigned sign = __float_as_uint(x) >> 16 & 0x8000, bits = __float_as_uint(x) & 0x7fffffff;
    if (bits >= 0x7f800000) return 0x7fff;
    // Below its smallest normal number float16 has the spacing of float32 numbers from 1/2 on.
    const unsigned rounded = bits < 0x38800000
                                 ? __float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000
                                 : (bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13;
    return static_cast<unsigned short>(sign | min(rounded, 0x7bffu));
  }

  __device__ static float OfHalf(unsigned short half) {
    const unsigned sign = (half & 0x8000u) << 16, bits = half & 0x7fffu;
    if (bits > 0x7c00) return __uint_as_float(0x7fc00000);
    const float size =
        bits < 0x400 ? bits / 16777216.0f : __uint_as_float((bits << 13) + 0x38000000);
    return __uint_as_float(__float_as_uint(size) | sign);
  }
};

// Splits the real and the imaginary part of an element.
template <typename T>
struct SplitElement;
template <>
struct SplitElement<float> {
  static constexpr int kComponents = 1;
  SplitNumber components[1];
  __device__ SplitElement(float x, bool halves) : components{SplitNumber(x, halves)} {}
};
template <>
struct SplitElement<cuComplex> {
  static constexpr int kComponents = 2;
  SplitNumber components[2];
  __device__ SplitElement(cuComplex x, bool halves)
      : components{SplitNumber(x.x, halves), SplitNumber(x.y, halves)} {}
};

// See Blas::PartScales. Uses a block per kTileEdge rows of the factor; its kTileRows rows of
// threads share them.
template <typename T>
__device__ void PartScales(bool turned, Index m, Index n, const T* a, Index lda, float* scales) {
  __shared__ unsigned largest[kTileEdge][kTileEdge + 1];
  const Index rows = turned ? n : m, first = blockIdx.x * Index(kTileEdge);
  // Nonnegative numbers have the order of their bits.
  const auto larger = [](unsigned found, T entry) {
    found = max(found, __float_as_uint(RealPart(entry)) & 0x7fffffff);
    return max(found, __float_as_uint(ImaginaryPart(entry)) & 0x7fffffff);
  };
  for (int k = threadIdx.y; k < kTileEdge; k += blockDim.y) largest[k][threadIdx.x] = 0;
  __syncthreads();
  if (turned) {
    for (int k = threadIdx.y; k < kTileEdge && first + k < rows; k += blockDim.y) {
      unsigned found = 0;
      for (Index i = threadIdx.x; i < m; i += kTileEdge) {
        found = larger(found, a[(first + k) * lda + i]);
      }
      largest[k][threadIdx.x] = found;
    }
  } else if (first + threadIdx.x < rows) {
    unsigned found = 0;
    for (Index j = threadIdx.y; j < n; j += blockDim.y) {
      found = larger(found, a[j * lda + first + threadIdx.x]);
    }
    largest[threadIdx.x][threadIdx.y] = found;
  }
  __syncthreads();
  if (threadIdx.y > 0 || first + threadIdx.x >= rows) return;
  unsigned found = 0;
  for (int k = 0; k < kTileEdge; ++k) found = max(found, largest[threadIdx.x][k]);
  const unsigned exponent = max(found >> 23, kScaledExponent + 1u) - kScaledExponent;
  const bool some = found > 0 && found < 0x7f800000;
  scales[first + threadIdx.x] = some ? __uint_as_float(exponent << 23) : 1;
}

// Writes the parts of an element of a factor.
template <typename T>
__device__ void StoreParts(bool left, bool turned, bool halves, int products, T value, Index row,
                           Index column, unsigned short* parts, Index ld) {
  constexpr int kComponents = SplitElement<T>::kComponents, kGroup = kPartsGroup / kComponents;
  const SplitElement<T> split(value, halves);
  const int rows = left ? kComponents : 1;
  for (int product = 0; product < products; ++product) {
    const int at = halves ? product : kMostProducts - products + product;
    const int part =
        halves ? (left ? kLeftHalf[at] : kRightHalf[at]) : (left ? kLeftPart[at] : kRightPart[at]);
    const Index first = (column / kGroup * products + product) * kPartsGroup;
    for (int p = 0; p < rows; ++p) {
      for (int q = 0; q < kComponents; ++q) {
        // [[Re, Im], [Im, -Re]]; Im has the opposite sign in A^H.
        const bool negative = (p == 1 && q == 1) || (turned && p != q);
        parts[(first + column % kGroup * kComponents + q) * ld + row * rows + p] =
            split.components[p ^ q].part[part] ^ (negative ? 0x8000 : 0);
      }
    }
  }
}

// Uses one block per tile of a, m x n. Zeros fill the last group of columns. No group is divided
// between tiles. `scales` may be null.
template <typename T>
__device__ void Split(bool left, bool turned, bool halves, int products, Index m, Index n,
                      const T* a, Index lda, const float* scales, unsigned short* parts, Index ld) {
  constexpr int kGroup = kPartsGroup / SplitElement<T>::kComponents;
  static_assert(kTileEdge % kGroup == 0, "a group of columns is in one tile");
  __shared__ T tile[kTileEdge][kTileEdge + 1];
  const Index tiles_m = (m + kTileEdge - 1) / kTileEdge;
  const Index first_row = blockIdx.x % tiles_m * kTileEdge;
  const Index first_column = blockIdx.x / tiles_m * kTileEdge;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index row = first_row + threadIdx.x, column = first_column + j;
    tile[j][threadIdx.x] = row < m && column < n ? a[column * lda + row] : T();
  }
  __syncthreads();
  const Index rows = turned ? n : m, columns = ((turned ? m : n) + kGroup - 1) / kGroup * kGroup;
  for (int j = threadIdx.y; j < kTileEdge; j += blockDim.y) {
    const Index row = (turned ? first_column : first_row) + threadIdx.x;
    const Index column = (turned ? first_row : first_column) + j;
    if (row >= rows || column >= columns) continue;
    const T entry = turned ? tile[threadIdx.x][j] : tile[j][threadIdx.x];
    const T value = scales == nullptr ? entry : Scale(entry, 1 / scales[row]);
    StoreParts(left, turned, halves, products, value, row, column, parts, ld);
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_PARTS_CUH_
