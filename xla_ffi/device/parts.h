// Products made of parts: a float32 number is the sum of three bfloat16 numbers, x = x0 + x1 + x2,
// and tensor cores multiply those at sixteen times the speed and add in float32. Of the nine
// products of parts the six largest are as good as float32's own; the three largest have some 16
// bits (G. Henry, P. T. P. Tang and A. Heinecke, "Leveraging the bfloat16 artificial intelligence
// datatype for higher-precision computations", ARITH 2019).
//
// They are one product of matrices that are as many times as deep: of A the parts kLeftPart lie
// side by side, of B kRightPart, so that each meets the one that it is multiplied with, small ones
// first.
//
//                                  ┌    ┐
//   A B^H  =  [ A1  A0  A0 ]   x   │B0^H│        three products; with six [ A2 A1 A0 A1 A0 A0 ]
//                                  │B1^H│
//                                  │B0^H│
//                                  └    ┘
//
// A complex product is a real one of twice the depth, whose C has twice the rows, as complex
// numbers lie in memory: a is [[Re a, Im a], [Im a, -Re a]] as a left factor, and [Re a, Im a] as a
// right one.
#ifndef JAXMG_XLA_FFI_DEVICE_PARTS_H_
#define JAXMG_XLA_FFI_DEVICE_PARTS_H_

#include <cstdint>
#include <type_traits>

#include "xla_ffi/base/dtype.h"

namespace jaxmg {

using Part = uint16_t;  // a bfloat16 number's bits

// What an element becomes: in a left factor `rows` x `depth` parts, in a right one 1 x `depth`. All
// of a matrix, m x k, is a matrix of (rows m) x (depth k) parts, or with `turned` its transpose;
// several side by side are split one by one. depth = 0: products aren't made of parts.
struct PartsShape {
  int64_t products = 0, rows = 0, depth = 0;
};

template <typename T>
constexpr PartsShape PartsOf(int64_t products) {
  if (products == 0 || !std::is_same_v<Real<T>, float>) return {};
  return {products, kIsComplex<T> ? 2 : 1, kIsComplex<T> ? 2 * products : products};
}

// Tensor cores cut off what they can't hold of a sum, rather than round it. On an H200 a sum of k
// real products falls short of itself by kTruncation k on average, where signs are random, and by
// twice that where they are all the same (docs/performance.md). So no product is deeper than
// kPartsDepth, several are added in float32, and a GPU multiplies them by 1 + kTruncation k.
inline constexpr int64_t kPartsDepth = 1024;
inline constexpr double kTruncation = 8.4e-10;

// A leading dimension of parts that tensor cores read best.
constexpr int64_t AlignedParts(int64_t count) { return (count + 7) / 8 * 8; }

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PARTS_H_
