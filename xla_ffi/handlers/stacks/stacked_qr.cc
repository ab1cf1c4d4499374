#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct StackedPolynomialsAttributes {
  Numbers coefficients;  // of the polynomials a x + b x^3 + c x^5, one after the other

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("coefficients", attributes.coefficients);
  }
};

struct StackedQrAttributes {
  bool with_q;  // otherwise q has no elements

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("with_q", attributes.with_q);
  }
};

namespace {

constexpr char kPolynomials[] = "stacked_polynomials";
constexpr char kQr[] = "stacked_qr";

CallOutcome Factor(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> r,
                   ffi::Result<ffi::AnyBuffer> q, StackedQrAttributes attributes) {
  const auto shape = a.dimensions();
  const size_t rank = shape.size();
  const auto all = static_cast<int64_t>(a.element_count());
  const int64_t m = rank < 2 ? 0 : shape[rank - 2], n = rank < 2 ? 0 : shape[rank - 1];
  const int64_t count = rank < 2 || all == 0 ? 0 : all / (m * n), k = std::min(m, n);
  const int64_t size_of_q = attributes.with_q ? count * m * k : 0;
  if (rank < 2 || r->element_type() != a.element_type() || q->element_type() != a.element_type() ||
      static_cast<int64_t>(r->element_count()) != all ||
      static_cast<int64_t>(q->element_count()) != size_of_q) {
    return {
        Error(Code::kInvalidArgument, kQr,
              ": a must be (..., m, n), R must have a's shape and dtype, and Q must be (..., m, "
              "min(m, n)) or empty")};
  }
  if (all == 0) return {Status::Ok()};
  return ForDtype(kQr, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const factor = DataOf<T>(*r);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(a), factor, all));
      return device.stacks<T>().FactorQr(Stream::kMain, count, m, n, factor,
                                         attributes.with_q ? DataOf<T>(*q) : nullptr);
    });
  });
}

CallOutcome Map(Platform platform, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
                StackedPolynomialsAttributes attributes) {
  const auto shape = x.dimensions();
  const size_t rank = shape.size();
  const auto all = static_cast<int64_t>(x.element_count());
  if (rank < 2 || y->element_type() != x.element_type() ||
      static_cast<int64_t>(y->element_count()) != all) {
    return {Error(Code::kInvalidArgument, kPolynomials,
                  ": x must be (..., m, n), and the result must have x's shape and dtype")};
  }
  if (attributes.coefficients.count % 3 != 0) {
    return {Error(Code::kInvalidArgument, kPolynomials,
                  ": coefficients must be triples; there are ", attributes.coefficients.count)};
  }
  if (all == 0) return {Status::Ok()};
  const int64_t m = shape[rank - 2], n = shape[rank - 1], count = all / (m * n);
  const Polynomials polynomials = {attributes.coefficients.data,
                                   static_cast<int64_t>(attributes.coefficients.count) / 3};
  const bool bfloats = x.element_type() == ffi::DataType::BF16;
  if (bfloats || x.element_type() == ffi::DataType::F16) {
    return LaunchAlone(platform, [&](Device& device) -> Status {
      Part* const numbers = DataOf<Part>(*y);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<Part>(x), numbers, all));
      return device.stacks<float>().MapSingularValues(
          Stream::kMain, bfloats ? PartFormat::kBfloat16 : PartFormat::kFloat16, count, m, n,
          polynomials, numbers);
    });
  }
  return ForDtype(kPolynomials, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const numbers = DataOf<T>(*y);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(x), numbers, all));
      return device.stacks<T>().MapSingularValues(Stream::kMain, count, m, n, polynomials, numbers);
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedQr, jaxmg::kQr, jaxmg::Factor, jaxmg::StackedQrAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x m x n
                               .Ret<xla::ffi::AnyBuffer>()    // R above zeros, overwrites a
                               .Ret<xla::ffi::AnyBuffer>());  // Q, ... x m x min(m, n)

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedPolynomials, jaxmg::kPolynomials, jaxmg::Map,
                           jaxmg::StackedPolynomialsAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // x, ... x m x n
                               .Ret<xla::ffi::AnyBuffer>());  // overwrites x
