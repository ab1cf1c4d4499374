#include "xla_ffi/engine/svd/polar.h"

#include <complex>

#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {

struct PolarAttributes : SquareAttributes {
  bool hermitian;  // whether to compute H
  bool in_double;  // whether to iterate in double precision

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("hermitian", attributes.hermitian);
    visit("in_double", attributes.in_double);
  }
};

namespace {

constexpr char kName[] = "polar";

#ifdef JAXMG_CUDA
template <typename T>
Status ByLibrary(const RankContext& context, const Operand<T>& operand, bool, T* h) {
  if (h != nullptr) {
    return Error(Code::kInvalidArgument, kName, ": NVIDIA's library computes U only, not H");
  }
  return mp::Polar<T>(context, operand);
}
#endif

// By backend, the preferred one first.
template <typename T>
constexpr Solver<Status(const RankContext&, const Operand<T>&, bool, T*)> kSolvers[] = {
    {kNative, &PolarRoutine<T>},
#ifdef JAXMG_CUDA
    {"cusolvermp", &ByLibrary<T>},
#endif
};
constexpr auto kNames = NamesOf(kSolvers<double>);
constexpr Backends kBackends = {kNames.data(), kNames.size()};

PlatformResult PolarFactors(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                            ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> u,
                            ffi::Result<ffi::AnyBuffer> h,
                            ffi::ResultBuffer<ffi::DataType::S32> status,
                            PolarAttributes attributes) {
  size_t backend = 0;
  const Status checked = CheckCall(kName, a, attributes, kBackends, &backend);
  if (!checked.ok()) return Refuse(checked);
  const int64_t n = attributes.n;
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *u, status->typed_data(), n, n, attributes);
    auto program = [=, in_double = attributes.in_double,
                    h = attributes.hermitian ? DataOf<T>(*h)
                                             : nullptr](const RankContext& context) {
      return kSolvers<T>[backend].solve(context, operand, in_double, h);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, n), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgPolar, jaxmg::kName, jaxmg::PolarFactors, jaxmg::PolarAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of U, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of H, or none
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends);
