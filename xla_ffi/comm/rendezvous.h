// Rendezvous: how the ranks of one call, threads of one process, find each other.
#ifndef JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_
#define JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/monitor.h"

namespace jaxmg {

// Identifies one call in one execution of a program.
struct CallKey {
  int64_t run;            // the execution
  const void* call_site;  // the call in the program: an address that all ranks of the process share
  auto AsTuple() const { return std::make_tuple(run, call_site); }
  bool operator<(const CallKey& other) const { return AsTuple() < other.AsTuple(); }
  bool operator==(const CallKey& other) const { return AsTuple() == other.AsTuple(); }
};

// Ranks that pass equal keys join the same rendezvous. If a rank passes a key several times (a call
// inside a loop), its n-th arrival joins the n-th arrival of the others.
struct RendezvousKey {
  CallKey call;
  int64_t group;  // which of the disjoint groups of ranks of the mesh
  bool operator<(const RendezvousKey& other) const {
    return std::tie(call, group) < std::tie(other.call, other.group);
  }
};

// Waits until all `size` ranks have arrived. The error of a rank whose wait times out names the
// ranks that arrived and those that are missing; `what` names the call in it. An error on one rank
// fails the call for all ranks.
//
// Every rank passes a value; `(*group)->rank_values()` has all of them.
Status JoinRendezvous(const RendezvousKey& key, const char* what, int rank, int size,
                      const WaitPolicy& policy, int64_t value,
                      std::shared_ptr<InProcessGroup>* group) noexcept;

// Prints for whom a call has waited since kBeforeNotice, on stderr.
void PrintNotice(const std::string& waiting);

// Fails a call, in all its groups, for a rank that will not arrive: ranks that wait there and ranks
// that arrive later get this error at once. Allocates no memory.
void FailCall(const CallKey& key, const Status& status) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_
