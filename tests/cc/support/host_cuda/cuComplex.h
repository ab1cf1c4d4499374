// The part of CUDA's cuComplex.h that kernels.cu uses.
#ifndef JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_CUCOMPLEX_H_
#define JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_CUCOMPLEX_H_

#include <cmath>

struct cuComplex {
  float x, y;
};
struct cuDoubleComplex {
  double x, y;
};

inline cuComplex make_cuComplex(float x, float y) { return {x, y}; }
inline cuDoubleComplex make_cuDoubleComplex(double x, double y) { return {x, y}; }
inline cuComplex cuConjf(cuComplex a) { return {a.x, -a.y}; }
inline cuDoubleComplex cuConj(cuDoubleComplex a) { return {a.x, -a.y}; }
inline cuComplex cuCfmaf(cuComplex a, cuComplex b, cuComplex c) {
  return {std::fma(a.x, b.x, std::fma(-a.y, b.y, c.x)),
          std::fma(a.x, b.y, std::fma(a.y, b.x, c.y))};
}
inline cuDoubleComplex cuCfma(cuDoubleComplex a, cuDoubleComplex b, cuDoubleComplex c) {
  return {std::fma(a.x, b.x, std::fma(-a.y, b.y, c.x)),
          std::fma(a.x, b.y, std::fma(a.y, b.x, c.y))};
}

#endif  // JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_CUCOMPLEX_H_
