// How the ranks of one call find each other when they are in several processes. Those of a process
// meet as in meeting.h; then the processes do, at the lead, the process of rank 0 (README.md).
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_MEETING_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_MEETING_H_

#include <cstdint>
#include <memory>
#include <string>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/shared_site.h"

namespace jaxmg {

// One coming of a rank of this process to a call.
struct SharedCall {
  std::shared_ptr<const SharedSite> site;
  int64_t run;  // the execution, the same number in all processes
  int group;
  int rank;
  std::string block;    // what the ranks compare beside the site's text: dtype and shape
  bool on_host = true;  // the devices' memory is the host's
  int64_t mine = 0;     // what the rank brings for those of its process (InProcessGroup::brought)
};

// Waits until all ranks have come, in all processes. An error names those that are missing, their
// processes and hosts, and in what these wait meanwhile as far as is known; or both sides, where
// two processes make different calls. `*here` is how many of the ranks share this process's
// processors.
Status MeetAcross(const SharedCall& call, const Patience& patience,
                  std::shared_ptr<InProcessGroup>* group, int* here) noexcept;

// FailCall for a call whose ranks are in several processes: those that wait for it in any of them,
// and those that come later, get this error. Beside FailCall, which tells this process's.
void FailSharedCall(const SharedSite& site, int64_t run, const Status& status) noexcept;

// Where the hub hands what other processes say of meetings.
FrameSink* SharedMeetings();

// Meetings that are under way, of which this process knows. For tests.
size_t OpenSharedMeetings();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_MEETING_H_
