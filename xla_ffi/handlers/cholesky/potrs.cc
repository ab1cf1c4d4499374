#include "xla_ffi/engine/cholesky/potrs.h"

#include <complex>

#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermg/mg.h"
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {

struct PotrsAttributes : PrecisionAttributes {
  bool check_b;  // whether to compare b between the ranks

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    PrecisionAttributes::Visit(attributes, visit);
    visit("check_b", attributes.check_b);
  }
};

namespace {

constexpr char kName[] = "potrs";

// By backend, the preferred one first.
template <typename T>
constexpr Solver<Status(const RankContext&, const Operand<T>&, const Solution<T>&)> kSolvers[] = {
    {kNative, &PotrsRoutine<T>},
#ifdef JAXMG_CUDA
    {"cusolvermg", &mg::Potrs<T>},
    {"cusolvermp", &mp::Potrs<T>},
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
        [&](const Sizes& s, const Ranks& r) { return PotrsSpace<T>(s, query.nrhs, r); });
  }
};

PlatformResult Potrs(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> a_work,
                     ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> log_det,
                     ffi::ResultBuffer<ffi::DataType::S32> status, PotrsAttributes attributes) {
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
    const Solution<T> solution = {shape[1], DataOf<T>(*x), DataOf<Real<T>>(*log_det), DataOf<T>(b),
                                  attributes.check_b};
    auto program = [=](const RankContext& context) {
      return kSolvers<T>[backend].solve(context, operand, solution);
    };
    return LaunchForAll<SolveOfAll<T, Solution<T>>>(
        platform, SiteOf(kName, platform, coordinates, a, attributes, n, &b), program, true,
        [&](const Tuning& tuning) { return SolvesForAll<T>(n, attributes.tile, tuning); },
        {operand, solution}, &PotrsForAll<T>);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgPotrs, jaxmg::kName, jaxmg::Potrs, jaxmg::PotrsAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Arg<xla::ffi::AnyBuffer>()                         // b
                         .Ret<xla::ffi::AnyBuffer>()                         // a_work, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()                         // x
                         .Ret<xla::ffi::AnyBuffer>()                         // log_det
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
