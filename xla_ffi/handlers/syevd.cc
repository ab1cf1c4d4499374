#include <complex>

#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/handlers.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "syevd";

PlatformResult Syevd(Platform platform, ffi::Buffer<ffi::DataType::S32> place, ffi::AnyBuffer a,
                     ffi::Result<ffi::AnyBuffer> v, ffi::Result<ffi::AnyBuffer> w,
                     ffi::ResultBuffer<ffi::DataType::S32> status, Attributes attributes) {
  const int64_t n = attributes.n;
  Backend backend;
  const Status checked = CheckCall(kName, a, attributes, &backend);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = {n,           a.dimensions()[0],    attributes.tile,
                                Data<T>(*v), status->typed_data(), Precision::kHighest,
                                Data<T>(a)};
    auto program = [=, w = Data<Real<T>>(*w)](const RankContext& context) {
      return kSolvers<T>[backend].syevd(context, operand, attributes.vectors != 0, w);
    };
    return Launch(platform, SiteOf(kName, platform, place, a, attributes), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_HANDLER(JaxmgSyevd, jaxmg::kName, jaxmg::Syevd, jaxmg::kN | jaxmg::kVectors,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of V, in a's place
                         .Ret<xla::ffi::AnyBuffer>()  // w
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
);
