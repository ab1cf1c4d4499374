// RendezvousRegistry: the rendezvous of processes over calls, both at the lead and at the other
// processes. The ranks of each process have met before (shared_rendezvous.h).
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_RENDEZVOUS_REGISTRY_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_RENDEZVOUS_REGISTRY_H_

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/process_group.h"
#include "xla_ffi/comm/processes/rendezvous/shared_rendezvous.h"
#include "xla_ffi/comm/processes/shared_call_site.h"

namespace jaxmg {

inline CallName NameOf(const SharedCallSite& site, int64_t run, int64_t group) {
  return {site.digest, site.index, run, group};
}

// The devices of this process that a call occupies from the start of its program to its end.
struct DeviceUse {
  std::vector<int64_t> devices;  // ordinals, in increasing order
  bool on_host;
  // Whether XLA runs later programs on these devices only after the call's program.
  bool in_order;
};

// A call at which this process has arrived and whose start it awaits.
struct PendingCall {
  CallName name;
  std::shared_ptr<ProcessGroup> group;
  DeviceUse use;
  bool complete = false;
  Status failure;
  bool over() const { return complete || !failure.ok(); }
};

// At the lead: one process that has arrived.
struct Arrival {
  int64_t number;  // the process's own number of the pending call
  std::string text;
};

// `process` waits in call `number` of lead `lead`. Until this wait ends, the process can't arrive
// at the call of the previous wait in the chain.
struct Wait {
  int32_t process, lead;
  int64_t number;
  std::string text;  // of the call and, after a line break, the name of the process
};
// Waits, each of which is the reason for the previous one. It is a cycle if the last wait is in the
// call from which the search began.
struct WaitChain {
  static constexpr size_t kLongest = 64;
  // Identifies the search: the lead that began it, an arrival at the call (a process and its
  // number), and the lead's count of searches.
  int32_t lead, process;
  int64_t number, round;
  std::vector<Wait> waits = {};

  auto Search() const { return std::make_tuple(lead, process, number, round); }
  bool operator<(const WaitChain& other) const { return IdsOf(*this) < IdsOf(other); }

 private:
  static std::vector<std::tuple<int32_t, int32_t, int64_t>> IdsOf(const WaitChain& chain) {
    std::vector<std::tuple<int32_t, int32_t, int64_t>> ids;
    for (const Wait& wait : chain.waits) ids.emplace_back(wait.process, wait.lead, wait.number);
    return ids;
  }
};

struct PendingRendezvous {
  CallName name;
  std::vector<int> processes;  // by rank
  std::map<int, Arrival> arrivals;
  Clock::time_point since = Clock::now();  // time of the last arrival
  Clock::time_point begun = Clock::now();  // time of the first arrival
  bool noticed = false;                    // whether the missing processes were printed
  // State of the search for cycles: the cycles found in the previous and in the current round; the
  // cycle found in both; and the searches that have already asked the missing processes.
  std::set<WaitChain> cycles_before = {}, cycles = {};
  std::vector<WaitChain> confirmed = {};  // at most one
  std::set<std::tuple<int32_t, int32_t, int64_t, int64_t>> searches = {};

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

// All rendezvous between processes in which this process takes part.
class RendezvousRegistry : public FrameSink {
 public:
  // A rank of this process in the rendezvous of a call.
  struct Presence {
    CallName name;
    int64_t device;
    bool on_host;
  };
  class Entry {
   public:
    Entry(RendezvousRegistry& registry, const Presence& presence);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    RendezvousRegistry& registry_;
    std::list<Presence>::iterator here_;
  };

  Status Join(const SharedCall& call, const std::string& text,
              const std::shared_ptr<ProcessGroup>& group, Seconds limit, DeviceUse use);
  // Returns false if the failure was already recorded.
  bool RecordFailure(const CallName& name, const Status& status) noexcept;
  Status FailureOf(const CallName& name) noexcept;
  size_t size();

  void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept override;
  void OnLost(int process, const Status& why) noexcept override;
  Clock::time_point OnTick() noexcept override;

 private:
  // All of these require the lock.
  void OnLostLocked(int process, const Status& why) noexcept;
  void AddArrival(int process, const CallName& name, std::vector<int> processes, Arrival arrival);
  void Complete(PendingRendezvous& pending);
  void FailPending(const PendingRendezvous& pending, const Status& status) noexcept;
  void RememberFailure(const CallName& name, const Status& status) noexcept;
  void Answer(int process, int64_t number, FrameType type, int64_t value, const Status& status,
              int lead) noexcept;
  void NoticeMissing();
  std::string DescribeRanks(const PendingRendezvous& pending, bool arrived);
  Status TimeoutError(const PendingRendezvous& pending, Seconds limit);
  std::string DescribeOtherWait(int process, const PendingRendezvous& besides);
  void Withdraw(int process, int64_t number, Seconds limit);
  void BeginCall(int process, const FrameHeader& header) noexcept;
  void HandleJoin(int process, const FrameHeader& header, const Payload& payload);

  // In rendezvous_compare.cc.
  bool CompareOperands(const PendingRendezvous& pending);
  void FailBoth(const PendingRendezvous& one, const PendingRendezvous& other);

  // In rendezvous_cycles.cc.
  Clock::time_point SearchCycles();
  void AskMissing(PendingRendezvous& pending, const WaitChain& chain);
  void AnswerWaits(const CallName& missing, const WaitChain& chain);
  bool WaitsBefore(const PendingCall& call, const CallName& missing) const;
  void ExtendChain(int process, int64_t number, WaitChain chain);
  void FailConfirmed();
  void FailCycle(const WaitChain& cycle, size_t next, const Status& status);
  void FailAtLead(const Wait& wait, const Status& status);
  void HandleWaitsFrame(int process, const FrameHeader& header, const Payload& payload);
  std::list<PendingRendezvous>::iterator FindArrival(int process, int64_t number);

  Monitor monitor_;
  int64_t last_number_ = 0, last_call_ = 0;
  std::map<int64_t, std::shared_ptr<PendingCall>> waiting_;
  std::list<PendingRendezvous> pending_;      // oldest first
  std::list<AbandonedRendezvous> abandoned_;  // youngest first
  std::array<FailedCallName, 64> failed_;
  size_t next_failed_ = 0;
  // State of the search for cycles.
  std::list<Presence> present_;
  bool concurrent_ = false;  // this process has run two programs at a time on a device
  // By call site and group: the devices, known since the process first arrived there.
  std::map<std::tuple<Digest, int64_t, int64_t>, DeviceUse> uses_;
  int64_t round_ = 0;
  Clock::time_point searched_ = {};
};

// Describes the difference between two texts of calls, in the caller's words: "n is 64 in process 0
// and 68 in process 1".
std::string DescribeDifference(int process, const std::string& text, int other,
                               const std::string& other_text);

// Returns the error for two processes that arrived at one call, or at two, with different texts.
Status DifferentCallsError(int process, const std::string& text, int other,
                           const std::string& other_text);

// Sends a frame if the process is connected. If it isn't, it is lost, and the hub reports that.
void SendTo(int process, OutFrame frame) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_RENDEZVOUS_RENDEZVOUS_REGISTRY_H_
