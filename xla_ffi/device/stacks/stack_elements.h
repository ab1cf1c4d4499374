// StackElements: elementwise operations on each matrix of a stack, and sums over it, on one device
// alone. As in stack_kernels.h, matrices are row-major, one after the other.
//
// Numbers "of each matrix" are `count` numbers in device memory.
#ifndef JAXMG_XLA_FFI_DEVICE_STACKS_STACK_ELEMENTS_H_
#define JAXMG_XLA_FFI_DEVICE_STACKS_STACK_ELEMENTS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// Returns the exponent that StackElements::Scale uses if the largest magnitude has exponent
// `exponent`. NVRTC compiles a copy (cuda/stacks/element_stacks.cuh).
template <typename R>
int ScaleExponent(int exponent, int step) {
  const int bounded = std::max(exponent, std::numeric_limits<R>::min_exponent - 1);
  const int below = bounded % step;
  return bounded - (below < 0 ? below + step : below);
}

// The terms that a sum over the elements of X and Y adds up.
enum class StackedSum {
  kInner = kSumInner,                // Re conj(x) y
  kDifference = kSumDifference,      // |x - y|^2
  kFromIdentity = kSumFromIdentity,  // |x - i|^2, with the identity instead of Y
};

// (of_x X + of_y Y + of_identity I) / divisor. A matrix whose factor is 0 isn't read.
template <typename T>
struct StackedTerms {
  const T *x, *y;
  const Real<T>*of_x, *of_y, *of_identity;  // of each matrix; of_y and of_identity may be null: 0
  Real<T> divisor;
};

template <typename T>
class StackElements {
 public:
  virtual ~StackElements() = default;

  // scaled := 2^-e a for each of `count` matrices of `size` elements. e is the exponent of the
  // largest magnitude f 2^e, 1 <= f < 2, of a real or imaginary part, but at least the exponent of
  // the smallest normal number. It is 0 for a matrix that is zero or holds NaN or infinity. With
  // `step` > 1 it is rounded down to a multiple of `step`. Elements are multiplied by two powers,
  // each of which is a normal number.
  virtual Status Scale(Stream stream, int64_t count, int64_t size, int64_t step, const T* a,
                       T* scaled, int32_t* exponents) = 0;

  // sums := the sums over each of `count` matrices of `size` elements and n columns. Accumulated in
  // double precision, in an order that depends only on the shape. Y may be X.
  virtual Status Sum(Stream stream, StackedSum what, int64_t count, int64_t size, int64_t n,
                     const T* x, const T* y, double* sums) = 0;

  // X := A / sqrt(s) for each of `count` matrices of `size` elements, where s is the matrix's sum;
  // X := A if s is 0. Computed in double precision. X may be A.
  virtual Status DivideByRoots(Stream stream, int64_t count, int64_t size, const double* sums,
                               const T* a, T* x) = 0;

  // out := terms for each of `count` matrices of `size` elements and n columns. `out` may be X or
  // Y.
  virtual Status Combine(Stream stream, int64_t count, int64_t size, int64_t n,
                         const StackedTerms<T>& terms, T* out) = 0;

  // A := (A + A^H) / 2 for each of `count` matrices, n x n. Diagonals become real.
  virtual Status MakeHermitian(Stream stream, int64_t count, int64_t n, T* a) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STACKS_STACK_ELEMENTS_H_
