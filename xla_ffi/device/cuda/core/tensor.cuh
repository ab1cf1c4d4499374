// Products of small tiles in float64 on tensor cores.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_TENSOR_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_TENSOR_CUH_

#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// The distribution of 8 x 8 tiles over a warp: a lane holds two numbers of each tile, `pair[0]` and
// `pair[1]`. In the left factor and in the sum these are columns 2 (lane % 4) and 2 (lane % 4) + 1
// of row lane / 4. In the right factor they are rows 2 (lane % 4) and 2 (lane % 4) + 1 of column
// lane / 4. (The hardware uses other columns of the left factor, but the order of the summation
// index is arbitrary.)
//
// c[m] += a[m] b for kM left tiles. All lanes must call it together.
#ifdef __CUDA_ARCH__
template <int kM>
__device__ __forceinline__ void MultiplyTiles(double (&c)[kM][2], const double (&a)[kM][2],
                                              const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kM == 2) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0][0]), "+d"(c[0][1]), "+d"(c[1][0]), "+d"(c[1][1])
        : "d"(a[0][0]), "d"(a[1][0]), "d"(a[0][1]), "d"(a[1][1]), "d"(b[0]), "d"(b[1]));
    return;
  }
#endif
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+d"(c[m][0]), "+d"(c[m][1])
                   : "d"(a[m][e]), "d"(b[e]));
    }
  }
}
#else
template <int kM>
void MultiplyTiles(double (&c)[kM][2], const double (&a)[kM][2], const double (&b)[2]) {
  static double left[1024][kM][2], right[1024][2];
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread - lane;
  for (int e = 0; e < 2; ++e) {
    for (int m = 0; m < kM; ++m) left[thread][m][e] = a[m][e];
    right[thread][e] = b[e];
  }
  __syncwarp();
  for (int m = 0; m < kM; ++m) {
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned column = 2 * (lane % 4) + i;
      for (unsigned k = 0; k < 8; ++k) {
        c[m][i] +=
            left[warp + lane / 4 * 4 + k / 2][m][k % 2] * right[warp + column * 4 + k / 2][k % 2];
      }
    }
  }
  __syncwarp();
}
#endif

template <int kM>
__device__ void MultiplyTiles(cuDoubleComplex (&c)[kM][2], const cuDoubleComplex (&a)[kM][2],
                              const cuDoubleComplex (&b)[2]) {
  double re[kM][2], im[kM][2], a_re[kM][2], a_im[kM][2], minus[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      re[m][e] = c[m][e].x;
      im[m][e] = c[m][e].y;
      a_re[m][e] = a[m][e].x;
      a_im[m][e] = a[m][e].y;
      minus[m][e] = -a[m][e].y;
    }
  }
  const double b_re[2] = {b[0].x, b[1].x}, b_im[2] = {b[0].y, b[1].y};
  MultiplyTiles<kM>(re, a_re, b_re);
  MultiplyTiles<kM>(re, minus, b_im);
  MultiplyTiles<kM>(im, a_re, b_im);
  MultiplyTiles<kM>(im, a_im, b_re);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int e = 0; e < 2; ++e) c[m][e] = make_cuDoubleComplex(re[m][e], im[m][e]);
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_TENSOR_CUH_
