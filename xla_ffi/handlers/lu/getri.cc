#include "xla_ffi/engine/lu/getri.h"

#include <complex>

#include "xla_ffi/engine/core/for_all.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "getri";

// The memory that a call needs on a rank, for plans.
struct Needs {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOfSolve<T>(query, sizes, ranks, 0,
                           [](const Sizes& s, const Ranks& r) { return GetriSpace<T>(s, r); });
  }
};

PlatformResult Invert(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                      ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> inverse,
                      ffi::ResultBuffer<ffi::DataType::S32> status,
                      PrecisionAttributes attributes) {
  const int64_t n = attributes.n;
  Status checked = CheckCall(kName, a, attributes);
  if (checked.ok()) checked = CheckPrecision(kName, a, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *inverse, status->typed_data(), n, n, attributes);
    auto program = [=](const RankContext& context) { return GetriRoutine<T>(context, operand); };
    return LaunchForAll<Operand<T>>(
        platform, SiteOf(kName, platform, coordinates, a, attributes, n), program, true,
        [&](const Tuning& tuning) { return SolvesForAll<T>(n, attributes.tile, tuning); }, operand,
        [](const RankContext& alone, const std::vector<Operand<T>>& operands) {
          return InPlaceForAll<T>(alone, operands, &GetriRoutine<T>);
        });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGetri, jaxmg::kName, jaxmg::Invert, jaxmg::PrecisionAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // the inverse, overwrites a
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
