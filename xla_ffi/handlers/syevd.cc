#include <complex>

#include "xla_ffi/engine/eigen/eigenproblem.h"
#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/handlers.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "syevd";

PlatformResult Syevd(Platform platform, ffi::Buffer<ffi::DataType::S32> place, ffi::AnyBuffer a,
                     ffi::Result<ffi::AnyBuffer> v, ffi::Result<ffi::AnyBuffer> w,
                     ffi::ResultBuffer<ffi::DataType::S32> status, Attributes attributes) {
  const int64_t n = attributes.n;
  Backend backend;
  const Status checked = CheckCall(kName, a, attributes, &backend);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    Operand<T> operand = {n,
                          n,
                          a.dimensions()[0],
                          attributes.tile,
                          Data<T>(*v),
                          status->typed_data(),
                          Precision::kHighest,
                          Data<T>(a)};
    operand.grid_rows = GridRows(attributes.backend);
    auto program = [=, w = Data<Real<T>>(*w)](const RankContext& context) {
      return kSolvers<T>[backend].syevd(context, operand, attributes.vectors != 0, w);
    };
    return Launch(platform, SiteOf(kName, platform, place, a, attributes), program);
  });
}

constexpr char kSubsetName[] = "syevx";

PlatformResult Syevx(Platform platform, ffi::Buffer<ffi::DataType::S32> place, ffi::AnyBuffer a,
                     ffi::Result<ffi::AnyBuffer> work, ffi::Result<ffi::AnyBuffer> v,
                     ffi::Result<ffi::AnyBuffer> w, ffi::ResultBuffer<ffi::DataType::S32> status,
                     Attributes attributes) {
  const int64_t n = attributes.n;
  const Subset subset = {attributes.first, attributes.last};
  Backend backend;
  Status checked = CheckCall(kSubsetName, a, attributes, &backend);
  if (checked.ok()) checked = CheckSubset(kSubsetName, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kSubsetName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    Operand<T> operand = {n,
                          n,
                          a.dimensions()[0],
                          attributes.tile,
                          Data<T>(*work),
                          status->typed_data(),
                          Precision::kHighest,
                          Data<T>(a)};
    operand.grid_rows = GridRows(attributes.backend);
    auto program = [=, w = Data<Real<T>>(*w), v = Data<T>(*v)](const RankContext& context) {
      if (backend == kNative) return SyevxRoutine(context, operand, subset, w, v);
      const Status all = kSolvers<T>[backend].syevd(context, operand, true, w);
      return all.ok() ? TakeSubset(context.device, operand, subset, v) : all;
    };
    return Launch(platform, SiteOf(kSubsetName, platform, place, a, attributes), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_HANDLER(JaxmgSyevd, jaxmg::kName, jaxmg::Syevd, jaxmg::kN | jaxmg::kVectors,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of V, in a's place
                         .Ret<xla::ffi::AnyBuffer>()  // w
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
);
JAXMG_DEFINE_HANDLER(JaxmgSyevx, jaxmg::kSubsetName, jaxmg::Syevx, jaxmg::kN | jaxmg::kSubset,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // of no meaning, in a's place
                         .Ret<xla::ffi::AnyBuffer>()  // rows of those columns of V
                         .Ret<xla::ffi::AnyBuffer>()  // w
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
);
