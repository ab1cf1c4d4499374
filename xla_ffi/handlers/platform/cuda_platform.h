// The platform of NVIDIA GPUs. Only platform.h includes it.
//
// XLA runs each device of a process on its own thread. The ranks' rendezvous takes place on these
// threads; the handler enqueues the work and returns.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLATFORM_CUDA_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_PLATFORM_CUDA_PLATFORM_H_

#include <memory>
#include <optional>
#include <vector>

namespace jaxmg {

inline constexpr char kPlatform[] = "gpu";

struct Platform {
  int64_t run_id;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;  // valid while the handler runs
  int32_t ordinal;                // number of the device in this process
  void* stream;                   // XLA's own stream, a cudaStream_t
  // Frees its memory when the handler returns. This is safe because XLA allocates in the order of
  // its stream, and by then all work of the routine has been joined into that stream.
  std::shared_ptr<xla::ffi::ScratchAllocator> scratch;
};

using PlatformResult = CallOutcome;

PlatformResult Launch(const Platform& platform, const CallSite& site, const RankProgram& program);

// Ignores the arguments for one rank: the ranks of GPUs always work together.
template <typename Part, typename Fits>
PlatformResult LaunchForAll(const Platform& platform, const CallSite& site,
                            const RankProgram& program, bool, const Fits&, const Part&,
                            Status (*)(const RankContext&, const std::vector<Part>&)) {
  return Launch(platform, site, program);
}

template <typename Part, typename Leave>
PlatformResult LaunchOnLast(const Platform&, const CallSite& site, const Leave&,
                            Status (*)(const RankContext&, const std::vector<Part>&, int)) {
  return {Error(Code::kInvalidArgument, site.routine,
                ": the last rank can only work for others on CPU devices")};
}

// Runs a program that needs no other rank. Its work must be on Stream::kMain.
CallOutcome LaunchAlone(const Platform& platform, const DeviceProgram& program);

// Returns the result of an invalid call.
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

#endif  // JAXMG_XLA_FFI_HANDLERS_PLATFORM_CUDA_PLATFORM_H_
