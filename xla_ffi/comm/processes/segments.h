// Segments: the memory that this process shares with others of its host. What the ranks of calls
// over several processes work in is allocated here, so that the others' ranks can read it where it
// lies; and by words of the host's memory their streams signal each other (SharedEvent).
//
// A segment becomes known to another process, by a file that goes with a frame, before the first
// block that lies in it. The words of a pair of processes are the pair's alone: when one is lost,
// the other lets all that waits for its words go on, and neither's words serve anybody else.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_SEGMENTS_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_SEGMENTS_H_

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
#include "xla_ffi/comm/processes/connection.h"
#include "xla_ffi/comm/processes/frame.h"
#include "xla_ffi/comm/processes/socket.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {

// A process with which this one shares memory, from the first call that both have a part in.
class Neighbour {
 public:
  // Words for a call, one after the other, each of which one stream of a rank of this process
  // signals by.
  Status TakeWords(uint32_t count, uint32_t* first);
  void GiveWords(uint32_t first, uint32_t count) noexcept;
  // The next count of one of them.
  SharedEvent Next(uint32_t word) { return {words_ + word, ++counts_[word]}; }
  // What the other process is told of that; what it tells of its own.
  SharedCount CountOf(const SharedEvent& event) const {
    return {static_cast<uint32_t>(event.word() - words_), event.count()};
  }
  std::shared_ptr<Event> Theirs(const SharedCount& count) const;

  // Says where a block of this process's lies, after it has told the other of the segment. An error
  // where it lies in none.
  Status Describe(const Bytes2D& block, SharedPlace* place);
  // The other process's block there.
  Status Find(const SharedPlace& place, Bytes2D* block);

 private:
  friend class Segments;
  struct Mapped {
    Fd file;
    size_t bytes = 0;
    char* data = nullptr;  // once it is mapped
    bool forgotten = false;
  };

  std::shared_ptr<Connection> connection_;
  // This process's words, their counts, and which are taken.
  uint32_t* words_ = nullptr;
  std::vector<uint32_t> counts_;
  std::vector<char> taken_;
  std::atomic<uint32_t*> their_words_{nullptr};
  std::vector<uint32_t> released_;  // what they are set to when the other is lost, or 0
  Fd words_file_;                   // the other's, which has come and is not mapped
  std::vector<int32_t> told_;
  std::map<int32_t, Mapped> theirs_;
  std::mutex connecting_, mapping_;  // taken before the monitor's
  bool connected_ = false;
  bool refused_ = false, told_refusal_ = false;  // by the other, by this
  bool lost_ = false;
};

class Segments {
 public:
  // The process's only one.
  static Segments& The();

  // Processes share the memory of this source; called again, of the same.
  void Use(MemorySource& source) { source_ = &source; }
  // Null where they share none.
  MemorySource* source() const { return source_; }

  // --- This process's memory -------------------------------------------------------------------
  // Of a device that the source serves. It stays this process's when it is free again, for the next
  // call.
  Status Allocate(int ordinal, size_t bytes, void** data);
  void Free(void* data) noexcept;
  // Whether it is of a segment.
  bool Has(const void* data);
  // In all segments.
  size_t bytes();

  // --- Other processes -------------------------------------------------------------------------
  // Waits until the other has come to this too. Null where one of both shares no memory.
  Status Connect(int process, const std::shared_ptr<Connection>& connection,
                 Clock::time_point deadline, std::shared_ptr<Neighbour>* neighbour);

  // Whether it has come to Connect with this one, and both share memory.
  bool Shares(int process);

  // --- The hub's thread, which waits for no call of a device's ---------------------------------
  // Whether the frame can be right.
  bool Came(int process, const FrameHeader& header, Fd file);
  bool Forgotten(int process, const FrameHeader& header);
  // All that waits for the process's words goes on; so does what is yet to wait.
  void Lose(int process) noexcept;
  // Again: work of its GPUs may still be writing them.
  void ReleaseLost() noexcept;

 private:
  template <typename T>
  friend T& Forever();
  friend class Neighbour;
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

  // With the lock of the pool held.
  bool Take(int ordinal, size_t bytes, void** data);
  void DropUnused(int ordinal) noexcept;
  std::shared_ptr<Neighbour> NeighbourOf(int process);
  Status OpenWords(Neighbour& neighbour);

  std::atomic<MemorySource*> source_{nullptr};

  std::mutex pool_;  // of the segments; a device may be called meanwhile
  std::list<Segment> segments_;
  int32_t last_number_ = 0;

  Monitor monitor_;  // of the neighbours
  std::map<int, std::shared_ptr<Neighbour>> neighbours_;
};

// The host as a device of a call with ranks in other processes: its workspace lies in segments,
// unless sockets are asked for.
std::unique_ptr<Device> NewSharingHostDevice();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_SEGMENTS_H_
