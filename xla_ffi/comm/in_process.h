// In-process ranks: threads of one process that meet in a rendezvous and then exchange device
// memory directly. A message is the sender's block and the event behind which it is ready; the
// receiver copies it and answers with the event behind which the copy is done.
#ifndef JAXMG_XLA_FFI_COMM_IN_PROCESS_H_
#define JAXMG_XLA_FFI_COMM_IN_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "xla_ffi/comm/communicator.h"

namespace jaxmg {

// The meeting place of the ranks of one call; opaque.
class InProcessGroup;

// Names one call of one group of ranks. Ranks that pass equal keys meet; if the same rank comes
// with a key twice (a call inside a loop), its n-th coming meets the others' n-th.
struct MeetingKey {
  int64_t run;    // one execution of one program
  int64_t call;   // the call's place in the program
  int64_t group;  // which of the disjoint groups of ranks of the mesh
  auto AsTuple() const { return std::make_tuple(run, call, group); }
  bool operator<(const MeetingKey& other) const { return AsTuple() < other.AsTuple(); }
};

// Waits until all `size` ranks have come, at most `limit`. The error of a rank that waited in vain
// names who came and who is missing; `what` names the call in it.
//
// `ready` is the outcome of what this rank had to do alone before. One that has failed says so and
// leaves; ranks that wait, and those that come later, get its error at once.
Status Meet(const MeetingKey& key, const std::string& what, int rank, int size,
            std::chrono::duration<double> limit, const Status& ready,
            std::shared_ptr<InProcessGroup>* group);

// This rank's end of the group. `limit` bounds every wait for another rank.
std::unique_ptr<Communicator> NewInProcessCommunicator(std::shared_ptr<InProcessGroup> group,
                                                       int rank, Device* device,
                                                       std::chrono::duration<double> limit);

// A group without a meeting, for ranks that one caller starts.
std::shared_ptr<InProcessGroup> NewInProcessGroup(int size);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_IN_PROCESS_H_
