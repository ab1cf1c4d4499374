// In-process ranks: threads of one process that have met (meeting.h) and exchange device memory
// directly. A message is the sender's block and the event behind which it is ready; the receiver
// copies it and answers with the event behind which the copy is done.
#ifndef JAXMG_XLA_FFI_COMM_IN_PROCESS_H_
#define JAXMG_XLA_FFI_COMM_IN_PROCESS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "xla_ffi/comm/communicator.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/staging.h"

namespace jaxmg {

// How blocks reach a rank: one of this process; one of another, which reads them where they lie in
// memory that both share; over a wire; over a socket, from where they lie or from a copy in the
// host's memory.
enum class Way { kHere, kShared, kWire, kSocket, kStaged };
inline constexpr int kNumWays = 5;

// What the ranks of one call share. ProcessGroup (process_group.h) extends it to ranks of other
// processes.
class InProcessGroup {
 public:
  explicit InProcessGroup(int size);
  virtual ~InProcessGroup() = default;

  int size() const { return size_; }

  // A number of each rank's, brought before the ranks have met and read after it.
  void Bring(int rank, int64_t mine) noexcept { brought_[rank] = mine; }
  const std::vector<int64_t>& brought() const { return brought_; }

  struct Message {
    Bytes2D block;
    std::shared_ptr<Event> ready = nullptr;
    std::shared_ptr<Staging::Copy> copy = nullptr;  // where the block is one
  };
  // Whether the rank is one of this process.
  virtual bool IsHere(int /*rank*/) const { return true; }
  // How a block reaches it.
  virtual Way WayTo(int /*rank*/) const { return Way::kHere; }
  // Makes a message of its block, behind the stream's work so far. One that was made so for a rank
  // of this process is right for all of them, and a block that was copied for a way stays so.
  virtual Status Prepare(Device& device, Stream stream, int from, int to, Message* message);
  virtual void Post(int from, int to, Message message);
  virtual Status TakeMessage(Device& device, int from, int to, const Patience& patience,
                             Message* message);
  // What to post when a message of `from` was taken, behind the stream's work so far.
  virtual Status RecordTaken(Device& device, Stream stream, int from, int to,
                             std::shared_ptr<Event>* done);
  virtual void PostTaken(int from, int to, std::shared_ptr<Event> done);
  virtual Status AwaitTaken(int from, int to, const Patience& patience,
                            std::shared_ptr<Event>* done);

  // Nothing of a rank that leaves is read after this.
  virtual void Recall(int /*rank*/) noexcept {}

  // As Communicator's.
  virtual Status Share(int rank, int64_t mine, const Patience& patience, std::vector<int64_t>* all);
  virtual Status Agree(int rank, const Status& mine, const Patience& patience) noexcept;
  void Abort(const Status& status) noexcept;
  Status Failure() noexcept;

  // For a rank that leaves in the midst of it, without a vote in the agreements to come: they are
  // this failure from now on.
  virtual void Depart(const Status& why) noexcept;

 protected:
  // One direction between two ranks.
  struct Channel {
    std::deque<Message> messages;
    std::deque<std::shared_ptr<Event>> taken;  // one event a message that the receiver copied
  };

  Channel& channel(int from, int to) { return channels_[from * size_ + to]; }
  template <typename Ready, typename Take, typename Late>
  Status Await(const Patience& patience, Ready ready, Take take, Late late);
  void AbortLocked(const Status& status) noexcept;
  // A rank's vote has come, or one that will not vote has gone; with the lock held.
  virtual void Vote(int rank, const Status& mine) noexcept;
  void DepartLocked(const Status& why) noexcept;
  void CountVotes() noexcept;
  // What other processes are to hear of; with the lock held.
  virtual void Aborted() noexcept {}
  virtual void Decided() noexcept {}

  const int size_;
  Monitor monitor_;
  std::vector<Channel> channels_;
  Status aborted_;
  std::vector<Status> votes_;
  std::vector<int64_t> shared_, brought_;  // what each rank brought to Share, and to the meeting
  int voted_ = 0, departed_ = 0;
  Status departure_;  // why the first of them left
  int64_t agreements_ = 0;
  Status outcome_;
};

// This rank's end of the group. `patience` bounds every wait for another rank.
std::unique_ptr<Communicator> NewInProcessCommunicator(std::shared_ptr<InProcessGroup> group,
                                                       int rank, Device* device,
                                                       const Patience& patience);

// Makes this rank's Communicator, calls `program` with it, and returns what that returns, or what
// it throws, of which all ranks then hear. Before it first agrees with the others a program may
// leave at any time, after that only with all of them.
template <typename Program>  // Status(Communicator&)
Status RunInGroup(const std::shared_ptr<InProcessGroup>& group, int rank, Device* device,
                  const Patience& patience, const Program& program) noexcept {
  try {
    return program(*NewInProcessCommunicator(group, rank, device, patience));
  } catch (...) {
    const Status status = CurrentException();
    group->Depart(status);
    group->Recall(rank);
    return status;
  }
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_IN_PROCESS_H_
