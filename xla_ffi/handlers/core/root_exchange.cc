#include "xla_ffi/engine/core/root_exchange.h"

#include <utility>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct RootExchangeAttributes : SquareAttributes {
  bool gathers;  // arrays to the root; otherwise arrays of that to all

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("gathers", attributes.gathers);
  }
};

namespace {

constexpr char kName[] = "root_exchange";

PlatformResult Exchange(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                        ffi::RemainingArgs sources, ffi::RemainingRets targets,
                        RootExchangeAttributes attributes) {
  const int64_t ranks = attributes.ranks;
  const bool gathers = attributes.gathers;
  // The root is rank 0, or the rank that comes last to the gather, where nobody waits. Then a
  // number says which one it is: the gather's last result, the scatter's last operand.
  const size_t arrays = gathers ? sources.size() : targets.size();
  const size_t numbers = (gathers ? targets.size() : sources.size()) - arrays;
  if (ranks < 1 || arrays == 0 || numbers > 1) {
    return Refuse(Error(Code::kInvalidArgument, kName,
                        ": needs at least one array, a result for each operand, and at most one "
                        "number more; got ",
                        sources.size(), " operands and ", targets.size(), " results on ", ranks,
                        " ranks"));
  }
  RootExchange exchange = {gathers, {}};
  if (numbers > 0) {
    using Number = ffi::BufferR0<ffi::DataType::S32>;
    if (gathers) {
      auto number = targets.get<Number>(arrays);
      if (number.has_value()) exchange.is_root = (**number).typed_data();
    } else {
      auto number = sources.get<Number>(arrays);
      if (number.has_value()) exchange.is_root = number->typed_data();
    }
    if (exchange.is_root == nullptr) {
      return Refuse(Error(Code::kInvalidArgument, kName, ": the number must be an int32 scalar"));
    }
  }
  std::optional<ffi::AnyBuffer> first;
  for (size_t i = 0; i < arrays; ++i) {
    const auto source = sources.get<ffi::AnyBuffer>(i);
    auto target = targets.get<ffi::AnyBuffer>(i);
    if (!source.has_value() || !target.has_value()) {
      return Refuse(
          Error(Code::kInvalidArgument, kName, ": operand or result ", i, " is not an array"));
    }
    const auto from = static_cast<int64_t>(source->size_bytes());
    const auto to = static_cast<int64_t>((**target).size_bytes());
    const int64_t part = gathers ? from : to, whole = gathers ? to : from;
    if (source->element_type() != (**target).element_type() ||
        (part != whole && (part > whole || part * ranks < whole))) {
      return Refuse(Error(Code::kInvalidArgument, kName, ": array ", i, ": ", ranks, " parts of ",
                          part, " bytes don't make an array of ", whole, " bytes"));
    }
    exchange.pieces.push_back({DataOf<void>(*source), DataOf<void>(**target), part, whole});
    if (i == 0) first = *source;
  }
  const CallSite site = SiteOf(kName, platform, coordinates, *first, attributes, attributes.n);
  if (gathers && numbers > 0) {
    return LaunchOnLast<RootExchange>(
        platform, site, [exchange] { return LeaveSources(exchange); }, &RootGatherOnLast);
  }
  auto program = [exchange](const RankContext& context) {
    return RootExchangeRoutine(context, exchange);
  };
  return LaunchForAll<RootExchange>(
      platform, site, program, true, [](const Tuning&) { return true; }, exchange,
      &RootExchangeForAll);
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgRootExchange, jaxmg::kName, jaxmg::Exchange,
                     jaxmg::RootExchangeAttributes,
                     JAXMG_BIND()
                         .RemainingArgs()   // parts of arrays, or whole ones
                         .RemainingRets(),  // the others
                     jaxmg::kNativeAlone);
