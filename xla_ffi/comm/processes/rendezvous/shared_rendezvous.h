// Rendezvous of the ranks of one call that are in several processes. The ranks of each process meet
// as in rendezvous.h; then the processes meet at the lead, the process of rank 0 (README.md).
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_SHARED_RENDEZVOUS_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_SHARED_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/shared_call_site.h"

namespace jaxmg {

// One arrival of a rank of this process at a call.
struct SharedCall {
  std::shared_ptr<const SharedCallSite> call_site;
  int64_t run;  // the execution; the same number in all processes
  int group;
  int rank;
  std::string
      block;  // dtype and shape, which the ranks compare in addition to the call site's text
  bool on_host = true;  // whether device memory is host memory
  // The ordinal of the rank's device in this process, or -1 if it is unknown. The other ranks of
  // this process can read it (InProcessGroup::rank_values).
  int64_t device = 0;
};

// Waits until all ranks have arrived, in all processes. An error names the missing ranks, their
// processes and hosts and, as far as known, the calls in which these processes wait meanwhile. If
// two processes make different calls, it names both calls. Sets `*here` to the number of ranks that
// share this process's processors.
Status JoinSharedRendezvous(const SharedCall& call, const WaitPolicy& policy,
                            std::shared_ptr<InProcessGroup>* group, int* here) noexcept;

// Fails a call for the ranks of other processes: ranks that wait for it and ranks that arrive later
// get this error. FailCall does the same for the ranks of this process.
void FailSharedCall(const SharedCallSite& site, int64_t run, const Status& status) noexcept;

// Receives the rendezvous frames of other processes from the hub.
FrameSink* SharedRendezvousSink();

// Returns the number of rendezvous in progress that this process knows of. For tests.
size_t CountOpenSharedRendezvous();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_SHARED_RENDEZVOUS_H_
