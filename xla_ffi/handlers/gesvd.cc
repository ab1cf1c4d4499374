#include "xla_ffi/engine/svd/gesvd.h"

#include <complex>

#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {
namespace {

constexpr char kName[] = "gesvd";

// The engine computes singular values alone, in ascending order.
template <typename T>
Status Native(const RankContext& context, const Operand<T>& operand, bool vectors, T*, Real<T>* s) {
  if (vectors) return Error(Code::kInvalidArgument, kName, ": backend 'native' has no vectors");
  JAXMG_RETURN_IF_ERROR(CheckGesvd<T>(operand.sizes(), RanksOf(context)));
  return GesvdRoutine<T>(context, operand, s);
}

// By backend, the preferred one first.
template <typename T>
constexpr Solver<Status(const RankContext&, const Operand<T>&, bool, T*, Real<T>*)> kSolvers[] = {
    {kNative, &Native<T>},
#ifdef JAXMG_CUDA
    {"cusolvermp", &mp::Gesvd<T>},
#endif
};
constexpr auto kNames = NamesOf(kSolvers<double>);
constexpr Backends kBackends = {kNames.data(), kNames.size()};

PlatformResult Gesvd(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> u,
                     ffi::Result<ffi::AnyBuffer> vh, ffi::Result<ffi::AnyBuffer> s,
                     ffi::ResultBuffer<ffi::DataType::S32> status, VectorsAttributes attributes) {
  const int64_t n = attributes.n;
  size_t backend = 0;
  const Status checked = CheckCall(kName, a, attributes, kBackends, &backend);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *u, status->typed_data(), n, n, attributes);
    auto program = [=, vh = DataOf<T>(*vh), s = DataOf<Real<T>>(*s)](const RankContext& context) {
      return kSolvers<T>[backend].solve(context, operand, attributes.vectors, vh, s);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, n), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGesvd, jaxmg::kName, jaxmg::Gesvd, jaxmg::VectorsAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of U, or undefined; overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of V^H, or none
                         .Ret<xla::ffi::AnyBuffer>()  // the singular values
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends);
