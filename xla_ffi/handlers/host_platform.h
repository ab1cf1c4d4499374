// The platform of XLA's CPU devices. Included by platform.h alone.
//
// Each of several ranks runs on its own thread, and the handler returns at once. XLA runs the
// devices of a process on a pool of threads, which may be smaller than the number of devices, so
// ranks that wait for each other on XLA's threads could deadlock.
#ifndef JAXMG_XLA_FFI_HANDLERS_HOST_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_HOST_PLATFORM_H_

#include <optional>
#include <variant>

namespace jaxmg {

inline constexpr char kPlatform[] = "cpu";

struct Platform {
  int64_t run_id;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;  // valid while the handler runs
  int32_t ordinal;                // the device's number; -1: unknown
};

// A rank that is ready to start, or the error of an invalid call.
struct PendingRank {
  Status refusal;
  CallSite site = {};
  RankProgram program;
};

using PlatformResult = PendingRank;

inline PlatformResult Launch(const Platform&, const CallSite& site, RankProgram program) {
  return {Status::Ok(), site, std::move(program)};
}
inline PlatformResult Refuse(const Status& status) { return {status}; }

// Runs a program that needs no other rank, and so can't keep one of XLA's threads waiting.
CallOutcome LaunchAlone(const Platform& platform, const DeviceProgram& program);

// Whether the call is over when RunHere returns: it is invalid, or has no other rank to wait for.
bool RunsHere(const PendingRank& pending) noexcept;
// Runs the rank on this thread, and returns the error.
Status RunHere(PendingRank pending) noexcept;

// Starts the rank's thread, which completes the future. Completes it with an error if the thread
// can't be started.
void Start(const XLA_FFI_Api* api, XLA_FFI_Future* future, PendingRank pending) noexcept;

}  // namespace jaxmg

template <>
struct xla::ffi::CtxDecoding<jaxmg::Platform> {
  using Type = jaxmg::Platform;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    auto run_id = CtxDecoding<RunId>::Decode(api, ctx, diagnostic);
    auto ordinal = CtxDecoding<DeviceOrdinal>::Decode(api, ctx, diagnostic);
    if (!run_id) return std::nullopt;
    return jaxmg::Platform{run_id->run_id, api, ctx, ordinal.value_or(-1)};
  }
};

// Creates the future before the thread, because nothing may fail once the thread has begun to write
// results.
template <xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, jaxmg::PendingRank> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api,
                                                              XLA_FFI_ExecutionContext*,
                                                              jaxmg::PendingRank pending) noexcept {
    if (jaxmg::RunsHere(pending)) {
      const jaxmg::Status status = jaxmg::RunHere(std::move(pending));
      return status.ok() ? nullptr : jaxmg::ToFfiError(api, status);
    }
    XLA_FFI_Future_Create_Args args = {};
    args.struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE;
    if (XLA_FFI_Error* error = api->XLA_FFI_Future_Create(&args)) {
      jaxmg::FailCall(pending.site,
                      jaxmg::Status::Fixed(jaxmg::Code::kInternal, "XLA could make no future"));
      return error;
    }
    jaxmg::Start(api, args.future, std::move(pending));
    return args.future;
  }
};

#endif  // JAXMG_XLA_FFI_HANDLERS_HOST_PLATFORM_H_
