// Common operations for real and complex numbers, for kernels of every dtype.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_SCALARS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_SCALARS_CUH_

#include <cuComplex.h>

namespace jaxmg::kernels {

using Index = long long;

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
__device__ inline cuComplex Conj(cuComplex x) { return cuConjf(x); }
__device__ inline cuDoubleComplex Conj(cuDoubleComplex x) { return cuConj(x); }

__device__ inline float RealPart(float x) { return x; }
__device__ inline double RealPart(double x) { return x; }
__device__ inline float RealPart(cuComplex x) { return x.x; }
__device__ inline double RealPart(cuDoubleComplex x) { return x.x; }

__device__ inline float ImaginaryPart(float) { return 0; }
__device__ inline double ImaginaryPart(double) { return 0; }
__device__ inline float ImaginaryPart(cuComplex x) { return x.y; }
__device__ inline double ImaginaryPart(cuDoubleComplex x) { return x.y; }

template <typename T>
__device__ T FromReal(typename RealOf<T>::type x) {
  return x;
}
template <>
__device__ inline cuComplex FromReal<cuComplex>(float x) {
  return make_cuComplex(x, 0);
}
template <>
__device__ inline cuDoubleComplex FromReal<cuDoubleComplex>(double x) {
  return make_cuDoubleComplex(x, 0);
}

// Returns a number from its real and imaginary part; a real dtype ignores the latter.
template <typename T>
__device__ T FromParts(typename RealOf<T>::type re, typename RealOf<T>::type) {
  return re;
}
template <>
__device__ inline cuComplex FromParts<cuComplex>(float re, float im) {
  return make_cuComplex(re, im);
}
template <>
__device__ inline cuDoubleComplex FromParts<cuDoubleComplex>(double re, double im) {
  return make_cuDoubleComplex(re, im);
}

template <typename T>
__device__ T Nan();
template <>
__device__ inline float Nan<float>() {
  return __int_as_float(0x7fc00000);
}
template <>
__device__ inline double Nan<double>() {
  return __longlong_as_double(0x7ff8000000000000);
}
template <>
__device__ inline cuComplex Nan<cuComplex>() {
  return make_cuComplex(Nan<float>(), 0);
}
template <>
__device__ inline cuDoubleComplex Nan<cuDoubleComplex>() {
  return make_cuDoubleComplex(Nan<double>(), 0);
}

__device__ inline float MultiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double MultiplyAdd(double a, double b, double c) { return fma(a, b, c); }
__device__ inline cuComplex MultiplyAdd(cuComplex a, cuComplex b, cuComplex c) {
  return cuCfmaf(a, b, c);
}
__device__ inline cuDoubleComplex MultiplyAdd(cuDoubleComplex a, cuDoubleComplex b,
                                              cuDoubleComplex c) {
  return cuCfma(a, b, c);
}

__device__ inline float Scale(float x, float factor) { return x * factor; }
__device__ inline double Scale(double x, double factor) { return x * factor; }
__device__ inline cuComplex Scale(cuComplex x, float factor) {
  return make_cuComplex(x.x * factor, x.y * factor);
}
__device__ inline cuDoubleComplex Scale(cuDoubleComplex x, double factor) {
  return make_cuDoubleComplex(x.x * factor, x.y * factor);
}

template <typename T>
__device__ T Plus(T x, T y) {
  return x + y;
}
__device__ inline cuComplex Plus(cuComplex x, cuComplex y) {
  return make_cuComplex(x.x + y.x, x.y + y.y);
}
__device__ inline cuDoubleComplex Plus(cuDoubleComplex x, cuDoubleComplex y) {
  return make_cuDoubleComplex(x.x + y.x, x.y + y.y);
}

template <typename T>
__device__ T Times(T x, T y) {
  return MultiplyAdd(x, y, FromReal<T>(0));
}

__device__ inline bool IsZero(float x) { return x == 0; }
__device__ inline bool IsZero(double x) { return x == 0; }
__device__ inline bool IsZero(cuComplex x) { return x.x == 0 && x.y == 0; }
__device__ inline bool IsZero(cuDoubleComplex x) { return x.x == 0 && x.y == 0; }
__device__ inline bool Finite(float x) { return isfinite(x); }
__device__ inline bool Finite(double x) { return isfinite(x); }
__device__ inline bool Finite(cuComplex x) { return isfinite(x.x) && isfinite(x.y); }
__device__ inline bool Finite(cuDoubleComplex x) { return isfinite(x.x) && isfinite(x.y); }

template <typename T>
__device__ typename RealOf<T>::type Larger(typename RealOf<T>::type largest, T x) {
  return fmax(largest, fmax(fabs(RealPart(x)), fabs(ImaginaryPart(x))));
}

// Returns the power of two that scales `largest` to about 1, within the range of exponents, or 1 if
// `largest` is not positive and finite.
template <typename R>
__device__ R UnitOf(R largest) {
  constexpr int kMost = sizeof(R) == 4 ? 126 : 1022;
  if (!(largest > 0) || !isfinite(largest)) return 1;
  return scalbn(R(1), max(-kMost, min(kMost, -ilogb(largest))));
}

// Returns a / b as LAPACK does: infinite or NaN if b is zero.
template <typename R>
__device__ R Divide(R a, R b) {
  return a / b;
}
// Smith's algorithm, whose intermediate results neither overflow nor vanish.
template <typename T>
__device__ T DivideComplex(T a, T b) {
  using R = typename RealOf<T>::type;
  if (fabs(b.x) >= fabs(b.y)) {
    const R ratio = b.y / b.x, size = b.x + b.y * ratio;
    return FromParts<T>((a.x + a.y * ratio) / size, (a.y - a.x * ratio) / size);
  }
  const R ratio = b.x / b.y, size = b.x * ratio + b.y;
  return FromParts<T>((a.x * ratio + a.y) / size, (a.y * ratio - a.x) / size);
}
template <>
__device__ inline cuComplex Divide(cuComplex a, cuComplex b) {
  return DivideComplex(a, b);
}
template <>
__device__ inline cuDoubleComplex Divide(cuDoubleComplex a, cuDoubleComplex b) {
  return DivideComplex(a, b);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_SCALARS_CUH_
