#include <complex>

#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/handlers.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "potri";

PlatformResult Invert(Platform platform, ffi::Buffer<ffi::DataType::S32> place, ffi::AnyBuffer a,
                      ffi::Result<ffi::AnyBuffer> inverse,
                      ffi::ResultBuffer<ffi::DataType::S32> status, Attributes attributes) {
  const int64_t n = attributes.n;
  Backend backend;
  const Status checked = CheckCall(kName, a, attributes, &backend);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = {n,
                                n,
                                a.dimensions()[0],
                                attributes.tile,
                                Data<T>(*inverse),
                                status->typed_data(),
                                PrecisionOf(attributes),
                                Data<T>(a)};
    auto program = [=](const RankContext& context) {
      return kSolvers<T>[backend].potri(context, operand);
    };
    return Launch(platform, SiteOf(kName, platform, place, a, attributes), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_HANDLER(JaxmgPotri, jaxmg::kName, jaxmg::Invert, jaxmg::kN | jaxmg::kProducts,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // the inverse, in a's place
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
);
