// The parts of a factor of a product (parts.h), as the host's device makes them, to the bit.
#ifndef JAXMG_XLA_FFI_DEVICE_PARTS_CUH_
#define JAXMG_XLA_FFI_DEVICE_PARTS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/scalars.cuh"

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

  // Even ones where two bfloat16 numbers are as near, and towards zero where that were infinite.
  __device__ static unsigned short Nearest(float x) {
    if (x != x) return 0x7fff;
    const unsigned bits = *reinterpret_cast<const unsigned*>(&x);
    const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<unsigned short>((rounded & 0x7fff) == 0x7f80 ? bits >> 16 : rounded);
  }

  // The float16 number nearest to x, even ones where two are, the largest where it were infinite,
  // and NaN for what is not finite.
  __device__ static unsigned short NearestHalf(float x) {
    const unsigned sign = __float_as_uint(x) >> 16 & 0x8000, bits = __float_as_uint(x) & 0x7fffffff;
    if (bits >= 0x7f800000) return 0x7fff;
    // Below its least normal number float16 has the places of float32 from 1/2 on.
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

// The real and the imaginary part of an element.
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

// One block a tile of a, m x n.
template <typename T>
__device__ void Split(bool left, bool turned, bool halves, int products, Index m, Index n,
                      const T* a, Index lda, unsigned short* parts, Index ld) {
  constexpr int kComponents = SplitElement<T>::kComponents;
  const Index tiles_m = (m + kTileEdge - 1) / kTileEdge;
  const Index i = blockIdx.x % tiles_m * kTileEdge + threadIdx.x;
  const Index first = blockIdx.x / tiles_m * kTileEdge;
  const int rows = left ? kComponents : 1;
  for (Index j = first + threadIdx.y; i < m && j < min(first + kTileEdge, n); j += blockDim.y) {
    const SplitElement<T> split(a[j * lda + i], halves);
    const Index row = turned ? j : i, column = turned ? i : j, depth = turned ? m : n;
    for (int block = 0; block < products; ++block) {
      const int at = halves ? block : kMostProducts - products + block;
      const int part = halves ? (left ? kLeftHalf[at] : kRightHalf[at])
                              : (left ? kLeftPart[at] : kRightPart[at]);
      for (int p = 0; p < rows; ++p) {
        for (int q = 0; q < kComponents; ++q) {
          // [[Re, Im], [Im, -Re]], Im with the other sign in A^H.
          const bool negative = (p == 1 && q == 1) || (turned && p != q);
          const Index r = row * rows + p, d = (block * depth + column) * kComponents + q;
          parts[turned ? r * ld + d : d * ld + r] =
              split.components[p ^ q].part[part] ^ (negative ? 0x8000 : 0);
        }
      }
    }
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_PARTS_CUH_
