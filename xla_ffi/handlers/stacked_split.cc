#include <vector>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

namespace {

constexpr char kName[] = "stacked_split";

CallOutcome Split(Platform platform, ffi::AnyBuffer whole, ffi::RemainingRets results,
                  NoAttributes) {
  std::vector<ffi::AnyBuffer> parts;
  size_t bytes = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    auto part = results.get<ffi::AnyBuffer>(i);
    if (!part.has_value() || (**part).element_type() != whole.element_type()) {
      return {Error(Code::kInvalidArgument, kName, ": part ", i, " must be of the dtype of x")};
    }
    parts.push_back(**part);
    bytes += parts.back().size_bytes();
  }
  if (bytes != whole.size_bytes()) {
    return {Error(Code::kInvalidArgument, kName, ": x has ", whole.size_bytes(),
                  " bytes, and its parts have ", bytes)};
  }
  return LaunchAlone(platform, [&](Device& device) -> Status {
    const char* source = DataOf<const char>(whole);
    for (const ffi::AnyBuffer& part : parts) {
      const auto size = static_cast<int64_t>(part.size_bytes());
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, source, DataOf<char>(part), size));
      source += size;
    }
    return Status::Ok();
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedSplit, jaxmg::kName, jaxmg::Split, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()  // x
                               .RemainingRets());           // x, cut into pieces of memory
