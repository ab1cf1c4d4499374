#include "xla_ffi/engine/cholesky/hemm.h"

#include <complex>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct HemmAttributes : SquareAttributes {
  int64_t parts;  // the number of parts of x whose products are summed separately

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("parts", attributes.parts);
  }
};

namespace {

constexpr char kName[] = "hemm";

PlatformResult Hemm(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                    ffi::AnyBuffer a, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
                    HemmAttributes attributes) {
  const Status checked = CheckCall(kName, a, attributes);
  if (!checked.ok()) return Refuse(checked);
  const auto shape = x.dimensions();
  if (shape.size() != 2 || shape[0] != attributes.n || x.element_type() != a.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": x must be (n, nrhs), of a's dtype"));
  }
  if (attributes.parts < 1) {
    return Refuse(
        Error(Code::kInvalidArgument, kName, ": parts must be positive; got ", attributes.parts));
  }
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const HermitianProduct<T> product = {attributes.n,  a.dimensions()[0], attributes.tile,
                                         DataOf<T>(a),  shape[1],          DataOf<T>(x),
                                         DataOf<T>(*y), attributes.parts};
    auto program = [product](const RankContext& context) {
      return HemmRoutine<T>(context, product);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, attributes.n),
                  program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgHemm, jaxmg::kName, jaxmg::Hemm, jaxmg::HemmAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // a
                         .Arg<xla::ffi::AnyBuffer>()   // x
                         .Ret<xla::ffi::AnyBuffer>(),  // y
                     jaxmg::kNativeAlone);
