// ProcessGroup: the state that the ranks of one call share when they are in several processes.
//
// Ranks of one process exchange blocks through InProcessGroup, ranks of different processes over a
// Link. A received message goes into the same queue as a message of a rank of this process, so the
// Communicator is the same. The lead, the process of rank 0, runs the agreements: it receives the
// votes, counts them as InProcessGroup does, and sends the outcome to all.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_GROUP_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_GROUP_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/link.h"

namespace jaxmg {

// Returns the ranks of a process, as in "2, 3".
std::string RanksOf(const std::vector<int>& processes, int process);

class ProcessGroup : public InProcessGroup, public FrameSink {
 public:
  // `processes`: by rank, the index of its process. `me`: this process. `routine`: for messages.
  // `on_host`: whether device memory is host memory.
  ProcessGroup(std::string routine, std::vector<int> processes, int me, bool on_host);
  ~ProcessGroup() override;

  int lead() const { return processes_[0]; }
  const std::set<int>& others() const { return others_; }
  // Returns the ranks of a process, as in "rank(s) 2, 3".
  std::string DescribeRanks(int process) const;
  // Adds the routine and the ranks of the process to an error.
  Status AddContext(int process, const Status& status) const;

  // Begins the call under this number. Frames may arrive from now on.
  void Begin(const CallId& id) noexcept;
  // Sets up the links to all other processes, which must be connected. Ranks may send afterwards.
  Status Join(Clock::time_point deadline);

  bool IsHere(int rank) const override { return processes_[rank] == me_; }
  LinkKind LinkKindTo(int rank) const override {
    return IsHere(rank) ? LinkKind::kInProcess : links_[rank]->kind();
  }
  Status Prepare(Device& device, Stream stream, int from, int to, Message* message) override;
  void Post(int from, int to, Message message) override;
  Status TakeMessage(Device& device, int from, int to, const WaitPolicy& policy,
                     Message* message) override;
  Status RecordTaken(Device& device, Stream stream, int from, int to,
                     std::shared_ptr<Event>* done) override;
  void PostTaken(int from, int to, std::shared_ptr<Event> done) override;
  Status AwaitTaken(int from, int to, const WaitPolicy& policy,
                    std::shared_ptr<Event>* done) override;
  Status Share(int rank, int64_t mine, const WaitPolicy& policy,
               std::vector<int64_t>* all) override;
  Status Agree(int rank, const Status& mine, const WaitPolicy& policy) noexcept override;
  void Recall(int rank) noexcept override;
  void Depart(const Status& why) noexcept override;
  // Departs for all ranks of this process.
  void DepartAll(const Status& why) noexcept;

  void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept override;
  void OnLost(int process, const Status& why) noexcept override;

 protected:
  void Vote(int rank, const Status& mine) noexcept override;
  void OnAbort() noexcept override;
  void OnOutcome() noexcept override;

 private:
  // A received message.
  struct ReceivedBlock {
    FrameType type;
    Payload payload;
    BlockLocation location;  // kLocation: in the other process's memory
    int64_t number;          // kReady: in its NCCL channel
    std::shared_ptr<Staging::Copy> room;
  };

  bool IsLead() const { return lead() == me_; }
  bool IsRankOf(int process, int rank) const {
    return rank >= 0 && rank < size() && processes_[rank] == process;
  }
  void SendFrame(int process, OutFrame frame) noexcept;
  void SendToOthers(FrameType type, const Status& status) noexcept;

  using Connections = std::map<int, std::shared_ptr<Connection>>;
  using Links = std::map<int, std::unique_ptr<Link>>;
  Status NewLink(int process, const std::shared_ptr<Connection>& connection,
                 Clock::time_point deadline, std::unique_ptr<Link>* link);
  // Makes the links to the processes `apart`, which share no memory with this one.
  Status NewNcclLinks(const std::vector<int>& apart, const Connections& connections,
                      Clock::time_point deadline, Links* links);
  Status AwaitDevices(int process, Clock::time_point deadline, std::vector<int>* ordinals);
  Status ReceiveOverNccl(Device& device, int from, int to, int64_t number, Message* message);
  // Called when a message that was sent over an NCCL channel was taken.
  void OnSent(int from, int to, const Status& status, std::shared_ptr<Event> done) noexcept;

  // All of these require the lock.
  std::deque<ReceivedBlock>::iterator FindLastTaken(int from, int to);
  Status AddReceived(const FrameHeader& header, Payload payload);
  void CountLocally() noexcept;
  void Sever(const Status& why) noexcept;
  void OnProcessGone(int process, const Status& why) noexcept;

  const std::string routine_;
  const std::vector<int> processes_;
  const int me_;
  const bool on_host_;
  std::set<int> others_;
  int here_ = 0;  // number of ranks in this process
  CallId id_ = {-1, -1};
  Connections connections_;
  std::vector<Link*> links_;  // by rank; null for ranks of this process
  Links link_of_;
  std::map<int, std::vector<int>> devices_of_;  // device ordinals of other processes
  std::vector<Staging> arrivals_;               // by rank: memory for blocks received over NCCL
  // By direction: messages that were received and not released.
  std::vector<std::deque<ReceivedBlock>> received_;
  // The staging memory of this process's ranks, by rank; and, by direction, the staged copies (or
  // null) of sent messages that are not known to be taken. Each rank's thread uses only its own.
  std::vector<Staging> staging_, host_staging_;
  std::vector<std::deque<std::shared_ptr<Staging::Copy>>> copies_;
  // the event of a message that is already in this process's memory
  const std::shared_ptr<Event> arrived_;

  // The current agreement. The lead counts the votes of all ranks. Every process counts those of
  // its own ranks, in case the lead is lost.
  std::vector<char> voted_already_, departed_ranks_;
  int voted_here_ = 0, gone_here_ = 0;
  std::vector<char> sharing_;
  bool round_shares_ = false;
  Status severed_;               // why the lead can't decide agreements any more, or Ok
  bool abort_received_ = false;  // an abort came from another process, which has told all others
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_GROUP_H_
