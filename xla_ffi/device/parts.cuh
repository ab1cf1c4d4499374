// The parts of a factor of a product (parts.h), as the host's device makes them, to the bit.
#ifndef JAXMG_XLA_FFI_DEVICE_PARTS_CUH_
#define JAXMG_XLA_FFI_DEVICE_PARTS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/scalars.cuh"

namespace jaxmg::kernels {

inline constexpr int kParts = 3;

struct SplitNumber {
  unsigned short part[kParts];

  __device__ explicit SplitNumber(float x) {
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
};

// The real and the imaginary part of an element.
template <typename T>
struct SplitElement;
template <>
struct SplitElement<float> {
  static constexpr int kComponents = 1;
  SplitNumber components[1];
  __device__ explicit SplitElement(float x) : components{SplitNumber(x)} {}
};
template <>
struct SplitElement<cuComplex> {
  static constexpr int kComponents = 2;
  SplitNumber components[2];
  __device__ explicit SplitElement(cuComplex x) : components{SplitNumber(x.x), SplitNumber(x.y)} {}
};

// One block a tile of a, m x n.
template <typename T>
__device__ void Split(bool left, bool turned, int products, Index m, Index n, const T* a, Index lda,
                      unsigned short* parts, Index ld) {
  constexpr int kComponents = SplitElement<T>::kComponents;
  const Index tiles_m = (m + kTileEdge - 1) / kTileEdge;
  const Index i = blockIdx.x % tiles_m * kTileEdge + threadIdx.x;
  const Index first = blockIdx.x / tiles_m * kTileEdge;
  const int rows = left ? kComponents : 1;
  for (Index j = first + threadIdx.y; i < m && j < min(first + kTileEdge, n); j += blockDim.y) {
    const SplitElement<T> split(a[j * lda + i]);
    const Index row = turned ? j : i, column = turned ? i : j, depth = turned ? m : n;
    for (int block = 0; block < products; ++block) {
      const int at = kMostProducts - products + block;
      const int part = left ? kLeftPart[at] : kRightPart[at];
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
