// The handlers of LU factorizations in host memory: as host_calls.cc, with pivots for all block
// columns.
#include <complex>
#include <utility>

#include "xla_ffi/engine/offload/host_getrf.h"
#include "xla_ffi/engine/offload/host_getrs.h"
#include "xla_ffi/handlers/offload/host_attributes.h"

namespace jaxmg {
namespace {

constexpr char kGetrf[] = "host_getrf";
constexpr char kGetrs[] = "host_getrs";

using Ints = ffi::Buffer<ffi::DataType::S32>;

HostShape WholeShapeOf(const HostAttributes& attributes) {
  HostShape shape = ShapeOf(attributes);
  shape.whole = true;
  return shape;
}

Status CheckPivots(const char* name, Ints& pivots, const HostAttributes& attributes) {
  if (static_cast<int64_t>(pivots.element_count()) == attributes.n) return Status::Ok();
  return Error(Code::kInvalidArgument, name, ": there must be ", attributes.n, " pivots");
}

PlatformResult HostGetrf(Platform platform, Ints coordinates, Ints call, ffi::AnyBuffer even,
                         ffi::AnyBuffer odd, ffi::AnyBuffer b, Ints before, ffi::RemainingArgs more,
                         ffi::Result<ffi::AnyBuffer> a0, ffi::Result<ffi::AnyBuffer> a1,
                         ffi::Result<ffi::AnyBuffer> x,
                         ffi::ResultBuffer<ffi::DataType::S32> pivots,
                         ffi::Result<ffi::AnyBuffer> log_abs, ffi::Result<ffi::AnyBuffer> sign,
                         ffi::ResultBuffer<ffi::DataType::S32> status,
                         ffi::RemainingRets more_results, HostAttributes attributes) {
  Status checked = CheckHostCall(kGetrf, call, b, attributes);
  const HostShape shape = WholeShapeOf(attributes);
  if (checked.ok()) checked = CheckRightHandSides(kGetrf, b, attributes);
  if (checked.ok()) checked = CheckBuffers(kGetrf, {even, odd}, b, shape);
  if (checked.ok()) checked = CheckPivots(kGetrf, before, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kGetrf, b.element_type(), [&](auto zero) {
    using T = decltype(zero);
    CacheMemory<T> source, cache;
    const Status taken = TakeCaches<T>(kGetrf, more, more_results, b, &source, &cache);
    if (!taken.ok()) return Refuse(taken);
    HostGetrfOperand<T> operand = {shape,
                                   attributes.products,
                                   call.typed_data(),
                                   {DataOf<T>(*a0), DataOf<T>(*a1)},
                                   {DataOf<T>(even), DataOf<T>(odd)},
                                   DataOf<T>(*x),
                                   DataOf<T>(b),
                                   pivots->typed_data(),
                                   before.typed_data(),
                                   DataOf<Real<T>>(*log_abs),
                                   DataOf<T>(*sign),
                                   status->typed_data(),
                                   &FindOpenHostMatrix,
                                   cache.data,
                                   source.data,
                                   cache.elements};
    return Launch(platform, SiteOf(kGetrf, platform, coordinates, even, attributes, attributes.n),
                  [operand = std::move(operand)](const RankContext& context) {
                    return HostGetrfRoutine<T>(context, operand);
                  });
  });
}

PlatformResult HostGetrs(Platform platform, Ints coordinates, Ints call, ffi::AnyBuffer b,
                         Ints pivots, ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> x,
                         HostAttributes attributes) {
  Status checked = CheckHostCall(kGetrs, call, b, attributes);
  if (checked.ok()) checked = CheckRightHandSides(kGetrs, b, attributes);
  if (checked.ok()) checked = CheckPivots(kGetrs, pivots, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kGetrs, b.element_type(), [&](auto zero) {
    using T = decltype(zero);
    CacheMemory<T> cache;
    const Status taken = TakeOperandCache<T>(kGetrs, more, b, &cache);
    if (!taken.ok()) return Refuse(taken);
    HostGetrsOperand<T> operand = {
        WholeShapeOf(attributes), call.typed_data(),   DataOf<T>(*x), DataOf<T>(b),
        pivots.typed_data(),      &FindOpenHostMatrix, cache.data,    cache.elements};
    return Launch(platform, SiteOf(kGetrs, platform, coordinates, b, attributes, attributes.n),
                  [operand = std::move(operand)](const RankContext& context) {
                    return HostGetrsRoutine<T>(context, operand);
                  });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgHostGetrf, jaxmg::kGetrf, jaxmg::HostGetrf, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // a0
                         .Arg<xla::ffi::AnyBuffer>()                        // a1
                         .Arg<xla::ffi::AnyBuffer>()                        // x
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // pivots
                         .RemainingArgs()                                   // the cache
                         .Ret<xla::ffi::AnyBuffer>()                        // a0
                         .Ret<xla::ffi::AnyBuffer>()                        // a1
                         .Ret<xla::ffi::AnyBuffer>()                        // x
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // pivots
                         .Ret<xla::ffi::AnyBuffer>()                        // log_abs
                         .Ret<xla::ffi::AnyBuffer>()                        // sign
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
                         .RemainingRets(),                                  // the cache
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgHostGetrs, jaxmg::kGetrs, jaxmg::HostGetrs, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // x
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // pivots
                         .RemainingArgs()                                   // the cache
                         .Ret<xla::ffi::AnyBuffer>(),                       // x
                     jaxmg::kNativeAlone);
