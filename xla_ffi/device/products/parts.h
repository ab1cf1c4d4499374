// Products of parts: a float32 number is the sum of three bfloat16 numbers, its parts, x = x0 + x1
// + x2. Tensor cores multiply bfloat16 numbers sixteen times as fast and add in float32. The six
// largest of the nine products of parts are as accurate as a float32 product; the three largest
// have about 16 bits (G. Henry, P. T. P. Tang and A. Heinecke, "Leveraging the bfloat16 artificial
// intelligence datatype for higher-precision computations", ARITH 2019).
//
// Alternatively, two float16 numbers have 22 bits, nearly the 24 of float32. Their three largest
// products are as accurate as six of bfloat16 (H. Ootomo and R. Yokota, "Recovering single
// precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance",
// IJHPCA 36, 2022). float16 has a small range of exponents, so this applies to matrices whose rows
// have elements of a size near 1, as equilibrate.h makes them. x is split into
//
//   kHalfScale x = h0 + h1,   stored as h0, h1 2^6 and h0 2^-6; the last two are multiplied with
//                             each other
//
// This preserves all bits for |x| from 2^-10 to 2^14. The error of smaller numbers is at most
// 2^-33, and larger ones are clamped.
//
// For other matrices every product scales its factors (PartsShape::scaled). It divides rows of the
// left one and columns of the right one by powers of two, so that the largest element of each is
// about 2^12, and multiplies the product by both. An element of a row keeps all bits if it is at
// least 2^-22 times the largest one. The error of a smaller element is at most 2^-45 times the
// largest one, which is little compared with the rounding errors of a float32 product.
//
// All these products together are one product of matrices whose depth is that multiple. For a few
// columns (a group), the parts kLeftPart of A and kRightPart of B are contiguous, in the order in
// which they are multiplied with each other, small ones first. The next group follows.
//
//                                         ┌    ┐
//   A B^H  =  [ A1 A0 A0 | A1 A0 A0 ... ] │B0^H│        three products; with six
//                                         │B1^H│        [ A2 A1 A0 A1 A0 A0 | ... ]
//                                         │B0^H│
//                                         │ ...│
//                                         └    ┘
//
// A complex product is a real one of twice the depth, whose C has twice the rows, in the storage
// format of complex numbers: a is [[Re a, Im a], [Im a, -Re a]] as a left factor, and [Re a, Im a]
// as a right one.
#ifndef JAXMG_XLA_FFI_DEVICE_PRODUCTS_PARTS_H_
#define JAXMG_XLA_FFI_DEVICE_PRODUCTS_PARTS_H_

#include <cstdint>
#include <type_traits>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/constants.h"

namespace jaxmg {

using Part = uint16_t;  // the bits of a bfloat16 or float16 number

enum class PartFormat { kBfloat16, kFloat16 };

// The maximum depth of a product whose factors are split only for it, which bounds its memory.
inline constexpr int64_t kPartsDepth = 1024;

// The shape of an element's parts: `rows` x `depth` in a left factor, 1 x `depth` in a right one.
// The parts of a matrix, m x k, are a column-major matrix of (rows m) x Depth(k). depth = 0:
// products don't consist of parts.
struct PartsShape {
  int64_t products = 0, rows = 0, depth = 0;
  PartFormat format = PartFormat::kBfloat16;
  bool scaled = false;

  // Number of columns of a factor in a group: kPartsGroup real numbers for each product.
  int64_t group() const { return kPartsGroup * products / depth; }
  // Returns the number of columns of the parts of `columns` columns of a factor, including the
  // zeros that fill the last group.
  int64_t Depth(int64_t columns) const {
    return (columns + group() - 1) / group() * group() * depth;
  }
  // The factor by which a product of parts is too large.
  float scale() const { return format == PartFormat::kFloat16 ? kHalfScale * kHalfScale : 1; }
};

template <typename T>
constexpr PartsShape PartsOf(int64_t products, PartFormat format, bool scaled = false) {
  if (products == 0 || !std::is_same_v<Real<T>, float>) return {};
  return {products, kIsComplex<T> ? 2 : 1, kIsComplex<T> ? 2 * products : products, format, scaled};
}

// A product's scales of the rows of its left factor and of the columns of its right one; null if
// there are none.
template <typename R>
struct ProductScales {
  const R *left = nullptr, *right = nullptr;
};

// Rounds a leading dimension of parts up to the alignment that tensor cores read fastest.
constexpr int64_t AlignedParts(int64_t count) { return (count + 7) / 8 * 8; }

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_PRODUCTS_PARTS_H_
