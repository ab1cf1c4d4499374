// Platform: the interface of a handler to the runtime that calls it. Handlers are written once; the
// macro JAXMG_CUDA selects the platform for which they are compiled.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLATFORM_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_PLATFORM_PLATFORM_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/comm/processes/shared_call_site.h"
#include "xla_ffi/comm/rendezvous.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Host memory that devices can copy from and to fast, and while they compute. On GPUs it must be
// page-locked; on CPU devices all memory is so, and Pin and Unpin do nothing. Unpin takes the
// address that Pin was called with.
Status Pin(void* address, size_t bytes);
Status Unpin(void* address);
Status IsPinned(const void* address, bool* pinned);

// Identifies a call, its execution, and this rank's coordinates in it.
struct CallSite {
  const char* routine;
  CallKey key;
  int ranks;
  const int32_t* coordinates;  // [rank, group], in device memory
  int64_t n, tile;             // the call's attributes; 0 if it has none
  bool checks_coordinates;     // whether the routine checks the coordinates that its host assumes
  bool spans_processes;        // whether some ranks are in other processes
  int64_t number;              // unique in this process; 0: unknown
  std::shared_ptr<const SharedCallSite> shared;  // null unless the call spans processes
  std::array<int64_t, 3> block;         // dtype, rows and columns of the block, which ranks compare
  int64_t device;                       // the number of the rank's device; -1: unknown
  std::array<int64_t, 2> b = {-1, -1};  // rows and columns of b, which ranks compare; -1: no b
};

// Returns the text that the ranks of several processes compare, as in "float64, blocks of 13 x 50,
// b of 50 x 2".
std::string BlockText(const CallSite& site);

// This rank's coordinates in the call.
struct RankCoordinates {
  int rank;
  int group;  // each replica of A in the mesh has its own group of ranks
};

// Joins the rendezvous of a call whose ranks are in several processes (shared_rendezvous.h).
Status JoinSharedRendezvous(const CallSite& site, const RankCoordinates& coordinates,
                            const WaitPolicy& patience, bool on_host,
                            std::shared_ptr<InProcessGroup>* group,
                            int* sharing = nullptr) noexcept;

// The function that one rank runs. Called once, on the rank's own thread or on the runtime's.
using RankProgram = std::function<Status(const RankContext&)>;

// The function that a device runs alone, on the runtime's thread.
using DeviceProgram = std::function<Status(Device&)>;

// The result of a handler that has enqueued or completed its work.
struct CallOutcome {
  Status status;
};

// Reports to all other ranks, in all processes, that this rank can't join the call.
void FailCall(const CallSite& site, const Status& status) noexcept;

// The functions that CallUnderWay calls with a CallSite.
void FailWaitingCall(const void* site, const Status& status) noexcept;
std::string WhereInterrupted(const void* site);  // names this process if there are several

// Converts a status that is not Ok to XLA's error. Allocates no memory itself, so it works when
// memory is exhausted.
inline XLA_FFI_Error* ToFfiError(const XLA_FFI_Api* api, const Status& status) noexcept {
  auto code = [&] {
    switch (status.code()) {
      case Code::kInvalidArgument:
        return XLA_FFI_Error_Code_INVALID_ARGUMENT;
      case Code::kResourceExhausted:
        return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
      case Code::kUnavailable:
        return XLA_FFI_Error_Code_UNAVAILABLE;
      case Code::kDeadlineExceeded:
        return XLA_FFI_Error_Code_DEADLINE_EXCEEDED;
      case Code::kAborted:
        return XLA_FFI_Error_Code_ABORTED;
      case Code::kCancelled:
        return XLA_FFI_Error_Code_CANCELLED;
      case Code::kOk:
      case Code::kInternal:
        break;
    }
    return XLA_FFI_Error_Code_INTERNAL;
  };
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = status.text();
  args.errc = code();
  return api->XLA_FFI_Error_Create(&args);
}

}  // namespace jaxmg

template <xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, jaxmg::CallOutcome> {
  static XLA_FFI_Error* Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext*,
                               const jaxmg::CallOutcome& outcome) noexcept {
    return outcome.status.ok() ? nullptr : jaxmg::ToFfiError(api, outcome.status);
  }
};

// Defines jaxmg::Platform, its decoding from XLA's context, jaxmg::PlatformResult, Refuse, Launch
// and LaunchAlone.
#ifdef JAXMG_CUDA
#include "xla_ffi/handlers/platform/cuda_platform.h"
#else
#include "xla_ffi/handlers/platform/host_platform.h"
#endif

#endif  // JAXMG_XLA_FFI_HANDLERS_PLATFORM_PLATFORM_H_
