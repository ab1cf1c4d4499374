#include <complex>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct StackedProductAttributes {
  Op left, right;  // the operations on x and y

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("left", attributes.left);
    visit("right", attributes.right);
  }
};

namespace {

constexpr char kName[] = "stacked_product";

CallOutcome Multiply(Platform platform, ffi::AnyBuffer x, ffi::AnyBuffer y,
                     ffi::Result<ffi::AnyBuffer> product, StackedProductAttributes attributes) {
  const auto left = x.dimensions(), right = y.dimensions(), result = product->dimensions();
  const size_t rank = left.size();
  bool fits = rank >= 2 && right.size() == rank && result.size() == rank;
  int64_t count = 1, m = 0, n = 0, k = 0;
  if (fits) {
    for (size_t i = 0; i + 2 < rank; ++i) {
      fits &= right[i] == left[i] && result[i] == left[i];
      count *= left[i];
    }
    const bool plain_x = attributes.left == Op::kNone, plain_y = attributes.right == Op::kNone;
    const size_t row = rank - 2, column = rank - 1;
    m = result[row], n = result[column], k = left[plain_x ? column : row];
    fits &= left[plain_x ? row : column] == m && right[plain_y ? row : column] == k &&
            right[plain_y ? column : row] == n;
  }
  if (!fits || x.element_type() != y.element_type() ||
      x.element_type() != product->element_type()) {
    return {Error(Code::kInvalidArgument, kName,
                  ": op(x) must be (..., m, k), op(y) must be (..., k, n), and the product must be "
                  "(..., m, n), all of one dtype")};
  }
  return ForDtype(kName, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return device.stacks<T>().Multiply(Stream::kMain, attributes.left, attributes.right, count, m,
                                         n, k, DataOf<T>(x), DataOf<T>(y), DataOf<T>(*product));
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedProduct, jaxmg::kName, jaxmg::Multiply,
                           jaxmg::StackedProductAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // x, ... x m x k or ... x k x m
                               .Arg<xla::ffi::AnyBuffer>()    // y, ... x k x n or ... x n x k
                               .Ret<xla::ffi::AnyBuffer>());  // op(x) op(y), ... x m x n
