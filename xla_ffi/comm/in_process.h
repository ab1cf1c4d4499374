// In-process ranks: threads of one process that have met in a rendezvous (rendezvous.h) and
// exchange device memory directly. A message is the sender's block and the event after which the
// block is ready; the receiver copies it and replies with the event after which the copy is
// complete.
#ifndef JAXMG_XLA_FFI_COMM_IN_PROCESS_H_
#define JAXMG_XLA_FFI_COMM_IN_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "xla_ffi/comm/communicator.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/staging.h"

namespace jaxmg {

// How blocks reach a rank. kInProcess: the rank belongs to this process. kMemory: it belongs to
// another process, which reads the block from memory that both map. kNccl: over an NCCL channel.
// kSocket: over a socket, from the block itself. kStaged: over a socket, from a copy in host
// memory.
enum class LinkKind { kInProcess, kMemory, kNccl, kSocket, kStaged };
inline constexpr int kNumLinkKinds = 5;

// The state that the ranks of one call share. ProcessGroup (processes/process_group.h) extends it
// to ranks of several processes.
class InProcessGroup {
 public:
  explicit InProcessGroup(int size);
  virtual ~InProcessGroup() = default;

  int size() const { return size_; }

  // Each rank sets its own number before the rendezvous completes, and may read all ranks' numbers
  // afterwards.
  void SetRankValue(int rank, int64_t mine) noexcept { rank_values_[rank] = mine; }
  const std::vector<int64_t>& rank_values() const { return rank_values_; }

  struct Message {
    Bytes2D block;
    std::shared_ptr<Event> ready = nullptr;
    std::shared_ptr<Staging::Copy> copy = nullptr;  // the staged copy, if `block` refers to one
  };
  // Returns whether the rank belongs to this process.
  virtual bool IsHere(int /*rank*/) const { return true; }
  // Returns how a block reaches the rank.
  virtual LinkKind LinkKindTo(int /*rank*/) const { return LinkKind::kInProcess; }
  // Completes a message whose block is set: records the event after the stream's work so far, and
  // stages a copy if the link needs one. A message prepared for one rank of this process is valid
  // for all of its ranks; a copy staged for one kind of link is valid for all ranks of that kind.
  virtual Status Prepare(Device& device, Stream stream, int from, int to, Message* message);
  virtual void Post(int from, int to, Message message);
  virtual Status TakeMessage(Device& device, int from, int to, const WaitPolicy& policy,
                             Message* message);
  // Records the event that is posted to `from` when its message has been taken, after the stream's
  // work so far.
  virtual Status RecordTaken(Device& device, Stream stream, int from, int to,
                             std::shared_ptr<Event>* done);
  virtual void PostTaken(int from, int to, std::shared_ptr<Event> done);
  virtual Status AwaitTaken(int from, int to, const WaitPolicy& policy,
                            std::shared_ptr<Event>* done);

  // Guarantees that no memory of this rank is read afterwards. Called when a rank leaves a call.
  virtual void Recall(int /*rank*/) noexcept {}

  // As in Communicator.
  virtual Status Share(int rank, int64_t mine, const WaitPolicy& policy, std::vector<int64_t>* all);
  virtual Status Agree(int rank, const Status& mine, const WaitPolicy& policy) noexcept;
  void Abort(const Status& status) noexcept;
  Status Failure() noexcept;
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  // Called by a rank that leaves the call early and will not vote again: all later agreements
  // return this failure.
  virtual void Depart(const Status& why) noexcept;

 protected:
  // The queues of one direction between two ranks.
  struct Queues {
    std::deque<Message> messages;
    // one event for each message that the receiver has copied
    std::deque<std::shared_ptr<Event>> taken;
  };

  Queues& queues(int from, int to) { return queues_[from * size_ + to]; }
  // Waits until ready() returns true, then calls take(). If the limit passes first, aborts the call
  // with the error that late() returns.
  template <typename Ready, typename Take, typename Late>
  Status Await(const WaitPolicy& policy, Ready ready, Take take, Late late);
  void AbortLocked(const Status& status) noexcept;
  // Counts the vote of a rank. This function and the following ones require the lock.
  virtual void Vote(int rank, const Status& mine) noexcept;
  void DepartLocked(const Status& why) noexcept;
  // Ends the agreement if all ranks that have not departed have voted.
  void CountVotes() noexcept;
  // Notify other processes.
  virtual void OnAbort() noexcept {}
  virtual void OnOutcome() noexcept {}

  const int size_;
  Monitor monitor_;
  std::vector<Queues> queues_;
  Status aborted_;
  std::atomic<bool> failed_{false};  // whether aborted_ is set
  std::vector<Status> votes_;
  std::vector<int64_t> shared_,
      rank_values_;  // the arguments of Share and SetRankValue, by rank
  int voted_ = 0, departed_ = 0;
  Status departure_;  // why the first rank departed
  int64_t agreements_ = 0;
  Status outcome_;
};

// Returns this rank's Communicator. `policy` bounds every wait for another rank.
std::unique_ptr<Communicator> NewInProcessCommunicator(std::shared_ptr<InProcessGroup> group,
                                                       int rank, Device* device,
                                                       const WaitPolicy& policy);

// Makes this rank's Communicator, calls `program` with it and returns its status. If the program
// throws, reports the exception to all ranks. Before its first agreement a program may return at
// any time; after that, only together with all other ranks.
template <typename Program>  // Status(Communicator&)
Status RunInGroup(const std::shared_ptr<InProcessGroup>& group, int rank, Device* device,
                  const WaitPolicy& policy, const Program& program) noexcept {
  try {
    return program(*NewInProcessCommunicator(group, rank, device, policy));
  } catch (...) {
    const Status status = CurrentException();
    group->Depart(status);
    group->Recall(rank);
    return status;
  }
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_IN_PROCESS_H_
