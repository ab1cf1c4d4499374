// Meetings: how processes meet over a call, each at its end and at the lead. Ranks of a process
// have met before (process_meeting.h).
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_MEETINGS_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_MEETINGS_H_

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
#include "xla_ffi/comm/processes/process_meeting.h"
#include "xla_ffi/comm/processes/shared_site.h"

namespace jaxmg {

inline CallName NameOf(const SharedSite& site, int64_t run, int64_t group) {
  return {site.digest, site.index, run, group};
}

// A call for which this process has come, at its end of the connection.
struct Waiting {
  CallName name;
  std::shared_ptr<ProcessGroup> group;
  bool met = false;
  Status failure;
  bool over() const { return met || !failure.ok(); }
};

// At the lead: which processes have come.
struct Arrival {
  int64_t number;  // under which it waits
  std::string text;
  // Calls of which the lead has asked whether the process has made their programs; those whose
  // programs it had not made when it had come to this one.
  std::vector<CallName> asked = {}, not_made = {};
};
struct Gathering {
  CallName name;
  std::vector<int> processes;  // by rank
  std::map<int, Arrival> came;
  Clock::time_point since = Clock::now();  // the last has come

  bool IsBeside(const Gathering& other) const {
    return this != &other && name.group == other.name.group && processes == other.processes;
  }
};

// A meeting whose limit was over, so that who waits in another still learns of it.
struct GivenUp {
  Clock::time_point when;
  Gathering gathering;
};

struct FailedName {
  CallName name = {};
  Status status;
};

// All that this process knows of meetings over processes.
class Meetings : public FrameSink {
 public:
  Status Meet(const SharedCall& call, const std::string& text,
              const std::shared_ptr<ProcessGroup>& group, Seconds limit);
  // Whether it is news.
  bool Fail(const CallName& name, const Status& status) noexcept;
  Status FailureOf(const CallName& name) noexcept;
  size_t size();

  void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept override;
  void OnLost(int process, const Status& why) noexcept override;
  void OnTick() noexcept override;

 private:
  // All of these with the lock held.
  void OnLostLocked(int process, const Status& why) noexcept;
  void Come(int process, const CallName& name, std::vector<int> processes, Arrival arrival);
  void Complete(Gathering& gathering);
  void FailGathering(const Gathering& gathering, const Status& status) noexcept;
  void Remember(const CallName& name, const Status& status) noexcept;
  void Answer(int process, int64_t number, FrameType type, int64_t value, const Status& status,
              int lead) noexcept;
  Status Late(const Gathering& gathering, Seconds limit);
  std::string WaitsIn(int process, const Gathering& besides);
  void Withdraw(int process, int64_t number, Seconds limit);
  void Begun(int process, const FrameHeader& header) noexcept;
  void MeetFrame(int process, const FrameHeader& header, const Payload& payload);

  // meetings_compare.cc
  bool CompareOperands(const Gathering& gathering);
  void ComparePrograms();
  void AskMade(int process, int64_t number, const CallName& name);
  void NotMade(int process, int64_t number, const CallName& name);
  void FailBoth(const Gathering& one, const Gathering& other);

  Monitor monitor_;
  int64_t last_number_ = 0, last_call_ = 0;
  std::map<int64_t, std::shared_ptr<Waiting>> waiting_;
  std::list<Gathering> gatherings_;  // oldest first
  std::list<GivenUp> given_up_;      // youngest first
  std::array<FailedName, 64> failed_;
  size_t next_failed_ = 0;
  Clock::time_point compared_ = {};  // programs
};

// Of two processes that have come to one call, or to two, with texts that differ.
Status Different(int process, const std::string& text, int other, const std::string& other_text);

// Who has no connection any more is lost, and all hear of that.
void Tell(int process, OutFrame frame) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_MEETINGS_H_
