// Connection: sends and receives frames over one socket. Any thread may send, without waiting: data
// that the socket doesn't take at once is queued, and the hub's thread writes it. Only the hub's
// thread reads.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_CONNECTION_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_CONNECTION_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/connections/frame.h"
#include "xla_ffi/comm/processes/connections/socket.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// The bytes that follow a frame's header.
struct Payload {
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data;  // null if memory was exhausted
  size_t size = 0;
};

// A frame to be sent. Its bytes are `name` (if has_name), `body`, `block` and the status's text, in
// this order.
struct OutFrame {
  FrameHeader header;
  bool has_name = false;
  CallName name = {};
  std::string body;
  Status status;
  Bytes2D block = {};              // the caller's memory
  const void* owner = nullptr;     // owner of the block, which may recall it
  std::shared_ptr<const Fd> file;  // a file descriptor to pass to the other process; Unix sockets
                                   // only
};

class Connection {
 public:
  // `transport` is a description for users. `poller` is the epoll instance that watches the socket.
  Connection(Fd fd, std::string transport, int poller);

  int fd() const { return fd_.get(); }
  const std::string& transport() const { return transport_; }

  // --- Any thread -------------------------------------------------------------------------------
  // Sends a frame. Frames of one thread arrive in order. An error means that memory is exhausted
  // and no part of the frame was sent. Frames sent over a broken connection are dropped silently:
  // the hub reports the loss to all waiting calls.
  Status Send(OutFrame frame) noexcept;
  // Sends a frame for which the other side would otherwise wait forever. If there is no memory for
  // the frame, breaks the connection.
  void SendOrBreak(OutFrame frame) noexcept;
  // Guarantees that no block of this owner and rank is read afterwards.
  void Recall(const void* owner, int rank) noexcept;
  // Synchronizes with the threads that read blocks for sending. Must be called before a block's
  // memory is written again: the acknowledgement comes through another process, which establishes
  // no ordering in this process's memory model.
  void Settle() noexcept { std::lock_guard<std::mutex> lock(mutex_); }
  // Shuts the connection down, as if the other side had closed it.
  void Break() noexcept;

  // --- The hub's thread -------------------------------------------------------------------------
  // Writes queued data until the socket takes no more.
  void Flush() noexcept;
  // Reads available data up to a limit and delivers the frames. If the connection has ended,
  // returns false and sets *why to the reason.
  using Deliver = std::function<bool(const FrameHeader&, Payload)>;
  bool Read(const Deliver& deliver, std::string* why);

  // Marks the peer as authenticated: from now on its frames may have any size and carry files.
  // Before that, nothing beyond the current frame is read, and files are refused.
  void Trust();
  bool trusted() const { return most_bytes_ > kHandshakeBytes; }

  // Returns the file that came with the frame being delivered, or an empty Fd.
  Fd TakeFile();

  // When data was last received and last sent.
  Clock::time_point last_received = Clock::now();
  Clock::time_point last_sent() const;

 private:
  struct QueuedFrame {
    OutFrame frame;
    size_t sent = 0;  // bytes written
  };

  // Functions named Locked, and WriteFrame, require mutex_.
  void WriteLocked() noexcept;
  bool WriteFrame(const OutFrame& frame, size_t* sent) noexcept;
  void BreakLocked() noexcept;
  void WatchLocked() noexcept;
  // The hub's thread.
  ssize_t Receive(void* to, size_t room);
  size_t CountMissing() const;
  bool Parse(const Deliver& deliver, std::string* why);
  bool StartPayload(std::string* why);

  const Fd fd_;
  const std::string transport_;
  const int poller_;

  mutable std::mutex mutex_;
  std::vector<QueuedFrame> queue_;  // valid from head_ on
  size_t head_ = 0;
  bool broken_ = false;
  bool watched_ = false;  // whether the poller watches for writability
  Clock::time_point last_sent_ = Clock::now();

  // received data that was not delivered; for a stranger at most one frame
  std::vector<char> input_;
  size_t begin_ = 0, end_ = 0;
  static constexpr int64_t kHandshakeBytes = 512;
  int64_t most_bytes_ = kHandshakeBytes;
  std::deque<Fd> files_;  // files received whose frames were not delivered
  bool in_payload_ = false;
  FrameHeader header_;
  Payload payload_;
  size_t received_ = 0;  // of the payload
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_CONNECTION_H_
