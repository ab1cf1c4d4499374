// Meeting: how the ranks of one call, threads of one process, find each other.
#ifndef JAXMG_XLA_FFI_COMM_MEETING_H_
#define JAXMG_XLA_FFI_COMM_MEETING_H_

#include <cstdint>
#include <memory>
#include <tuple>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/monitor.h"

namespace jaxmg {

// Names one call in one execution of a program.
struct CallKey {
  int64_t run;       // the execution
  const void* site;  // the call in the program: an address that all ranks of the process share
  auto AsTuple() const { return std::make_tuple(run, site); }
  bool operator<(const CallKey& other) const { return AsTuple() < other.AsTuple(); }
  bool operator==(const CallKey& other) const { return AsTuple() == other.AsTuple(); }
};

// Ranks that pass equal keys meet; if the same rank comes with a key twice (a call inside a loop),
// its n-th coming meets the others' n-th.
struct MeetingKey {
  CallKey call;
  int64_t group;  // which of the disjoint groups of ranks of the mesh
  bool operator<(const MeetingKey& other) const {
    return std::tie(call, group) < std::tie(other.call, other.group);
  }
};

// Waits until all `size` ranks have come. The error of a rank that waited in vain names who came
// and who is missing; `what` names the call in it. A rank that fails here fails the call.
//
// Every rank brings a number; `(*group)->brought()` has all of them.
Status Meet(const MeetingKey& key, const char* what, int rank, int size, const Patience& patience,
            int64_t mine, std::shared_ptr<InProcessGroup>* group) noexcept;

// For a rank that will not come to the call, in whatever group it would have been: ranks that wait
// there, and those that come later, get this error at once. Takes no memory.
void FailCall(const CallKey& key, const Status& status) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_MEETING_H_
