// The hub's thread: accepts, connects, reads, writes queued data, and detects silent processes.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/nccl_channels.h"
#include "xla_ffi/comm/processes/links/segments.h"

namespace jaxmg {
namespace {

// In seconds; larger values overflow the clock.
constexpr double kLongestLimit = 1e9;
// How long the thread polls without sleeping after an event. The frames of a call follow each other
// closely, and a rank waits for each of them.
constexpr std::chrono::microseconds kSpin(200);
// The number of processors per process of this host that polling requires.
constexpr size_t kProcessorsToSpin = 4;

}  // namespace

Status Hub::Start() {
  listeners_.clear();
  poller_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  waker_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (poller_.get() < 0 || waker_.get() < 0) {
    return Error(Code::kUnavailable,
                 "can't create the hub's file descriptors: ", std::strerror(errno));
  }
  Fd listener;
  JAXMG_RETURN_IF_ERROR(ListenUnix(&listener, &self_.unix_name));
  JAXMG_RETURN_IF_ERROR(AddListener(std::move(listener), "unix"));
  JAXMG_RETURN_IF_ERROR(Watch(waker_.get(), EPOLLIN));
  return Guarded([&] {
    std::thread([this] { Run(); }).detach();
    return Status::Ok();
  });
}

Status Hub::Watch(int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(poller_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status::Ok();
  return Error(Code::kUnavailable, "can't watch a socket: ", std::strerror(errno));
}

void Hub::Wake() noexcept {
  const uint64_t one = 1;
  // the thread is already awake
  if (waker_.get() >= 0 && write(waker_.get(), &one, sizeof(one)) < 0) return;
}

// Returns the interval of ticks. With the shortest limit among the connected processes, it must be
// short enough to detect silence and to send pings in time.
Seconds Hub::TickLength() const {
  return std::clamp(Seconds(shortest_limit_) / 20, Seconds(0.002), Seconds(1));
}

// The thread outlives main: the process exits while the thread waits in epoll_wait.
void Hub::Run() noexcept {
  for (;;) {
    const Status turned = Guarded([&] {
      RunOnce();
      return Status::Ok();
    });
    // Memory was exhausted in an operation that can be repeated.
    if (!turned.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void Hub::RunOnce() {
  epoll_event events[64];
  const Seconds left = next_tick_ - Clock::now();
  const bool spins = Clock::now() < spin_until_;
  const int wait = spins ? 0 : std::max(0, static_cast<int>(left.count() * 1e3) + 1);
  const int count = epoll_wait(poller_.get(), events, std::size(events), wait);
  const Clock::time_point now = Clock::now();
  // This process was stopped or had no processor. Others may have sent data meanwhile, which the
  // sockets' buffers hold and which is read next. So the time doesn't count as their silence.
  const Seconds away = now - last_turn_ - Seconds(wait * 1e-3);
  if (away > TickLength()) {
    for (auto& [fd, open] : open_) {
      open.second->last_received += std::chrono::duration_cast<Clock::duration>(away);
    }
  }
  last_turn_ = now;
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd == waker_.get()) {
      uint64_t drained;
      while (read(waker_.get(), &drained, sizeof(drained)) > 0) {
      }
      TickAt(now);
    } else if (Listener* listener = FindListener(fd)) {
      AcceptSome(*listener);
    } else {
      HandleEvents(fd, events[i].events);
      if (may_spin_) spin_until_ = now + kSpin;
    }
  }
  if (Clock::now() >= next_tick_) {
    next_tick_ = now + std::chrono::seconds(1);
    Tick(now);
    TickAt(Clock::now() + std::chrono::duration_cast<Clock::duration>(TickLength()));
  }
}

// Handles a socket that is readable or writable.
void Hub::HandleEvents(int fd, uint32_t events) {
  std::shared_ptr<Connection> connection;
  const auto handshake = handshakes_.find(fd);
  if (handshake != handshakes_.end()) {
    if (handshake->second.connecting && !OnConnected(fd, handshake->second)) return;
    connection = handshake->second.connection;
  } else if (const auto open = open_.find(fd); open != open_.end()) {
    connection = open->second.second;
  } else {
    return;  // closed earlier in this turn
  }
  if (events & EPOLLOUT) connection->Flush();
  if (!(events & ~static_cast<uint32_t>(EPOLLOUT))) return;
  auto deliver = [&](const FrameHeader& header, Payload payload) {
    // A frame may turn a handshake into a peer's connection.
    if (const auto now = handshakes_.find(fd); now != handshakes_.end()) {
      return OnHandshakeFrame(fd, now->second, header, payload);
    }
    const auto open = open_.find(fd);
    if (open == open_.end()) return true;
    const int process = open->second.first;
    if (header.type == FrameType::kSegment) {
      return Segments::Instance().OnSegment(process, header, connection->TakeFile());
    }
    if (header.type == FrameType::kForget) return Segments::Instance().OnForget(process, header);
    if (header.type >= FrameType::kNcclOffer && header.type <= FrameType::kNcclNo) {
      return NcclChannels::Instance().OnFrame(process, header, std::move(payload));
    }
    return Deliver(process, header, std::move(payload));
  };
  std::string why;
  bool stands = false;
  // If there is no memory for a frame, its receiver would wait forever; closing the connection
  // prevents that.
  const Status read = Guarded([&] {
    stands = connection->Read(deliver, &why);
    return Status::Ok();
  });
  if (!stands) Close(fd, read.ok() ? why : "no memory for what it sent");
}

void Hub::Close(int fd, const std::string& why) {
  const auto open = open_.find(fd);
  if (open == open_.end()) return EndHandshake(fd, why);
  const auto [process, connection] = std::move(open->second);
  open_.erase(open);
  // Calls may hold the connection a little longer.
  epoll_ctl(poller_.get(), EPOLL_CTL_DEL, fd, nullptr);
  connection->Break();
  Lose(process, why);
}

// Tells the peer that this process is alive, and tells it this process's silence limit.
void Hub::Ping(Connection& connection) {
  OutFrame ping;
  ping.header.type = FrameType::kPing;
  ping.header.value = static_cast<int64_t>(std::min(peer_timeout().count(), kLongestLimit) * 1e9);
  (void)connection.Send(std::move(ping));
}

// `now` is the time at which data was last read. The process may have been stopped since; that time
// must not count as silence of others.
void Hub::Tick(Clock::time_point now) {
  std::map<int, double> limits;  // the peers' silence limits for this process
  Clock::time_point since;
  {
    auto lock = monitor_.Lock();
    for (const auto& [process, peer] : peers_) limits[process] = peer.limit;
    since = limit_since_;
  }
  const double mine = std::min(peer_timeout().count(), kLongestLimit);
  shortest_limit_ = mine;
  for (const auto& [process, limit] : limits) {
    if (limit > 0) shortest_limit_ = std::min(shortest_limit_, limit);
  }
  TickHandshakes();
  TickAt(rendezvous_->OnTick());
  Segments::Instance().ReleaseLost();
  std::vector<int> silent;
  size_t processes = 1;  // of this host
  for (const auto& [fd, open] : open_) {
    const auto& connection = open.second;
    if (connection->transport() == "unix") ++processes;
    if (now - std::max(connection->last_received, since) > Seconds(mine)) silent.push_back(fd);
    const double theirs = limits[open.first] > 0 ? limits[open.first] : mine;
    const double pause = std::min({mine / 10, theirs / 10, 5.0});
    if (now - connection->last_sent() < Seconds(pause)) continue;
    Ping(*connection);
  }
  may_spin_ = std::thread::hardware_concurrency() >= kProcessorsToSpin * processes;
  for (const int fd : silent) {
    std::ostringstream why;
    why << "nothing was heard of it for " << mine << " s (JAXMG_PEER_TIMEOUT sets the limit)";
    Close(fd, why.str());
  }
}

}  // namespace jaxmg
