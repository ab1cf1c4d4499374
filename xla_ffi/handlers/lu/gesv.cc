#include "xla_ffi/engine/lu/gesv.h"

#include <complex>

#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {

struct GesvAttributes : PrecisionAttributes {
  bool check_b;  // whether to compare b between the ranks

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    PrecisionAttributes::Visit(attributes, visit);
    visit("check_b", attributes.check_b);
  }
};

namespace {

constexpr char kName[] = "gesv";

// By backend, the preferred one first.
template <typename T>
constexpr Solver<Status(const RankContext&, const Operand<T>&, const GeneralSolution<T>&)>
    kSolvers[] = {
        {kNative, &GesvRoutine<T>},
#ifdef JAXMG_CUDA
        {"cusolvermp", &mp::Gesv<T>},
#endif
};
constexpr auto kNames = NamesOf(kSolvers<double>);
constexpr Backends kBackends = {kNames.data(), kNames.size()};

// The memory that a call needs on a rank, for plans.
struct Needs {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOfSolve<T>(
        query, sizes, ranks, query.n * query.nrhs,
        [&](const Sizes& s, const Ranks& r) { return GesvSpace<T>(s, query.nrhs, r); });
  }
};

PlatformResult Gesv(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                    ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> a_work,
                    ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> log_abs,
                    ffi::Result<ffi::AnyBuffer> sign, ffi::ResultBuffer<ffi::DataType::S32> status,
                    GesvAttributes attributes) {
  const int64_t n = attributes.n;
  size_t backend = 0;
  Status checked = CheckCall(kName, a, attributes, kBackends, &backend);
  if (checked.ok()) checked = CheckPrecision(kName, a, attributes);
  if (!checked.ok()) return Refuse(checked);
  const auto shape = b.dimensions();
  if (shape.size() != 2 || shape[0] != n || b.element_type() != a.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": b must be (n, nrhs), of a's dtype"));
  }
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *a_work, status->typed_data(), n, n, attributes);
    const GeneralSolution<T> solution = {shape[1],         DataOf<T>(*x), DataOf<Real<T>>(*log_abs),
                                         DataOf<T>(*sign), DataOf<T>(b),  attributes.check_b};
    auto program = [=](const RankContext& context) {
      return kSolvers<T>[backend].solve(context, operand, solution);
    };
    return LaunchForAll<SolveOfAll<T, GeneralSolution<T>>>(
        platform, SiteOf(kName, platform, coordinates, a, attributes, n, &b), program, true,
        [&](const Tuning& tuning) { return SolvesForAll<T>(n, attributes.tile, tuning); },
        {operand, solution}, &GesvForAll<T>);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGesv, jaxmg::kName, jaxmg::Gesv, jaxmg::GesvAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Arg<xla::ffi::AnyBuffer>()                         // b
                         .Ret<xla::ffi::AnyBuffer>()                         // a_work, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()                         // x
                         .Ret<xla::ffi::AnyBuffer>()                         // log_abs
                         .Ret<xla::ffi::AnyBuffer>()                         // sign
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
