// Connection: frames both ways over one socket. Any thread sends, without waiting: what the socket
// doesn't take at once is queued, and goes when the hub's thread finds that it can. That thread
// alone reads.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTION_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTION_H_

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
#include "xla_ffi/comm/processes/frame.h"
#include "xla_ffi/comm/processes/socket.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// The bytes behind a header, in memory of their own.
struct Payload {
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data;  // null where there was no memory for it
  size_t size = 0;
};

// A frame to be sent. Its bytes are those of the name, where there is one, of `body`, of the block
// and of the status's text.
struct OutFrame {
  FrameHeader header;
  bool named = false;
  CallName name = {};
  std::string body;
  Status status;
  Bytes2D block = {};              // the caller's memory
  const void* owner = nullptr;     // of the block: whoever may recall it
  std::shared_ptr<const Fd> file;  // for the other process to have too, over Unix
};

class Connection {
 public:
  // `transport` is for people. `poller` is the epoll that the socket is in.
  Connection(Fd fd, std::string transport, int poller);

  int fd() const { return fd_.get(); }
  const std::string& transport() const { return transport_; }

  // --- Any thread --------------------------------------------------------------------------------
  // Frames of one thread arrive in their order. An error is that of memory; then nothing of the
  // frame has gone. What is sent over a broken connection is lost without a word here: whoever
  // waits for an answer hears of it from the hub.
  Status Send(OutFrame frame) noexcept;
  // The same for frames without which the other side would wait for ever: where there is no memory
  // for one the connection is broken.
  void SendOrBreak(OutFrame frame) noexcept;
  // No block of a rank of this owner's is read after this.
  void Recall(const void* owner, int rank) noexcept;
  // What other threads have sent, and the other side has answered, has been read by them: the
  // answer came through another process, of which this one's memory model knows nothing.
  void Settle() noexcept { std::lock_guard<std::mutex> lock(mutex_); }
  // As if the other side had closed it.
  void Break() noexcept;

  // --- The hub's thread --------------------------------------------------------------------------
  // Writes what the socket takes.
  void Flush() noexcept;
  // Reads what is there, up to a limit, and hands over the frames. Whether the connection still
  // stands; *why says why not.
  using Deliver = std::function<bool(const FrameHeader&, Payload)>;
  bool Read(const Deliver& deliver, std::string* why);

  // The other side has proved who it is: its frames may be of any size and bring files from now on.
  // Before that no more is read than the frame that has begun, and files are refused.
  void Trust();
  bool trusted() const { return most_bytes_ > kGreetingBytes; }

  // The file that came with the frame which is being handed over; none if none did.
  Fd TakeFile();

  // When something was last read, and sent.
  Clock::time_point heard = Clock::now();
  Clock::time_point sent() const;

 private:
  struct Queued {
    OutFrame frame;
    size_t sent = 0;  // bytes of it
  };

  void WriteLocked() noexcept;
  bool WriteFrame(const OutFrame& frame, size_t* sent) noexcept;
  void BreakLocked() noexcept;
  void WatchLocked() noexcept;
  ssize_t Receive(void* to, size_t room);
  size_t Missing() const;
  bool Parse(const Deliver& deliver, std::string* why);
  bool StartPayload(std::string* why);

  const Fd fd_;
  const std::string transport_;
  const int poller_;

  mutable std::mutex mutex_;
  std::vector<Queued> queue_;  // from head_ on
  size_t head_ = 0;
  bool broken_ = false;
  bool watched_ = false;  // the poller looks for room to write
  Clock::time_point sent_ = Clock::now();

  std::vector<char> input_;  // read, and not handed over; no more than a frame of a stranger's
  size_t begin_ = 0, end_ = 0;
  static constexpr int64_t kGreetingBytes = 512;
  int64_t most_bytes_ = kGreetingBytes;
  std::deque<Fd> files_;  // that have come, and whose frames have not been handed over
  bool in_payload_ = false;
  FrameHeader header_;
  Payload payload_;
  size_t received_ = 0;  // of the payload
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTION_H_
