// The handlers of matrices in host memory (engine/offload). The matrix is no operand: `call` has
// its id (registry.h), the index of a block column and, of host_solve, the direction. The last
// operand may be left out: memory for the part of the factor that stays on the device
// (host_cache.h), in one dimension. host_potrf then has it as its last result, too.
#include <complex>
#include <initializer_list>
#include <utility>

#include "xla_ffi/engine/offload/host_potrf.h"
#include "xla_ffi/engine/offload/host_potri.h"
#include "xla_ffi/engine/offload/host_solve.h"
#include "xla_ffi/handlers/offload/host_attributes.h"
#include "xla_ffi/handlers/offload/registry.h"

namespace jaxmg {

namespace {

constexpr char kPotrf[] = "host_potrf";
constexpr char kPotri[] = "host_potri";
constexpr char kSolve[] = "host_solve";

PlatformResult HostPotrf(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::Buffer<ffi::DataType::S32> call, ffi::AnyBuffer even,
                         ffi::AnyBuffer odd, ffi::AnyBuffer b, ffi::RemainingArgs more,
                         ffi::Result<ffi::AnyBuffer> a0, ffi::Result<ffi::AnyBuffer> a1,
                         ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> log_det,
                         ffi::ResultBuffer<ffi::DataType::S32> status,
                         ffi::RemainingRets more_results, HostAttributes attributes) {
  const HostShape shape = ShapeOf(attributes);
  Status checked = CheckHostCall(kPotrf, call, b, attributes);
  if (checked.ok()) checked = CheckRightHandSides(kPotrf, b, attributes);
  if (checked.ok()) checked = CheckBuffers(kPotrf, {even, odd}, b, shape);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kPotrf, b.element_type(), [&](auto zero) {
    using T = decltype(zero);
    CacheMemory<T> source, cache;
    const Status taken = TakeCaches<T>(kPotrf, more, more_results, b, &source, &cache);
    if (!taken.ok()) return Refuse(taken);
    HostPotrfOperand<T> operand = {shape,
                                   attributes.products,
                                   call.typed_data(),
                                   {DataOf<T>(*a0), DataOf<T>(*a1)},
                                   {DataOf<T>(even), DataOf<T>(odd)},
                                   DataOf<T>(*x),
                                   DataOf<T>(b),
                                   DataOf<Real<T>>(*log_det),
                                   status->typed_data(),
                                   &FindOpenHostMatrix,
                                   cache.data,
                                   source.data,
                                   cache.elements};
    return Launch(platform, SiteOf(kPotrf, platform, coordinates, even, attributes, attributes.n),
                  [operand = std::move(operand)](const RankContext& context) {
                    return HostPotrfRoutine<T>(context, operand);
                  });
  });
}

PlatformResult HostPotri(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::Buffer<ffi::DataType::S32> call, ffi::AnyBuffer workspace,
                         ffi::AnyBuffer column, ffi::Result<ffi::AnyBuffer> a,
                         ffi::Result<ffi::AnyBuffer> z, HostAttributes attributes) {
  const HostShape shape = ShapeOf(attributes);
  Status checked = CheckHostCall(kPotri, call, workspace, attributes);
  if (checked.ok()) checked = CheckBuffers(kPotri, {workspace, column}, workspace, shape);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kPotri, workspace.element_type(), [&](auto zero) {
    using T = decltype(zero);
    // The operands are memory for the results; their elements aren't read.
    const HostPotriOperand<T> operand = {shape, call.typed_data(), DataOf<T>(*a), DataOf<T>(*z),
                                         &FindOpenHostMatrix};
    return Launch(
        platform, SiteOf(kPotri, platform, coordinates, workspace, attributes, attributes.n),
        [operand](const RankContext& context) { return HostPotriRoutine<T>(context, operand); });
  });
}

PlatformResult HostSolve(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::Buffer<ffi::DataType::S32> call, ffi::AnyBuffer b,
                         ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> x,
                         HostAttributes attributes) {
  Status checked = CheckHostCall(kSolve, call, b, attributes);
  if (checked.ok()) checked = CheckRightHandSides(kSolve, b, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kSolve, b.element_type(), [&](auto zero) {
    using T = decltype(zero);
    CacheMemory<T> cache;
    const Status taken = TakeOperandCache<T>(kSolve, more, b, &cache);
    if (!taken.ok()) return Refuse(taken);
    HostSolveOperand<T> operand = {ShapeOf(attributes), call.typed_data(),   DataOf<T>(*x),
                                   DataOf<T>(b),        &FindOpenHostMatrix, cache.data,
                                   cache.elements};
    return Launch(platform, SiteOf(kSolve, platform, coordinates, b, attributes, attributes.n),
                  [operand = std::move(operand)](const RankContext& context) {
                    return HostSolveRoutine<T>(context, operand);
                  });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgHostPotrf, jaxmg::kPotrf, jaxmg::HostPotrf, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // a0
                         .Arg<xla::ffi::AnyBuffer>()                        // a1
                         .Arg<xla::ffi::AnyBuffer>()                        // x
                         .RemainingArgs()                                   // the cache
                         .Ret<xla::ffi::AnyBuffer>()                        // a0
                         .Ret<xla::ffi::AnyBuffer>()                        // a1
                         .Ret<xla::ffi::AnyBuffer>()                        // x
                         .Ret<xla::ffi::AnyBuffer>()                        // log_det
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
                         .RemainingRets(),                                  // the cache
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgHostPotri, jaxmg::kPotri, jaxmg::HostPotri, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // a
                         .Arg<xla::ffi::AnyBuffer>()                        // z
                         .Ret<xla::ffi::AnyBuffer>()                        // a
                         .Ret<xla::ffi::AnyBuffer>(),                       // z
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgHostSolve, jaxmg::kSolve, jaxmg::HostSolve, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // x
                         .RemainingArgs()                                   // the cache
                         .Ret<xla::ffi::AnyBuffer>(),                       // x
                     jaxmg::kNativeAlone);
