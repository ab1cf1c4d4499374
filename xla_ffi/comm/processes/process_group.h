// ProcessGroup: what the ranks of one call share when they are in several processes.
//
// Ranks of one process pass blocks as InProcessGroup has it; those of two, over a Link. A message
// that comes over one lies in the channel where a rank of this process would have put it, so that
// the Communicator is the same. Agreement is the lead's, the process of rank 0: votes go there, it
// counts them as InProcessGroup does, and tells all what came of it.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_GROUP_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_GROUP_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/link.h"

namespace jaxmg {

// "2, 3": the ranks that are in a process.
std::string RanksOf(const std::vector<int>& processes, int process);

class ProcessGroup : public InProcessGroup, public FrameSink {
 public:
  // `processes`: by rank, the process that it is in; `me` is this one. `routine` is for messages.
  // `on_host`: the memory of the devices is the host's.
  ProcessGroup(std::string routine, std::vector<int> processes, int me, bool on_host);
  ~ProcessGroup() override;

  int lead() const { return processes_[0]; }
  const std::set<int>& others() const { return others_; }
  // "rank(s) 2, 3": those of a process.
  std::string Ranks(int process) const;
  // An error that has to do with a process, and says in what call.
  Status About(int process, const Status& status) const;

  // The call has begun, under this number. Frames may come from now on.
  void Begin(const CallId& id) noexcept;
  // Takes the connections to all others, once they are there; then ranks may send.
  Status Join(Clock::time_point deadline);

  bool IsHere(int rank) const override { return processes_[rank] == me_; }
  Way WayTo(int rank) const override { return IsHere(rank) ? Way::kHere : links_[rank]->way(); }
  Status Prepare(Device& device, Stream stream, int from, int to, Message* message) override;
  void Post(int from, int to, Message message) override;
  Status TakeMessage(Device& device, int from, int to, const Patience& patience,
                     Message* message) override;
  Status RecordTaken(Device& device, Stream stream, int from, int to,
                     std::shared_ptr<Event>* done) override;
  void PostTaken(int from, int to, std::shared_ptr<Event> done) override;
  Status AwaitTaken(int from, int to, const Patience& patience,
                    std::shared_ptr<Event>* done) override;
  Status Share(int rank, int64_t mine, const Patience& patience,
               std::vector<int64_t>* all) override;
  Status Agree(int rank, const Status& mine, const Patience& patience) noexcept override;
  void Recall(int rank) noexcept override;
  void Depart(const Status& why) noexcept override;
  // For all ranks of this process.
  void DepartAll(const Status& why) noexcept;

  void OnFrame(int process, const FrameHeader& header, Payload payload) noexcept override;
  void OnLost(int process, const Status& why) noexcept override;

 protected:
  void Vote(int rank, const Status& mine) noexcept override;
  void Aborted() noexcept override;
  void Decided() noexcept override;

 private:
  // What came of a message.
  struct Held {
    FrameType type;
    Payload payload;
    SharedPlace place;  // kPlaced: in the other's memory
    int64_t number;     // kReady: on its wire
    std::shared_ptr<Staging::Copy> room;
  };

  bool Leads() const { return lead() == me_; }
  bool IsRankOf(int process, int rank) const {
    return rank >= 0 && rank < size() && processes_[rank] == process;
  }
  void Tell(int process, OutFrame frame) noexcept;
  void TellAll(FrameType type, const Status& status) noexcept;

  using Connections = std::map<int, std::shared_ptr<Connection>>;
  using Links = std::map<int, std::unique_ptr<Link>>;
  Status NewLink(int process, const std::shared_ptr<Connection>& connection,
                 Clock::time_point deadline, std::unique_ptr<Link>* link);
  // To processes with which this one shares no memory.
  Status NewWires(const std::vector<int>& apart, const Connections& connections,
                  Clock::time_point deadline, Links* links);
  Status AwaitDevices(int process, Clock::time_point deadline, std::vector<int>* ordinals);
  Status TakeFromWire(Device& device, int from, int to, int64_t number, Message* message);
  // A message of this process's that went over a wire.
  void Sent(int from, int to, const Status& status, std::shared_ptr<Event> done) noexcept;

  // All of these with the lock held.
  std::deque<Held>::iterator LastTaken(int from, int to);
  Status Arrived(const FrameHeader& header, Payload payload);
  void CountLocally() noexcept;
  void Sever(const Status& why) noexcept;
  void Gone(int process, const Status& why) noexcept;

  const std::string routine_;
  const std::vector<int> processes_;
  const int me_;
  const bool on_host_;
  std::set<int> others_;
  int here_ = 0;  // ranks of this process
  CallId id_ = {-1, -1};
  Connections connections_;
  std::vector<Link*> links_;  // by rank; null for those of this process
  Links link_of_;
  std::map<int, std::vector<int>> devices_of_;  // ordinals, as other processes have told
  std::vector<Staging> arrivals_;               // by rank: room for what comes over wires
  // By channel: what has come and is not taken.
  std::vector<std::deque<Held>> held_;
  // By rank, and by channel: what this process's ranks have staged, and the copies, or none, of
  // what they have sent and is not known to have been taken. Each rank's thread has its own.
  std::vector<Staging> staging_, host_staging_;
  std::vector<std::deque<std::shared_ptr<Staging::Copy>>> copies_;
  const std::shared_ptr<Event> arrived_;  // of a message that lies here

  // The round of agreement under way. The lead counts all ranks, the others those here, which
  // matters where there is no lead any more.
  std::vector<char> voted_already_, gone_;
  int voted_here_ = 0, gone_here_ = 0;
  std::vector<char> sharing_;
  bool round_shares_ = false;
  Status severed_;      // why the lead decides nothing any more
  bool heard_ = false;  // of an abort from another process, which has told all
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_PROCESS_GROUP_H_
