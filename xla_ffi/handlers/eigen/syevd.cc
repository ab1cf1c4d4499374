#include <complex>

#include "xla_ffi/engine/eigen/eigenproblem.h"
#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermg/mg.h"
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {
namespace {

constexpr char kName[] = "syevd";

// By backend, the preferred one first.
template <typename T>
constexpr Solver<Status(const RankContext&, const Operand<T>&, bool, Real<T>*)> kSolvers[] = {
    {kNative, &SyevdRoutine<T>},
#ifdef JAXMG_CUDA
    {"cusolvermg", &mg::Syevd<T>},
    {"cusolvermp", &mp::Syevd<T>},
#endif
};
constexpr auto kNames = NamesOf(kSolvers<double>);
constexpr Backends kBackends = {kNames.data(), kNames.size()};

// The memory that a call needs on a rank, for plans.
struct Needs {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    RankNeeds needs =
        NeedsOf<T>(EigenproblemSpace<T>(sizes, query.vectors, {0, query.n}, ranks), 0);
    needs.bytes += query.n * sizeof(Real<T>);
    return needs;
  }
};

PlatformResult Syevd(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> v, ffi::Result<ffi::AnyBuffer> w,
                     ffi::ResultBuffer<ffi::DataType::S32> status, VectorsAttributes attributes) {
  const int64_t n = attributes.n;
  size_t backend = 0;
  const Status checked = CheckCall(kName, a, attributes, kBackends, &backend);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *v, status->typed_data(), n, n, attributes);
    auto program = [=, w = DataOf<Real<T>>(*w)](const RankContext& context) {
      return kSolvers<T>[backend].solve(context, operand, attributes.vectors, w);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, n), program);
  });
}

constexpr char kSubsetName[] = "syevx";

PlatformResult Syevx(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> work,
                     ffi::Result<ffi::AnyBuffer> v, ffi::Result<ffi::AnyBuffer> w,
                     ffi::ResultBuffer<ffi::DataType::S32> status, SubsetAttributes attributes) {
  const int64_t n = attributes.n;
  const Subset subset = {attributes.first, attributes.last};
  size_t backend = 0;
  Status checked = CheckCall(kSubsetName, a, attributes, kBackends, &backend);
  if (checked.ok()) checked = CheckSubset(kSubsetName, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kSubsetName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *work, status->typed_data(), n, n, attributes);
    auto program = [=, w = DataOf<Real<T>>(*w), v = DataOf<T>(*v)](const RankContext& context) {
      if (attributes.backend == kNative) return SyevxRoutine(context, operand, subset, w, v);
      const Status all = kSolvers<T>[backend].solve(context, operand, true, w);
      return all.ok() ? TakeSubset(context.device, operand, subset, v) : all;
    };
    return Launch(platform, SiteOf(kSubsetName, platform, coordinates, a, attributes, n), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgSyevd, jaxmg::kName, jaxmg::Syevd, jaxmg::VectorsAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of V, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // w
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
JAXMG_DEFINE_ROUTINE(JaxmgSyevx, jaxmg::kSubsetName, jaxmg::Syevx, jaxmg::SubsetAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // undefined, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of the selected columns of V
                         .Ret<xla::ffi::AnyBuffer>()  // w
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
