// Segments: the memory that this process shares with other processes of its host. Calls over
// several processes allocate their workspace here, so that ranks of other processes can read it
// directly. Streams signal each other through words in host memory (SharedEvent).
//
// A frame that carries a segment's file announces the segment to another process, before the first
// block in it. Words belong to one pair of processes. When one of the two is lost, the other
// releases everything that waits for its words, and the words of both are not used again.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_SEGMENTS_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_SEGMENTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/connections/connection.h"
#include "xla_ffi/comm/processes/connections/frame.h"
#include "xla_ffi/comm/processes/connections/socket.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {

// A process with which this one shares memory, from the first call that both take part in.
class MemoryPeer {
 public:
  // Allocates consecutive words for a call. Each word is signalled by one stream of one rank of
  // this process.
  Status AcquireWords(uint32_t count, uint32_t* first);
  void ReleaseWords(uint32_t first, uint32_t count) noexcept;
  // Returns the event of the word's next count.
  SharedEvent NextEvent(uint32_t word) { return {words_ + word, ++counts_[word]}; }
  // CountOf returns the count of an event of this process's words, PeerEvent the event of a count
  // in the peer's words.
  SharedCount CountOf(const SharedEvent& event) const {
    return {static_cast<uint32_t>(event.word() - words_), event.count()};
  }
  std::shared_ptr<Event> PeerEvent(const SharedCount& count) const;

  // Returns the location of a block of this process, and announces its segment to the peer if
  // necessary. Returns an error if the block is in no segment.
  Status Locate(const Bytes2D& block, BlockLocation* location);
  // Maps the peer's segment if necessary and sets the block's address.
  Status Map(const BlockLocation& location, Bytes2D* block);

 private:
  friend class Segments;
  struct MappedSegment {
    Fd file;
    size_t bytes = 0;
    char* data = nullptr;  // null until it is mapped
    bool forgotten = false;
  };

  std::shared_ptr<Connection> connection_;
  // This process's words, their counts, and whether they are in use.
  uint32_t* words_ = nullptr;
  std::vector<uint32_t> counts_;
  std::vector<char> taken_;
  std::atomic<uint32_t*> their_words_{nullptr};
  std::vector<uint32_t> released_;  // the value written when the peer is lost, or 0
  Fd words_file_;                   // the peer's, if received and not mapped
  std::vector<int32_t> announced_;
  std::map<int32_t, MappedSegment> peer_segments_;
  std::mutex connecting_, mapping_;  // locked before the monitor
  bool connected_ = false;
  bool refused_ = false, refusal_sent_ = false;  // by the peer; by this process
  bool lost_ = false;
};

class Segments {
 public:
  // Returns the process's single instance.
  static Segments& Instance();

  // Sets the source of shared memory. Later calls must pass the same one.
  void Use(MemorySource& source) { source_ = &source; }
  // Returns null if processes share no memory.
  MemorySource* source() const { return source_; }

  // --- This process's memory --------------------------------------------------------------------
  // Allocates memory of a device that the source serves. Freed memory stays in its segment for the
  // next call.
  Status Allocate(int ordinal, size_t bytes, void** data);
  void Free(void* data) noexcept;
  // Returns whether the address is in a segment.
  bool Contains(const void* data);
  // Returns the size of all segments.
  size_t bytes();

  // --- Other processes --------------------------------------------------------------------------
  // Waits until the peer calls this too. Sets `*peer` to null if either of them shares no memory.
  Status Connect(int process, const std::shared_ptr<Connection>& connection,
                 Clock::time_point deadline, std::shared_ptr<MemoryPeer>* peer);

  // Returns whether the two processes have connected and share memory.
  bool SharesWith(int process);

  // --- The hub's thread, which must not wait for device calls ------------------------------------
  // Returns false if the frame is invalid.
  bool OnSegment(int process, const FrameHeader& header, Fd file);
  bool OnForget(int process, const FrameHeader& header);
  // Releases everything that waits, or will wait, for the words of a lost process.
  void Lose(int process) noexcept;
  // Repeats the release, because enqueued work of the lost process's GPUs may still write its
  // words.
  void ReleaseLost() noexcept;

 private:
  template <typename T>
  friend T& Forever();
  friend class MemoryPeer;
  Segments() = default;

  struct Segment {
    int32_t number;
    int ordinal;
    char* data;
    size_t bytes;
    std::shared_ptr<const Fd> file;
    std::map<size_t, size_t> free;  // bytes, by offset
    std::map<size_t, size_t> used;
  };

  // Require the lock of the pool.
  bool TakeGap(int ordinal, size_t bytes, void** data);
  void DropUnused(int ordinal) noexcept;
  std::shared_ptr<MemoryPeer> FindOrAddPeer(int process);
  Status OpenWords(MemoryPeer& peer);

  std::atomic<MemorySource*> source_{nullptr};

  std::mutex pool_;  // guards the segments; held while devices are called
  std::list<Segment> segments_;
  int32_t last_number_ = 0;

  Monitor monitor_;  // guards the peers
  std::map<int, std::shared_ptr<MemoryPeer>> peers_;
};

// Creates the host device of a call with ranks in other processes. Its workspace is in segments,
// unless JAXMG_TRANSPORT selects sockets.
std::unique_ptr<Device> NewSharingHostDevice();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_SEGMENTS_H_
