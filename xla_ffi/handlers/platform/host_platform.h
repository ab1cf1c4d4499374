// The platform of XLA's CPU devices. Only platform.h includes it.
//
// XLA runs the devices of a process on a pool of threads, which may be smaller than the number of
// devices, so ranks that wait for each other on XLA's threads could deadlock. Each of several ranks
// waits there for a moment, though: to start a thread and to switch to it takes longer than to
// compute with many a small matrix. If the others arrive in that time, the rank runs on XLA's
// thread. Otherwise it continues on its own thread, and the handler returns at once. XLA then goes
// on with the program on the rank's thread, which doesn't flush denormals to zero as XLA's threads
// do. If one rank does a call for all, it is the last one to arrive. It works on XLA's thread,
// because it waits for no other rank.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLATFORM_HOST_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_PLATFORM_HOST_PLATFORM_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "xla_ffi/device/tunings.h"

namespace jaxmg {

inline constexpr char kPlatform[] = "cpu";

struct Platform {
  int64_t run_id;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;  // valid while the handler runs
  int32_t ordinal;                // the device's number; -1: unknown
};

// Does the work of a call for all its ranks, given each rank's part, as the only rank of `alone`.
using ProgramForAll =
    std::function<Status(const RankContext& alone, const std::vector<const void*>& parts)>;

// A rank of a call in which ranks work together, from its start to its end.
struct RankUnderWay;

// A rank that is ready to start, or the error of an invalid call.
struct PendingRank {
  Status refusal;
  CallSite site = {};
  RankProgram program;
  std::shared_ptr<RankUnderWay> rank = nullptr;  // once it has arrived
  // If one rank works for all: this rank's part, and its arrival.
  ProgramForAll for_all = nullptr;
  std::shared_ptr<const void> part = nullptr;
  std::shared_ptr<MeetingForAll> meeting = nullptr;
  bool last = false;
  // Returns the part of a rank that goes on once it has arrived, unless it is the last one.
  std::function<std::shared_ptr<const void>()> leave = nullptr;
  // Whether BLAS uses one thread. For a small matrix more threads cost more than they save, and on
  // a busy machine threads that wait for each other wait long.
  bool one_thread = false;
};

using PlatformResult = PendingRank;

// Returns the ranks' parts, which the meeting has as pointers.
template <typename Part>
std::vector<Part> PartsAs(const std::vector<const void*>& parts) {
  std::vector<Part> typed;
  typed.reserve(parts.size());
  for (const void* each : parts) typed.push_back(*static_cast<const Part*>(each));
  return typed;
}

inline PlatformResult Launch(const Platform&, const CallSite& site, RankProgram program) {
  return {Status::Ok(), site, std::move(program)};
}
// As Launch, for a call that the last rank to arrive does for all, if all are in one process and
// fits(tuning) is true. `one_thread` limits BLAS to one thread. It also applies to a single rank,
// so that this rank returns the same bits.
template <typename Part, typename Fits>
PlatformResult LaunchForAll(const Platform& platform, const CallSite& site, RankProgram program,
                            bool one_thread, const Fits& fits, const Part& part,
                            Status (*work)(const RankContext&, const std::vector<Part>&)) {
  PendingRank pending = Launch(platform, site, std::move(program));
  if (site.spans_processes || !fits(HostTuning())) return pending;
  pending.one_thread = one_thread;
  if (site.ranks == 1) return pending;
  pending.program = nullptr;
  pending.part = std::make_shared<const Part>(part);
  pending.for_all = [work](const RankContext& alone, const std::vector<const void*>& parts) {
    return work(alone, PartsAs<Part>(parts));
  };
  return pending;
}

// Launches a call of which only the last rank to arrive needs the result: the others leave their
// parts and go on. `leave` returns this rank's part, which owns what it points to. `work` gets the
// parts of all, and the last rank's number.
template <typename Part, typename Leave>
PlatformResult LaunchOnLast(const Platform& platform, const CallSite& site, const Leave& leave,
                            Status (*work)(const RankContext&, const std::vector<Part>&, int)) {
  if (site.spans_processes) {
    return {Error(Code::kInvalidArgument, site.routine,
                  ": the last rank can only work for others of its process")};
  }
  PendingRank pending = Launch(platform, site, [leave, work](const RankContext& alone) {
    return work(alone, {leave()}, 0);
  });
  pending.one_thread = true;
  if (site.ranks == 1) return pending;
  pending.program = nullptr;
  pending.leave = [leave]() -> std::shared_ptr<const void> {
    return std::make_shared<const Part>(leave());
  };
  const int32_t number = site.coordinates[0];
  pending.for_all = [work, number](const RankContext& alone,
                                   const std::vector<const void*>& parts) {
    return work(alone, PartsAs<Part>(parts), number);
  };
  return pending;
}

inline PlatformResult Refuse(const Status& status) { return {status}; }

// Runs a program that needs no other rank, so it can't block one of XLA's threads.
CallOutcome LaunchAlone(const Platform& platform, const DeviceProgram& program);

// Returns whether the call ends when RunHere returns, because it is invalid or has no other rank to
// wait for.
bool RunsHere(const PendingRank& pending) noexcept;
// Runs the rank on this thread, and returns its status.
Status RunHere(PendingRank pending) noexcept;

// Runs the rank on this thread if it need not wait long for others, and sets its status. Otherwise
// returns false: the rank has arrived, and must be started.
bool RunSoon(PendingRank* pending, Status* status) noexcept;

// Ends the call of a rank that can't be started: with the error `why`, unless all have arrived.
Status EndWithoutThread(const PendingRank& pending, const Status& why) noexcept;

// Starts the rank's thread, which completes the future. If the thread can't be started, completes
// the future with an error.
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
    jaxmg::Status status;
    if (jaxmg::RunsHere(pending)) {
      status = jaxmg::RunHere(std::move(pending));
      return status.ok() ? nullptr : jaxmg::ToFfiError(api, status);
    }
    if (jaxmg::RunSoon(&pending, &status)) {
      return status.ok() ? nullptr : jaxmg::ToFfiError(api, status);
    }
    XLA_FFI_Future_Create_Args args = {};
    args.struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE;
    if (XLA_FFI_Error* error = api->XLA_FFI_Future_Create(&args)) {
      (void)jaxmg::EndWithoutThread(
          pending, jaxmg::Status::Fixed(jaxmg::Code::kInternal, "XLA could not create a future"));
      return error;
    }
    jaxmg::Start(api, args.future, std::move(pending));
    return args.future;
  }
};

#endif  // JAXMG_XLA_FFI_HANDLERS_PLATFORM_HOST_PLATFORM_H_
