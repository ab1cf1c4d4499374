// Rendezvous: how the ranks of one call, threads of one process, find each other.
#ifndef JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_
#define JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

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

// --- Calls that one rank does for all ------------------------------------------------------------
// Ranks of one process share their memory. The last rank to arrive may work for all of them, which
// then wake once, when everything is done:
//
//   ArriveForAll ─┬─ last: works with PartsOf, FinishForAll
//                 └─ others: AwaitWork

// The arrivals of one such call.
struct MeetingForAll;

// A rank's arrival, and what it has for the rank that works: `part` must be valid until AwaitWork
// returns or FinishForAll has been called. Waits for nobody. The last one, and only that, gets
// *last = true; it must call FinishForAll, and nothing can fail the call before.
Status ArriveForAll(const RendezvousKey& key, const char* what, int rank, int size,
                    const void* part, std::shared_ptr<MeetingForAll>* meeting, bool* last) noexcept;

// What the ranks have for the last one, by rank.
const std::vector<const void*>& PartsOf(const MeetingForAll& meeting) noexcept;

// Wakes the other ranks, which get this status. Allocates no memory.
void FinishForAll(MeetingForAll& meeting, const Status& outcome) noexcept;

// Waits until the last rank has arrived, as JoinRendezvous does, and then without limit until it
// has worked. Returns the status that FinishForAll gets.
Status AwaitWork(const RendezvousKey& key, const char* what, int rank, const WaitPolicy& policy,
                 MeetingForAll& meeting) noexcept;

// Prints for whom a call has waited since kBeforeNotice, on stderr.
void PrintNotice(const std::string& waiting);

// Fails a call, in all its groups, for a rank that will not arrive: ranks that wait there and ranks
// that arrive later get this error at once. Allocates no memory.
void FailCall(const CallKey& key, const Status& status) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_
