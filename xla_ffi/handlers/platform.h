// Platform: what a handler needs of the runtime that calls it. Handlers are written once; which
// platform they are compiled for is one definition.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLATFORM_H_
#define JAXMG_XLA_FFI_HANDLERS_PLATFORM_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/engine/matrix.h"

namespace jaxmg {

// Which call of which execution this is, and this rank's place in it.
struct CallSite {
  std::string routine;
  int64_t run;   // the execution of the whole program
  int64_t call;  // the call in the program
  int ranks;
  const int32_t* place;  // [rank, group], memory of the device
  std::vector<int64_t>
      ordinals;  // of the process's devices, group by group in rank order, if known
};

// This rank's place in the call.
struct Place {
  int rank;
  int group;  // where the mesh holds several replicas of A, each has a group of ranks
};

// What one rank does. Called once, on a thread of the rank's own or on the runtime's.
using RankProgram = std::function<Status(const RankContext&)>;

inline xla::ffi::Error ToFfiError(const Status& status) {
  using xla::ffi::Error;
  switch (status.code()) {
    case Code::kOk:
      return Error::Success();
    case Code::kInvalidArgument:
      return Error::InvalidArgument(status.message());
    case Code::kResourceExhausted:
      return Error(xla::ffi::ErrorCode::kResourceExhausted, status.message());
    case Code::kUnavailable:
      return Error(xla::ffi::ErrorCode::kUnavailable, status.message());
    case Code::kDeadlineExceeded:
      return Error(xla::ffi::ErrorCode::kDeadlineExceeded, status.message());
    case Code::kAborted:
      return Error(xla::ffi::ErrorCode::kAborted, status.message());
    case Code::kInternal:
      break;
  }
  return Error::Internal(status.message());
}

}  // namespace jaxmg

// Defines jaxmg::Platform, its decoding from XLA's context, jaxmg::PlatformResult and Launch.
#ifdef JAXMG_CUDA
#include "xla_ffi/handlers/cuda_platform.h"
#else
#include "xla_ffi/handlers/host_platform.h"
#endif

#endif  // JAXMG_XLA_FFI_HANDLERS_PLATFORM_H_
