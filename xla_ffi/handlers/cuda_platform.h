// The platform of NVIDIA GPUs. Included by platform.h alone.
//
// XLA runs the devices of a process on a thread each, so ranks meet on its threads; their work is
// enqueued there and the handler returns.
#ifndef JAXMG_XLA_FFI_HANDLERS_CUDA_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_CUDA_PLATFORM_H_

#include <memory>
#include <optional>

namespace jaxmg {

inline constexpr char kPlatform[] = "gpu";

struct Platform {
  int64_t run_id;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;  // while the handler runs
  int32_t ordinal;                // of the device in this process
  void* stream;                   // XLA's own, a cudaStream_t
  // Gives back what it gave when the handler returns: XLA hands memory out in the order of its
  // stream, behind which all that a routine enqueues has been joined by then.
  std::shared_ptr<xla::ffi::ScratchAllocator> scratch;
};

struct CallOutcome {
  Status status;
};

using PlatformResult = CallOutcome;

PlatformResult Launch(const Platform& platform, const CallSite& site, const RankProgram& program);

// The result of a call that can't be right.
inline PlatformResult Refuse(const Status& status) { return {status}; }

}  // namespace jaxmg

template <>
struct xla::ffi::CtxDecoding<jaxmg::Platform> {
  using Type = jaxmg::Platform;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    auto run_id = CtxDecoding<RunId>::Decode(api, ctx, diagnostic);
    auto ordinal = CtxDecoding<DeviceOrdinal>::Decode(api, ctx, diagnostic);
    auto stream = CtxDecoding<PlatformStream<void*>>::Decode(api, ctx, diagnostic);
    auto scratch = CtxDecoding<ScratchAllocator>::Decode(api, ctx, diagnostic);
    if (!run_id || !ordinal || !stream || !scratch) return std::nullopt;
    return jaxmg::Platform{
        run_id->run_id, api,     ctx,
        *ordinal,       *stream, std::make_shared<ScratchAllocator>(std::move(*scratch))};
  }
};

template <xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, jaxmg::CallOutcome> {
  static XLA_FFI_Error* Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext*,
                               const jaxmg::CallOutcome& outcome) noexcept {
    return outcome.status.ok() ? nullptr : jaxmg::ToFfiError(api, outcome.status);
  }
};

#endif  // JAXMG_XLA_FFI_HANDLERS_CUDA_PLATFORM_H_
