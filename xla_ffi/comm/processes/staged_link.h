// StagedLink: blocks of devices whose memory is not the host's, over the hub's connection. A block
// is copied to memory of the host; when it is there, a thread of the link's sends it. So this is
// for processes that share no memory, and slower than what it stands in for.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_STAGED_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_STAGED_LINK_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "xla_ffi/comm/processes/socket_link.h"

namespace jaxmg {

class StagedLink : public SocketLink {
 public:
  StagedLink(std::shared_ptr<Connection> connection, const CallId& id, int ranks);
  ~StagedLink() override;

  Way way() const override { return Way::kStaged; }
  Status Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) override;
  Status RecordTaken(Device& device, Stream stream, int rank,
                     std::shared_ptr<Event>* event) override;
  void Post(int from, int to, const InProcessGroup::Message& message) override;
  void Recall(int from) noexcept override;

 private:
  struct Parcel {
    int from, to;
    InProcessGroup::Message message;
  };
  void Run() noexcept;

  std::vector<Device*> devices_;  // by rank, once it has sent; each rank's thread has its own
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Parcel> parcels_;
  int sending_ = -1;  // the rank whose parcel is not in the queue any more, and not sent
  bool over_ = false;
  std::thread thread_;  // from the first parcel on
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_STAGED_LINK_H_
