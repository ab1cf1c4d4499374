#include <vector>

#include "xla_ffi/device/device.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

namespace {

constexpr char kName[] = "stacked_split";

CallOutcome Split(Platform platform, ffi::AnyBuffer whole, ffi::RemainingRets results,
                  NoAttributes) {
  std::vector<Bytes> parts;
  size_t bytes = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    auto part = results.get<ffi::AnyBuffer>(i);
    if (!part.has_value() || (**part).element_type() != whole.element_type()) {
      return {Error(Code::kInvalidArgument, kName, ": part ", i, " must have x's dtype")};
    }
    parts.push_back({DataOf<char>(**part), (**part).size_bytes()});
    bytes += parts.back().size;
  }
  if (bytes != whole.size_bytes()) {
    return {Error(Code::kInvalidArgument, kName, ": x has ", whole.size_bytes(),
                  " bytes, but its parts have ", bytes)};
  }
  if (parts.size() == 1 && parts[0].data == whole.untyped_data()) return {Status::Ok()};
  return LaunchAlone(platform, [&](Device& device) {
    return device.CopyToParts(Stream::kMain, parts, whole.untyped_data());
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedSplit, jaxmg::kName, jaxmg::Split, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()  // x
                               .RemainingRets());           // x, divided into pieces of memory
