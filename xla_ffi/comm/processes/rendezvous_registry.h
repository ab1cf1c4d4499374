// RendezvousRegistry: the rendezvous of processes over calls, both at the lead and at the other
// processes. The ranks of each process have met before (shared_rendezvous.h).
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_REGISTRY_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_REGISTRY_H_

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/process_group.h"
#include "xla_ffi/comm/processes/shared_call_site.h"
#include "xla_ffi/comm/processes/shared_rendezvous.h"

namespace jaxmg {

inline CallName NameOf(const SharedCallSite& site, int64_t run, int64_t group) {
  return {site.digest, site.index, run, group};
}

// A call at which this process has arrived and for whose start it waits.
struct PendingCall {
  CallName name;
  std::shared_ptr<ProcessGroup> group;
  bool complete = false;
  Status failure;
  bool over() const { return complete || !failure.ok(); }
};

// At the lead: one process that has arrived.
struct Arrival {
  int64_t number;  // the process's own number of the pending call
  std::string text;
  // Calls whose programs the lead has asked the process about; and those whose programs the process
  // had not made when it arrived at this call.
  std::vector<CallName> asked = {}, not_made = {};
};
struct PendingRendezvous {
  CallName name;
  std::vector<int> processes;  // by rank
  std::map<int, Arrival> arrivals;
  Clock::time_point since = Clock::now();  // time of the last arrival

  bool HasSameProcesses(const PendingRendezvous& other) const {
    return this != &other && name.group == other.name.group && processes == other.processes;
  }
};

// A rendezvous whose time limit has passed. Kept so that the errors of other calls can mention it.
struct AbandonedRendezvous {
  Clock::time_point when;
  PendingRendezvous pending;
};

struct FailedCallName {
  CallName name = {};
  Status status;
};

// All rendezvous between processes that this process takes part in.
class RendezvousRegistry : public FrameSink {
 public:
  Status Join(const SharedCall& call, const std::string& text,
              const std::shared_ptr<ProcessGroup>& group, Seconds limit);
  // Returns false if the failure was already recorded.
  bool RecordFailure(const CallName& name, const Status& status) noexcept;
  Status FailureOf(const CallName& name) noexcept;
  size_t size();

  void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept override;
  void OnLost(int process, const Status& why) noexcept override;
  void OnTick() noexcept override;

 private:
  // All of these require the lock.
  void OnLostLocked(int process, const Status& why) noexcept;
  void AddArrival(int process, const CallName& name, std::vector<int> processes, Arrival arrival);
  void Complete(PendingRendezvous& pending);
  void FailPending(const PendingRendezvous& pending, const Status& status) noexcept;
  void RememberFailure(const CallName& name, const Status& status) noexcept;
  void Answer(int process, int64_t number, FrameType type, int64_t value, const Status& status,
              int lead) noexcept;
  Status TimeoutError(const PendingRendezvous& pending, Seconds limit);
  std::string DescribeOtherWait(int process, const PendingRendezvous& besides);
  void Withdraw(int process, int64_t number, Seconds limit);
  void BeginCall(int process, const FrameHeader& header) noexcept;
  void HandleJoin(int process, const FrameHeader& header, const Payload& payload);

  // In rendezvous_compare.cc.
  bool CompareOperands(const PendingRendezvous& pending);
  void ComparePrograms();
  void AskWhetherMade(int process, int64_t number, const CallName& name);
  void RecordNotMade(int process, int64_t number, const CallName& name);
  void FailBoth(const PendingRendezvous& one, const PendingRendezvous& other);

  Monitor monitor_;
  int64_t last_number_ = 0, last_call_ = 0;
  std::map<int64_t, std::shared_ptr<PendingCall>> waiting_;
  std::list<PendingRendezvous> pending_;      // oldest first
  std::list<AbandonedRendezvous> abandoned_;  // youngest first
  std::array<FailedCallName, 64> failed_;
  size_t next_failed_ = 0;
  Clock::time_point compared_ = {};  // when programs were last compared
};

// The error for two processes that arrived at one call, or at two, with different texts.
Status DifferentCallsError(int process, const std::string& text, int other,
                           const std::string& other_text);

// Sends a frame if the process is connected. If it isn't, it is lost, which the hub reports.
void SendTo(int process, OutFrame frame) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_REGISTRY_H_
