// MemoryLink: moves blocks between processes of one host through memory that both map. The receiver
// copies a block from the sender's memory, as a rank of the same process would.
//
// Each stream counts its events in a word that both processes map (segments.h). A kLocation frame
// carries the block's location and the sender's word and count at which the block is ready. The
// acknowledgement, a kTaken frame, carries the receiver's word and count at which the copy is done.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_MEMORY_LINK_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_MEMORY_LINK_H_

#include <memory>
#include <vector>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/link.h"
#include "xla_ffi/comm/processes/links/segments.h"

namespace jaxmg {

class MemoryLink : public Link {
 public:
  // Creates the link for a call of `ranks` ranks; `here` lists those of this process.
  static Status New(std::shared_ptr<Connection> connection, std::shared_ptr<MemoryPeer> peer,
                    const CallId& id, int ranks, const std::vector<int>& here,
                    std::unique_ptr<Link>* link);
  ~MemoryLink() override { peer_->ReleaseWords(first_, words_); }

  LinkKind kind() const override { return LinkKind::kMemory; }
  Status Record(Device& device, Stream stream, int rank, std::shared_ptr<Event>* event) override;
  void Post(int from, int to, const InProcessGroup::Message& message) override;
  void PostTaken(int from, int to, const std::shared_ptr<Event>& done) noexcept override;
  // Does nothing: ranks of a failed call stop reading each other's memory before they leave it.
  void Recall(int) noexcept override {}
  Status Resolve(const BlockLocation& location, InProcessGroup::Message* message) override;
  std::shared_ptr<Event> EventOf(const FrameHeader& header) const override;

 private:
  MemoryLink(std::shared_ptr<Connection> connection, std::shared_ptr<MemoryPeer> peer,
             const CallId& id, int ranks);

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<MemoryPeer> peer_;
  const CallId id_;
  uint32_t first_ = 0, words_ = 0;
  std::vector<uint32_t> word_of_;  // by rank: the word of its first stream
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_MEMORY_LINK_H_
