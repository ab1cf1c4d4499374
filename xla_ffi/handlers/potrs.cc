#include <complex>
#include <cstring>

#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/handlers.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "potrs";

PlatformResult Potrs(Platform platform, ffi::Buffer<ffi::DataType::S32> place, ffi::AnyBuffer a,
                     ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> a_work,
                     ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> log_det,
                     ffi::ResultBuffer<ffi::DataType::S32> status, Attributes attributes) {
  const int64_t n = attributes.n;
  Backend backend;
  const Status checked = CheckCall(kName, a, attributes, &backend);
  if (!checked.ok()) return Refuse(checked);
  const auto shape = b.dimensions();
  if (shape.size() != 2 || shape[0] != n || b.element_type() != a.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": b must be (n, nrhs), of a's dtype"));
  }
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    Operand<T> operand = {n,
                          n,
                          a.dimensions()[0],
                          attributes.tile,
                          Data<T>(*a_work),
                          status->typed_data(),
                          PrecisionOf(attributes),
                          Data<T>(a)};
    operand.grid_rows = GridRows(attributes.backend);
    const Solution<T> solution = {shape[1], Data<T>(*x), Data<Real<T>>(*log_det), Data<T>(b),
                                  attributes.check_b != 0};
    auto program = [=](const RankContext& context) {
      return kSolvers<T>[backend].potrs(context, operand, solution);
    };
    return Launch(platform, SiteOf(kName, platform, place, a, attributes), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_HANDLER(JaxmgPotrs, jaxmg::kName, jaxmg::Potrs,
                     jaxmg::kN | jaxmg::kProducts | jaxmg::kCheckB,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                        // a
                         .Arg<xla::ffi::AnyBuffer>()                        // b
                         .Ret<xla::ffi::AnyBuffer>()                        // a_work, in a's place
                         .Ret<xla::ffi::AnyBuffer>()                        // x
                         .Ret<xla::ffi::AnyBuffer>()                        // log_det
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
);
