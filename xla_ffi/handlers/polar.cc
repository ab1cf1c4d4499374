#include <complex>

#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {
namespace {

constexpr char kName[] = "polar";

// The native way is made of products and inverses (polar.py), so that only a library is here.
#ifdef JAXMG_CUDA
constexpr const char* kNames[] = {"cusolvermp"};
constexpr Backends kBackends = {kNames, 1};
#else
constexpr Backends kBackends = {nullptr, 0};
#endif

PlatformResult Polar([[maybe_unused]] Platform platform,
                     [[maybe_unused]] ffi::Buffer<ffi::DataType::S32> coordinates, ffi::AnyBuffer a,
                     [[maybe_unused]] ffi::Result<ffi::AnyBuffer> u,
                     [[maybe_unused]] ffi::ResultBuffer<ffi::DataType::S32> status,
                     SquareAttributes attributes) {
  size_t backend = 0;
  const Status checked = CheckCall(kName, a, attributes, kBackends, &backend);
  if (!checked.ok()) return Refuse(checked);
#ifdef JAXMG_CUDA
  const int64_t n = attributes.n;
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *u, status->typed_data(), n, n, attributes);
    auto program = [=](const RankContext& context) { return mp::Polar<T>(context, operand); };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, n), program);
  });
#else
  return Refuse(Error(Code::kInternal, kName, ": no backend"));
#endif
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgPolar, jaxmg::kName, jaxmg::Polar, jaxmg::SquareAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of U, overwrites a
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends);
