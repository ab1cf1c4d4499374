// Products made of parts: a float32 number is the sum of three bfloat16 numbers, x = x0 + x1 + x2,
// and tensor cores multiply those at sixteen times the speed and add in float32. Of the nine
// products of parts the six largest are as good as float32's own; the three largest have some 16
// bits (G. Henry, P. T. P. Tang and A. Heinecke, "Leveraging the bfloat16 artificial intelligence
// datatype for higher-precision computations", ARITH 2019).
//
// Or of two float16 numbers, whose 22 bits are nearly float32's 24: the three largest products of
// those are as good as six of bfloat16 (H. Ootomo and R. Yokota, "Recovering single precision
// accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", IJHPCA 36,
// 2022). float16 has few exponents, so these are for matrices whose rows are of about the size 1:
// equilibrate.h makes them so. x becomes
//
//   kHalfScale x = h0 + h1,   kept as h0, h1 2^6 and h0 2^-6, of which the last two are multiplied
//                             with each other
//
// which keeps all bits for |x| from 2^-10 to 2^14; what is smaller is off by 2^-33 at most, and
// what is larger counts as the largest.
//
// They are one product of matrices that are as many times as deep: of a few columns of A the parts
// kLeftPart lie side by side, of B kRightPart, so that each meets the one that it is multiplied
// with, small ones first. Then come those of the next columns (`group`).
//
//                                         ┌    ┐
//   A B^H  =  [ A1 A0 A0 | A1 A0 A0 ... ] │B0^H│        three products; with six
//                                         │B1^H│        [ A2 A1 A0 A1 A0 A0 | ... ]
//                                         │B0^H│
//                                         │ ...│
//                                         └    ┘
//
// A complex product is a real one of twice the depth, whose C has twice the rows, as complex
// numbers lie in memory: a is [[Re a, Im a], [Im a, -Re a]] as a left factor, and [Re a, Im a] as a
// right one.
#ifndef JAXMG_XLA_FFI_DEVICE_PARTS_H_
#define JAXMG_XLA_FFI_DEVICE_PARTS_H_

#include <cstdint>
#include <type_traits>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/constants.h"

namespace jaxmg {

using Part = uint16_t;  // a bfloat16 or float16 number's bits

enum class PartFormat { kBfloat16, kFloat16 };

// The deepest product whose factors are split for it alone, which bounds the memory that takes.
inline constexpr int64_t kPartsDepth = 1024;

// What an element becomes: in a left factor `rows` x `depth` parts, in a right one 1 x `depth`. The
// parts of a matrix, m x k, are a matrix of (rows m) x Depth(k), column-major. depth = 0: products
// aren't made of parts.
struct PartsShape {
  int64_t products = 0, rows = 0, depth = 0;
  PartFormat format = PartFormat::kBfloat16;

  // Columns of a factor whose parts lie together: kPartsGroup real numbers for each product.
  int64_t group() const { return kPartsGroup * products / depth; }
  // Columns of parts for so many columns of a factor, of which the last group is filled with zeros.
  int64_t Depth(int64_t columns) const {
    return (columns + group() - 1) / group() * group() * depth;
  }
  // What a product of parts is divided by.
  float scale() const { return format == PartFormat::kFloat16 ? kHalfScale * kHalfScale : 1; }
};

template <typename T>
constexpr PartsShape PartsOf(int64_t products, PartFormat format) {
  if (products == 0 || !std::is_same_v<Real<T>, float>) return {};
  return {products, kIsComplex<T> ? 2 : 1, kIsComplex<T> ? 2 * products : products, format};
}

// A leading dimension of parts that tensor cores read best.
constexpr int64_t AlignedParts(int64_t count) { return (count + 7) / 8 * 8; }

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PARTS_H_
