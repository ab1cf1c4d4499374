// StagedLink: moves blocks of devices whose memory isn't host memory over the hub's connection. A
// block is copied to host memory; a thread of the link sends it when the copy is complete. Slower
// than the other links; used for processes that share no memory and have no NCCL channels.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_STAGED_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_STAGED_LINK_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "xla_ffi/comm/processes/links/socket_link.h"

namespace jaxmg {

class StagedLink : public SocketLink {
 public:
  StagedLink(std::shared_ptr<Connection> connection, const CallId& id, int ranks);
  ~StagedLink() override;

  LinkKind kind() const override { return LinkKind::kStaged; }
  Status Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) override;
  Status RecordTaken(Device& device, Stream stream, int rank,
                     std::shared_ptr<Event>* event) override;
  void Post(int from, int to, const InProcessGroup::Message& message) override;
  void Recall(int from) noexcept override;

 private:
  struct PendingSend {
    int from, to;
    InProcessGroup::Message message;
  };
  void Run() noexcept;

  // by rank, set at its first send; each rank's thread sets its own
  std::vector<Device*> devices_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PendingSend> pending_;
  int sending_ = -1;  // the rank whose send was taken from the queue and is incomplete; -1: none
  bool over_ = false;
  std::thread thread_;  // started at the first send
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_STAGED_LINK_H_
