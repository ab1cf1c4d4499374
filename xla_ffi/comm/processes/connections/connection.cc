#include "xla_ffi/comm/processes/connections/connection.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace jaxmg {
namespace {

constexpr size_t kInputBytes = size_t{64} << 10;
// The number of bytes to read from one connection before other connections are served.
constexpr size_t kTurnBytes = size_t{8} << 20;
// Limit for received files whose frames have not been processed. One turn receives fewer files.
constexpr size_t kMostFiles = 256;

size_t BlockBytes(const Bytes2D& block) { return block.height * block.columns; }

// The memory ranges of a frame from an offset on, in the form that sendmsg takes.
class Pieces {
 public:
  static constexpr int kMost = 64;
  Pieces(const OutFrame& frame, size_t offset) : skip_(offset) {
    Add(&frame.header, sizeof(frame.header));
    if (frame.has_name) Add(&frame.name, sizeof(frame.name));
    Add(frame.body.data(), frame.body.size());
    const Bytes2D& block = frame.block;
    if (block.pitch == block.height) {
      Add(block.data, BlockBytes(block));
    } else {
      const size_t first = block.height == 0 ? 0 : std::min(skip_ / block.height, block.columns);
      skip_ -= first * block.height;
      for (size_t j = first; j < block.columns && count_ < kMost; ++j) {
        Add(static_cast<const char*>(block.data) + j * block.pitch, block.height);
      }
    }
    if (count_ < kMost) Add(frame.status.text(), std::strlen(frame.status.text()));
  }
  iovec* data() { return pieces_; }
  int count() const { return count_; }

 private:
  void Add(const void* data, size_t size) {
    if (skip_ >= size) {
      skip_ -= size;
      return;
    }
    pieces_[count_++] = {static_cast<char*>(const_cast<void*>(data)) + skip_, size - skip_};
    skip_ = 0;
  }
  size_t skip_;
  int count_ = 0;
  iovec pieces_[kMost + 1];
};

}  // namespace

Connection::Connection(Fd fd, std::string transport, int poller)
    : fd_(std::move(fd)), transport_(std::move(transport)), poller_(poller) {}

void Connection::Trust() {
  input_.resize(kInputBytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.reserve(64);  // so that reporting an out-of-memory error needs no allocation
  }
  most_bytes_ = int64_t{1} << 46;
}

Clock::time_point Connection::last_sent() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_sent_;
}

Status Connection::Send(OutFrame frame) noexcept {
  frame.header.code = static_cast<int32_t>(frame.status.code());
  frame.header.bytes =
      static_cast<int64_t>((frame.has_name ? sizeof(frame.name) : 0) + frame.body.size() +
                           BlockBytes(frame.block) + std::strlen(frame.status.text()));
  std::lock_guard<std::mutex> lock(mutex_);
  if (broken_) return Status::Ok();
  const bool first = head_ == queue_.size();
  const Status queued = Guarded([&] {
    if (queue_.size() == queue_.capacity() && head_ > 0) {
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    queue_.push_back({std::move(frame), 0});
    return Status::Ok();
  });
  if (queued.ok() && first) WriteLocked();
  return queued;
}

void Connection::SendOrBreak(OutFrame frame) noexcept {
  if (!Send(std::move(frame)).ok()) Break();
}

void Connection::Flush() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  WriteLocked();
}

// Reads the callers' memory only under the lock, so that Recall can guarantee that it isn't read
// afterwards.
void Connection::WriteLocked() noexcept {
  while (!broken_ && head_ < queue_.size()) {
    QueuedFrame& front = queue_[head_];
    if (!WriteFrame(front.frame, &front.sent)) break;
    front = {};
    ++head_;
  }
  if (broken_ || head_ == queue_.size()) {
    queue_.clear();
    head_ = 0;
  }
  WatchLocked();
}

// Returns whether the whole frame has been written.
bool Connection::WriteFrame(const OutFrame& frame, size_t* sent) noexcept {
  const size_t total = sizeof(frame.header) + static_cast<size_t>(frame.header.bytes);
  while (*sent < total) {
    Pieces pieces(frame, *sent);
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.count();
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (frame.file != nullptr && *sent == 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* with = CMSG_FIRSTHDR(&message);
      with->cmsg_level = SOL_SOCKET;
      with->cmsg_type = SCM_RIGHTS;
      with->cmsg_len = CMSG_LEN(sizeof(int));
      const int file = frame.file->get();
      std::memcpy(CMSG_DATA(with), &file, sizeof(file));
    }
    const ssize_t count = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) BreakLocked();
      return false;
    }
    *sent += static_cast<size_t>(count);
    last_sent_ = Clock::now();
  }
  return true;
}

void Connection::WatchLocked() noexcept {
  const bool wanted = !broken_ && head_ < queue_.size();
  if (wanted == watched_) return;
  epoll_event event = {};
  event.events = EPOLLIN | (wanted ? EPOLLOUT : 0u);
  event.data.fd = fd_.get();
  if (epoll_ctl(poller_, EPOLL_CTL_MOD, fd_.get(), &event) == 0) watched_ = wanted;
}

void Connection::Break() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  BreakLocked();
  queue_.clear();
  head_ = 0;
}

// Data that has arrived can still be read; the hub's thread then detects the end of the stream.
void Connection::BreakLocked() noexcept {
  broken_ = true;
  shutdown(fd_.get(), SHUT_RDWR);
}

void Connection::Recall(const void* owner, int rank) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t kept = head_;
  for (size_t i = head_; i < queue_.size(); ++i) {
    OutFrame& frame = queue_[i].frame;
    if (frame.owner == owner && frame.header.from == rank) {
      if (queue_[i].sent == 0) continue;
      // The header has been sent, so the rest must follow. It is sent from a copy.
      const Status copied = Guarded([&] {
        std::string body(BlockBytes(frame.block), '\0');
        for (size_t j = 0; j < frame.block.columns; ++j) {
          std::memcpy(body.data() + j * frame.block.height,
                      static_cast<const char*>(frame.block.data) + j * frame.block.pitch,
                      frame.block.height);
        }
        frame.body += body;
        frame.block = {};
        return Status::Ok();
      });
      if (!copied.ok()) BreakLocked();
    }
    if (kept != i) queue_[kept] = std::move(queue_[i]);
    ++kept;
  }
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(kept), queue_.end());
  if (broken_) {
    queue_.clear();
    head_ = 0;
  }
  WatchLocked();
}

// Returns the number of bytes missing from the header or payload that is being read.
size_t Connection::CountMissing() const {
  return in_payload_ ? payload_.size - received_ : sizeof(header_) - (end_ - begin_);
}

bool Connection::Read(const Deliver& deliver, std::string* why) {
  if (input_.empty()) input_.resize(trusted() ? kInputBytes : kHandshakeBytes);
  for (size_t turn = 0; turn < kTurnBytes;) {
    // The rest of a large payload is read directly into the payload's memory.
    const size_t missing = in_payload_ ? payload_.size - received_ : 0;
    const bool straight = begin_ == end_ && missing >= kInputBytes && payload_.data != nullptr;
    if (!straight && begin_ > 0) {
      std::memmove(input_.data(), input_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    char* to = straight ? payload_.data.get() + received_ : input_.data() + end_;
    size_t room = straight ? missing : input_.size() - end_;
    // A stranger's data is not read beyond the current frame: if that frame authenticates the peer,
    // the next one may carry files, which only a trusted connection receives.
    if (!trusted()) room = std::min(room, CountMissing());
    const ssize_t count = Receive(to, room);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (count <= 0) {
      *why = count == 0 ? "its connection was closed" : std::strerror(errno);
      return false;
    }
    last_received = Clock::now();
    turn += static_cast<size_t>(count);
    (straight ? received_ : end_) += static_cast<size_t>(count);
    if (!Parse(deliver, why)) return false;
    if (files_.size() > kMostFiles) {
      *why = "it sent files without frames for them";
      return false;
    }
    if (static_cast<size_t>(count) < room) return true;
  }
  return true;
}

// Calls recv or, on a trusted connection, recvmsg, which also receives files.
ssize_t Connection::Receive(void* to, size_t room) {
  if (!trusted()) return recv(fd_.get(), to, room, MSG_DONTWAIT);
  constexpr int kFilesAtATime = 16;
  alignas(cmsghdr) char control[CMSG_SPACE(kFilesAtATime * sizeof(int))];
  iovec piece = {to, room};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count <= 0) return count;
  for (cmsghdr* with = CMSG_FIRSTHDR(&message); with; with = CMSG_NXTHDR(&message, with)) {
    if (with->cmsg_level != SOL_SOCKET || with->cmsg_type != SCM_RIGHTS) continue;
    const size_t files = (with->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < files; ++i) {
      int file;
      std::memcpy(&file, CMSG_DATA(with) + i * sizeof(file), sizeof(file));
      Fd mine(file);
      files_.push_back(std::move(mine));
    }
  }
  return count;
}

Fd Connection::TakeFile() {
  if (files_.empty()) return Fd();
  Fd file = std::move(files_.front());
  files_.pop_front();
  return file;
}

// Delivers all complete frames.
bool Connection::Parse(const Deliver& deliver, std::string* why) {
  for (;;) {
    if (!in_payload_) {
      if (end_ - begin_ < sizeof(header_)) return true;
      std::memcpy(&header_, input_.data() + begin_, sizeof(header_));
      begin_ += sizeof(header_);
      if (!StartPayload(why)) return false;
    }
    const size_t take = std::min(payload_.size - received_, end_ - begin_);
    if (payload_.data != nullptr && take > 0) {
      std::memcpy(payload_.data.get() + received_, input_.data() + begin_, take);
    }
    begin_ += take;
    received_ += take;
    if (received_ < payload_.size) return true;
    in_payload_ = false;
    if (!deliver(header_, std::move(payload_))) {
      *why = "it sent an invalid frame";
      return false;
    }
  }
}

bool Connection::StartPayload(std::string* why) {
  if (header_.bytes < 0 || header_.bytes > most_bytes_) {
    *why = "it sent an invalid frame";
    return false;
  }
  in_payload_ = true;
  received_ = 0;
  payload_ = {};
  payload_.size = static_cast<size_t>(header_.bytes);
  if (payload_.size == 0) return true;
  // Uses large pages if possible: page faults on small pages cost as much as the copy.
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t alignment = payload_.size >= 2 * kLargePage ? kLargePage : 64;
  const size_t size = (payload_.size + alignment - 1) / alignment * alignment;
  payload_.data.reset(static_cast<char*>(std::aligned_alloc(alignment, size)));
  if (alignment == kLargePage && payload_.data) madvise(payload_.data.get(), size, MADV_HUGEPAGE);
  return true;
}

}  // namespace jaxmg
