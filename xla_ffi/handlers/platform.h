// Platform: what a handler needs of the runtime that calls it. Handlers are written once; which
// platform they are compiled for is one definition.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_PLATFORM_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/comm/processes/shared_call_site.h"
#include "xla_ffi/comm/processes/shared_rendezvous.h"
#include "xla_ffi/comm/rendezvous.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// Which call of which execution this is, and this rank's place in it.
struct CallSite {
  const char* routine;
  CallKey key;
  int ranks;
  const int32_t* place;  // [rank, group], memory of the device
  int64_t n, tile;       // the order and the tile width that the call names
  bool checks_place;     // the routine compares it with the place that its host has assumed
  bool spans_processes;  // some ranks are in other processes
  int64_t number;        // which no other call site of this process has had; 0: unknown
  std::shared_ptr<const SharedCallSite> shared;  // of a call that does
  std::array<int64_t, 3> block;                  // its dtype, rows and columns, to be compared
  int64_t device;                                // the ordinal of the rank's device; -1: unknown
};

// What the ranks of several processes compare: "float64, blocks of 13 x 50".
std::string BlockText(const CallSite& site);

// This rank's coordinates in the call.
struct Place {
  int rank;
  int group;  // where the mesh holds several replicas of A, each has a group of ranks
};

// Joins the rendezvous of a call whose ranks are in several processes; see shared_rendezvous.h.
Status JoinSharedRendezvous(const CallSite& site, const Place& place, const WaitPolicy& patience,
                            bool on_host, std::shared_ptr<InProcessGroup>* group,
                            int* sharing = nullptr) noexcept;

// What one rank does. Called once, on a thread of the rank's own or on the runtime's.
using RankProgram = std::function<Status(const RankContext&)>;

// For a rank that will not come to the call: all others hear of it, in whatever process.
inline void FailCall(const CallSite& site, const Status& status) noexcept {
  FailCall(site.key, status);
  if (site.shared != nullptr) FailSharedCall(*site.shared, site.key.run, status);
}

// XLA's error of a status that is not Ok. Takes no memory of ours, so that it can be made when
// there is none.
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

// Defines jaxmg::Platform, its decoding from XLA's context, jaxmg::PlatformResult, Refuse and
// Launch.
#ifdef JAXMG_CUDA
#include "xla_ffi/handlers/cuda_platform.h"
#else
#include "xla_ffi/handlers/host_platform.h"
#endif

#endif  // JAXMG_XLA_FFI_HANDLERS_PLATFORM_H_
