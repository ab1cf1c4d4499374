#include <complex>

#include "xla_ffi/engine/routines.h"
#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/handlers.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "cyclic_1d";

PlatformResult Cyclic(Platform platform, ffi::Buffer<ffi::DataType::S32> place, ffi::AnyBuffer a,
                      ffi::Result<ffi::AnyBuffer> out, int64_t ranks, int64_t tile, int64_t call,
                      std::string_view backend, int64_t inverse) {
  const auto shape = a.dimensions();
  if (shape.size() != 2 || ranks < 1) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": a must have 2 dimensions, on ", ranks,
                        " ranks"));
  }
  const Attributes attributes = {shape[0] * ranks, ranks, tile, call, backend};
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    auto program = [=, rows = shape[0], columns = shape[1], a = Data<T>(a),
                    out = Data<T>(*out)](const RankContext& context) {
      JAXMG_RETURN_IF_ERROR(CopyIfApart(context, out, a, rows * columns));
      return CyclicRoutine<T>(context, rows, columns, tile, inverse != 0, out);
    };
    return Launch(platform, SiteOf(kName, platform, place, attributes), program);
  });
}

}  // namespace
}  // namespace jaxmg

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxmgCyclic1d, jaxmg::Cyclic,
                              JAXMG_BIND()
                                  .Arg<xla::ffi::AnyBuffer>()  // a
                                  .Ret<xla::ffi::AnyBuffer>()  // in a's place
                                  .Attr<int64_t>("ranks")
                                  .Attr<int64_t>("tile")
                                  .Attr<int64_t>("call")
                                  .Attr<std::string_view>("backend")
                                  .Attr<int64_t>("inverse"));
