// Rendezvous: how the ranks of one call, threads of one process, find each other.
#ifndef JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_
#define JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/monitor.h"

namespace jaxmg {

class InProcessGroup;

// Identifies one call in one execution of a program.
struct CallKey {
  int64_t run;  // the execution
  // The call in the program: an address that all ranks of the process share. Null in FailCall: all
  // calls of the execution.
  const void* call_site;
  auto AsTuple() const { return std::make_tuple(run, call_site); }
  bool operator<(const CallKey& other) const { return AsTuple() < other.AsTuple(); }
  bool operator==(const CallKey& other) const { return AsTuple() == other.AsTuple(); }
};

// Ranks that pass equal keys join the same rendezvous. If a rank passes a key several times (a call
// inside a loop), its n-th arrival joins the n-th arrivals of the other ranks.
struct RendezvousKey {
  CallKey call;
  int64_t group;  // which of the mesh's disjoint groups of ranks
  bool operator<(const RendezvousKey& other) const {
    return std::tie(call, group) < std::tie(other.call, other.group);
  }
};

// Waits until all `size` ranks have arrived. If the wait of a rank times out, its error names the
// ranks that arrived and those that are missing; `what` names the call in the error. An error on
// one rank fails the call for all ranks.
//
// Every rank passes a value; `(*group)->rank_values()` has all values.
Status JoinRendezvous(const RendezvousKey& key, const char* what, int rank, int size,
                      const WaitPolicy& policy, int64_t value,
                      std::shared_ptr<InProcessGroup>* group) noexcept;

// The arrivals at one rendezvous of ranks that work together.
struct MeetingOfGroup;

// The first step of JoinRendezvous, which waits for nobody.
Status ArriveInGroup(const RendezvousKey& key, const char* what, int rank, int size, int64_t value,
                     std::shared_ptr<MeetingOfGroup>* meeting) noexcept;

// The second: waits until all ranks have arrived, or the call has failed.
Status AwaitGroup(const RendezvousKey& key, const char* what, int rank, const WaitPolicy& policy,
                  MeetingOfGroup& meeting, std::shared_ptr<InProcessGroup>* group) noexcept;

// Waits until AwaitGroup would return at once, but no longer than `patience`. Returns whether it
// would.
bool AwaitGroupBriefly(MeetingOfGroup& meeting, Seconds patience) noexcept;

// --- Calls that one rank does for all ------------------------------------------------------------
// Ranks of one process share their memory, so the last rank to arrive may work for all of them. The
// others wake once, when everything is done:
//
//   ArriveForAll ─┬─ last: works with PartsOf, FinishForAll
//                 └─ others: AwaitWork

// The rendezvous of one such call.
struct MeetingForAll;

// Records a rank's arrival and its input to the work, `part`, which must be valid until AwaitWork
// returns or FinishForAll has been called. Never waits. Sets *last = true on the last rank only;
// that rank must call FinishForAll, and nothing can fail the call before it does.
Status ArriveForAll(const RendezvousKey& key, const char* what, int rank, int size,
                    const void* part, std::shared_ptr<MeetingForAll>* meeting, bool* last) noexcept;

// Returns the ranks' inputs to the work, in rank order.
const std::vector<const void*>& PartsOf(const MeetingForAll& meeting) noexcept;

// Wakes the other ranks, which return `outcome`. Allocates no memory.
void FinishForAll(MeetingForAll& meeting, const Status& outcome) noexcept;

// Waits until the last rank has arrived, as JoinRendezvous does, and then without a time limit
// until that rank is done. Returns the status passed to FinishForAll.
Status AwaitWork(const RendezvousKey& key, const char* what, int rank, const WaitPolicy& policy,
                 MeetingForAll& meeting) noexcept;

// Waits until AwaitWork would return at once, but no longer than `patience`, or twice as long if
// all ranks have arrived after the first `patience`. Returns whether it would.
bool AwaitWorkBriefly(MeetingForAll& meeting, const WaitPolicy& patience) noexcept;

// As ArriveForAll, for a rank that goes on at once and needs no result. The meeting keeps `part`.
// The last rank works without FinishForAll. Returns an error if any call of the execution has
// failed, because nobody waits here for the error of this one.
Status LeavePart(const RendezvousKey& key, const char* what, int rank, int size,
                 std::shared_ptr<const void> part, std::shared_ptr<MeetingForAll>* meeting,
                 bool* last) noexcept;

// Prints on stderr which ranks or processes a call has been waiting for during kBeforeNotice.
void PrintNotice(const std::string& waiting);

// Fails a call, in all its groups, because a rank will not arrive. Ranks that wait there and ranks
// that arrive later get this error at once. Allocates no memory.
void FailCall(const CallKey& key, const Status& status) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_RENDEZVOUS_H_
