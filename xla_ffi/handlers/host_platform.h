// The platform of XLA's CPU devices. Included by platform.h alone.
//
// A rank runs on a thread of its own and the handler returns at once: XLA runs the devices of a
// process on a pool of threads that may be smaller than the number of devices, so ranks that waited
// for each other on XLA's threads could wait for ever.
#ifndef JAXMG_XLA_FFI_HANDLERS_HOST_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_HOST_PLATFORM_H_

#include <optional>

namespace jaxmg {

struct Platform {
  int64_t run_id;
};

using PlatformResult = xla::ffi::Future;

PlatformResult Launch(const Platform& platform, const CallSite& site, RankProgram program);

// The result of a call that can't be right.
PlatformResult Refuse(const Status& status);

}  // namespace jaxmg

template <>
struct xla::ffi::CtxDecoding<jaxmg::Platform> {
  using Type = jaxmg::Platform;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    auto run_id = CtxDecoding<RunId>::Decode(api, ctx, diagnostic);
    if (!run_id) return std::nullopt;
    return jaxmg::Platform{run_id->run_id};
  }
};

#endif  // JAXMG_XLA_FFI_HANDLERS_HOST_PLATFORM_H_
