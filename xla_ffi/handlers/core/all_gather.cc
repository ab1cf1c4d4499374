#include <complex>

#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "all_gather";

PlatformResult Gather(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                      ffi::AnyBuffer part, ffi::Result<ffi::AnyBuffer> all,
                      SquareAttributes attributes) {
  const Status checked = CheckCall(kName, part, attributes);
  if (!checked.ok()) return Refuse(checked);
  const int64_t count = part.dimensions()[0] * part.dimensions()[1];
  return ForDtype(kName, part.element_type(), [&](auto zero) {
    using T = decltype(zero);
    auto program = [count, part = DataOf<T>(part),
                    all = DataOf<T>(*all)](const RankContext& context) {
      return AllGatherRoutine<T>(context, count, part, all);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, part, attributes, attributes.n),
                  program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgAllGather, jaxmg::kName, jaxmg::Gather, jaxmg::SquareAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // a part, rows x n
                         .Ret<xla::ffi::AnyBuffer>(),  // all parts, ranks * rows x n
                     jaxmg::kNativeAlone);
