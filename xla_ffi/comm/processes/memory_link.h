// MemoryLink: blocks between processes of a host, through memory that they share. The receiver
// copies a block from where it lies, as a rank of the same process would; frames say where that is
// and after which count of the sender's stream it is ready, and the same for what was taken.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_MEMORY_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_MEMORY_LINK_H_

#include <memory>
#include <vector>

#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/link.h"
#include "xla_ffi/comm/processes/segments.h"

namespace jaxmg {

class MemoryLink : public Link {
 public:
  // In a call of that many ranks, of which `here` are this process's.
  static Status New(std::shared_ptr<Connection> connection, std::shared_ptr<Neighbour> neighbour,
                    const CallId& id, int ranks, const std::vector<int>& here,
                    std::unique_ptr<Link>* link);
  ~MemoryLink() override { neighbour_->GiveWords(first_, words_); }

  Way way() const override { return Way::kShared; }
  Status Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) override;
  void Post(int from, int to, const InProcessGroup::Message& message) override;
  void PostTaken(int from, int to, const std::shared_ptr<Event>& done) noexcept override;
  // Ranks of a failed call have done with each other's memory before they leave it.
  void Recall(int) noexcept override {}
  Status Find(const SharedPlace& place, InProcessGroup::Message* message) override;
  std::shared_ptr<Event> EventOf(const FrameHeader& header) const override;

 private:
  MemoryLink(std::shared_ptr<Connection> connection, std::shared_ptr<Neighbour> neighbour,
             const CallId& id, int ranks);

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Neighbour> neighbour_;
  const CallId id_;
  uint32_t first_ = 0, words_ = 0;
  std::vector<uint32_t> word_of_;  // by rank: of its first stream
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_MEMORY_LINK_H_
