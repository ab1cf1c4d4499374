#include "xla_ffi/engine/svd/gesvd.h"

#include <complex>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "gesvd";

PlatformResult SingularValues(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                              ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> work,
                              ffi::Result<ffi::AnyBuffer> w,
                              ffi::ResultBuffer<ffi::DataType::S32> status,
                              SquareAttributes attributes) {
  const int64_t n = attributes.n;
  const Status checked = CheckCall(kName, a, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    Operand<T> operand = {
        n, n, a.dimensions()[0], attributes.tile, DataOf<T>(*work), status->typed_data()};
    operand.source = DataOf<T>(a);
    auto program = [=, w = DataOf<Real<T>>(*w)](const RankContext& context) -> Status {
      JAXMG_RETURN_IF_ERROR(CheckGesvd<T>(operand.sizes(), RanksOf(context)));
      return GesvdRoutine<T>(context, operand, w);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, n), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGesvd, jaxmg::kName, jaxmg::SingularValues, jaxmg::SquareAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // undefined, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // the singular values, ascending
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone);
