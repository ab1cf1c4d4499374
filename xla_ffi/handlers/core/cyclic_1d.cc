#include <complex>

#include "xla_ffi/engine/core/cyclic.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct CyclicAttributes : CommonAttributes {
  bool inverse;  // whether to convert tiles to contiguous rows

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    CommonAttributes::Visit(attributes, visit);
    visit("inverse", attributes.inverse);
  }
};

namespace {

constexpr char kName[] = "cyclic_1d";

PlatformResult Cyclic(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                      ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> out,
                      CyclicAttributes attributes) {
  const auto shape = a.dimensions();
  if (shape.size() != 2 || attributes.ranks < 1) {
    return Refuse(Error(Code::kInvalidArgument, kName,
                        ": a must have 2 dimensions and ranks must be at least 1; got ",
                        shape.size(), " dimensions and ", attributes.ranks, " ranks"));
  }
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    auto program = [=, rows = shape[0], columns = shape[1], a = DataOf<T>(a),
                    out = DataOf<T>(*out)](const RankContext& context) {
      return CyclicRoutine<T>(context, rows, columns, attributes.tile, attributes.inverse, out, a);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, /*n=*/0), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgCyclic1d, jaxmg::kName, jaxmg::Cyclic, jaxmg::CyclicAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // a
                         .Ret<xla::ffi::AnyBuffer>(),  // the result, overwrites a
                     jaxmg::kNativeAlone);
