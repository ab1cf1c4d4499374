#include "xla_ffi/engine/cholesky/potri.h"

#include <complex>

#include "xla_ffi/engine/core/for_all.h"
#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermg/mg.h"
#endif

namespace jaxmg {
namespace {

constexpr char kName[] = "potri";

// By backend, the preferred one first.
template <typename T>
constexpr Solver<Status(const RankContext&, const Operand<T>&)> kSolvers[] = {
    {kNative, &PotriRoutine<T>},
#ifdef JAXMG_CUDA
    {"cusolvermg", &mg::Potri<T>},
#endif
};
constexpr auto kNames = NamesOf(kSolvers<double>);
constexpr Backends kBackends = {kNames.data(), kNames.size()};

// The memory that a call needs on a rank, for plans.
struct Needs {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOfSolve<T>(query, sizes, ranks, 0,
                           [](const Sizes& s, const Ranks& r) { return PotriSpace<T>(s, r); });
  }
};

PlatformResult Invert(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                      ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> inverse,
                      ffi::ResultBuffer<ffi::DataType::S32> status,
                      PrecisionAttributes attributes) {
  const int64_t n = attributes.n;
  size_t backend = 0;
  Status checked = CheckCall(kName, a, attributes, kBackends, &backend);
  if (checked.ok()) checked = CheckPrecision(kName, a, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *inverse, status->typed_data(), n, n, attributes);
    auto program = [=](const RankContext& context) {
      return kSolvers<T>[backend].solve(context, operand);
    };
    return LaunchForAll<Operand<T>>(
        platform, SiteOf(kName, platform, coordinates, a, attributes, n), program, true,
        [&](const Tuning& tuning) { return SolvesForAll<T>(n, attributes.tile, tuning); }, operand,
        [](const RankContext& alone, const std::vector<Operand<T>>& operands) {
          return InPlaceForAll<T>(alone, operands, &PotriRoutine<T>);
        });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgPotri, jaxmg::kName, jaxmg::Invert, jaxmg::PrecisionAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // the inverse, overwrites a
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
