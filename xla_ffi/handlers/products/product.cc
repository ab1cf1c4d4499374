// The handler of products of matrices by rows (engine/products). Operands are blocks of rows of X
// and Y; an operation that takes only X gets X as Y, too.
#include "xla_ffi/engine/products/product.h"

#include <complex>
#include <utility>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

template <>
struct EnumAttribute<ProductKind> {
  static constexpr int64_t kCount = kNumProductKinds;
  static constexpr char kWhat[] = "product";
};
template <>
struct EnumAttribute<Factor> {
  static constexpr int64_t kCount = static_cast<int64_t>(Factor::kLower) + 1;
  static constexpr char kWhat[] = "triangle";
};

// C is m x n, and k is the dimension that is summed over; for kAdjointOf, the number of X's rows.
struct ProductAttributes : SquareAttributes {
  int64_t m;
  int64_t k;
  ProductKind operation;
  Factor triangle;  // the nonzero elements of Y
  bool conjugates;  // whether X^H and Y^H are used instead of X^T and Y^T

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("conjugates", attributes.conjugates);
    visit("k", attributes.k);
    visit("m", attributes.m);
    visit("operation", attributes.operation);
    visit("triangle", attributes.triangle);
  }
};

namespace {

constexpr char kName[] = "product";

// The rows and columns of an operand or of the result.
struct MatrixShape {
  int64_t m, n;
};

MatrixShape ShapeOfX(const ProductAttributes& p) {
  const bool plain =
      p.operation == ProductKind::kRowsTimesRows || p.operation == ProductKind::kRowsTimesAdjoint;
  return plain ? MatrixShape{p.m, p.k} : MatrixShape{p.k, p.m};
}

MatrixShape ShapeOfY(const ProductAttributes& p) {
  switch (p.operation) {
    case ProductKind::kRowsTimesRows:
    case ProductKind::kAdjointTimesRows:
      return {p.k, p.n};
    case ProductKind::kRowsTimesAdjoint:
      return {p.n, p.k};
    default:
      return ShapeOfX(p);
  }
}

Status CheckProduct(ffi::AnyBuffer x, ffi::AnyBuffer y, ffi::AnyBuffer c,
                    const ProductAttributes& p) {
  size_t backend = 0;
  const bool alone = p.operation == ProductKind::kGram || p.operation == ProductKind::kAdjointOf;
  const int64_t columns = p.operation == ProductKind::kGram ? p.m : p.k;
  if (alone && columns != p.n) {
    return Error(Code::kInvalidArgument, kName, ": the result must be ", p.m, " x ", columns,
                 ", not ", p.m, " x ", p.n);
  }
  const std::pair<ffi::AnyBuffer, MatrixShape> all[] = {
      {x, ShapeOfX(p)}, {y, ShapeOfY(p)}, {c, {p.m, p.n}}};
  for (const auto& [buffer, shape] : all) {
    JAXMG_RETURN_IF_ERROR(CheckBlock(kName, buffer, shape.m, shape.n, p, kNativeAlone, &backend));
    if (buffer.element_type() != x.element_type()) {
      return Error(Code::kInvalidArgument, kName, ": y and the result must have x's dtype");
    }
  }
  return Status::Ok();
}

template <typename T>
RowBlocks<T> BlocksOf(ffi::AnyBuffer buffer, const MatrixShape& shape) {
  return {shape.m, shape.n, buffer.dimensions()[0], DataOf<T>(buffer)};
}

PlatformResult Multiply(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                        ffi::AnyBuffer x, ffi::AnyBuffer y, ffi::Result<ffi::AnyBuffer> c,
                        ProductAttributes attributes) {
  const Status checked = CheckProduct(x, y, *c, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    Product<T> product = {attributes.operation, BlocksOf<T>(x, ShapeOfX(attributes)),
                          BlocksOf<T>(y, ShapeOfY(attributes)),
                          BlocksOf<T>(*c, {attributes.m, attributes.n})};
    product.terms.adjoint = attributes.conjugates ? Op::kConjTrans : Op::kTrans;
    product.factor = attributes.triangle;
    auto program = [product](const RankContext& context) {
      return ProductRoutine<T>(context, product);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, x, attributes, attributes.n, &y),
                  program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgProduct, jaxmg::kName, jaxmg::Multiply, jaxmg::ProductAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // x
                         .Arg<xla::ffi::AnyBuffer>()   // y
                         .Ret<xla::ffi::AnyBuffer>(),  // the product
                     jaxmg::kNativeAlone);
