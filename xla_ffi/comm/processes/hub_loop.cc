// The hub's thread: listens, connects, reads, writes what could not be written at once, and counts
// the silence of others.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/segments.h"
#include "xla_ffi/comm/processes/wires.h"

namespace jaxmg {
namespace {

// No clock counts further.
constexpr double kLongestLimit = 1e9;
// How long the thread looks for more, after something has come, without giving its processor away:
// frames of a call come one after the other, and a rank waits for each.
constexpr std::chrono::microseconds kSpin(200);
// Processors for each process of this host that there have to be for that.
constexpr size_t kProcessorsToSpin = 4;

}  // namespace

Status Hub::Start() {
  listeners_.clear();
  poller_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  waker_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (poller_.get() < 0 || waker_.get() < 0) {
    return Error(Code::kUnavailable, "no files for the hub: ", std::strerror(errno));
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
  return Error(Code::kUnavailable, "no watch on a socket: ", std::strerror(errno));
}

void Hub::Wake() noexcept {
  const uint64_t one = 1;
  if (waker_.get() >= 0 && write(waker_.get(), &one, sizeof(one)) < 0) return;  // it is awake
}

// Often enough that a silence is seen in time, and that this process's own is none: by the shortest
// limit of those that it is connected with.
Seconds Hub::TickLength() const {
  return std::clamp(Seconds(shortest_limit_) / 20, Seconds(0.002), Seconds(1));
}

// The thread outlives main: the process ends with it in epoll_wait.
void Hub::Run() noexcept {
  for (;;) {
    const Status turned = Guarded([&] {
      Turn();
      return Status::Ok();
    });
    // Out of memory, in something that can be done again.
    if (!turned.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void Hub::Turn() {
  epoll_event events[64];
  const Seconds left = next_tick_ - Clock::now();
  const bool spins = Clock::now() < spin_until_;
  const int wait = spins ? 0 : std::max(0, static_cast<int>(left.count() * 1e3) + 1);
  const int count = epoll_wait(poller_.get(), events, std::size(events), wait);
  const Clock::time_point now = Clock::now();
  // This process was stopped, or had no processor: others may have spoken meanwhile, and what they
  // said lies in sockets that come to their turn now.
  const Seconds away = now - last_turn_ - Seconds(wait * 1e-3);
  if (away > TickLength()) {
    for (auto& [fd, open] : open_) {
      open.second->heard += std::chrono::duration_cast<Clock::duration>(away);
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
    } else if (Listener* listener = ListenerOf(fd)) {
      AcceptSome(*listener);
    } else {
      GoOn(fd, events[i].events);
      if (may_spin_) spin_until_ = now + kSpin;
    }
  }
  if (Clock::now() >= next_tick_) {
    next_tick_ = now + std::chrono::seconds(1);
    Tick(now);
    TickAt(Clock::now() + std::chrono::duration_cast<Clock::duration>(TickLength()));
  }
}

// A socket has something to read, or room to write.
void Hub::GoOn(int fd, uint32_t events) {
  std::shared_ptr<Connection> connection;
  const auto greeting = greetings_.find(fd);
  if (greeting != greetings_.end()) {
    if (greeting->second.connecting && !Established(fd, greeting->second)) return;
    connection = greeting->second.connection;
  } else if (const auto open = open_.find(fd); open != open_.end()) {
    connection = open->second.second;
  } else {
    return;  // closed in this turn
  }
  if (events & EPOLLOUT) connection->Flush();
  if (!(events & ~static_cast<uint32_t>(EPOLLOUT))) return;
  auto deliver = [&](const FrameHeader& header, Payload payload) {
    // A frame may make the connection a peer's.
    if (const auto now = greetings_.find(fd); now != greetings_.end()) {
      return GreetingCame(fd, now->second, header, payload);
    }
    const auto open = open_.find(fd);
    if (open == open_.end()) return true;
    const int process = open->second.first;
    if (header.type == FrameType::kSegment) {
      return Segments::The().Came(process, header, connection->TakeFile());
    }
    if (header.type == FrameType::kForget) return Segments::The().Forgotten(process, header);
    if (header.type >= FrameType::kWireOffer && header.type <= FrameType::kWireNo) {
      return Wires::The().Came(process, header, std::move(payload));
    }
    return Deliver(process, header, std::move(payload));
  };
  std::string why;
  bool stands = false;
  // A frame for which there is no memory would be waited for in vain.
  const Status read = Guarded([&] {
    stands = connection->Read(deliver, &why);
    return Status::Ok();
  });
  if (!stands) Close(fd, read.ok() ? why : "no memory for what it sent");
}

void Hub::Close(int fd, const std::string& why) {
  const auto open = open_.find(fd);
  if (open == open_.end()) return EndGreeting(fd, why);
  const auto [process, connection] = std::move(open->second);
  open_.erase(open);
  epoll_ctl(poller_.get(), EPOLL_CTL_DEL, fd, nullptr);  // calls may have it open for a while yet
  connection->Break();
  Lose(process, why);
}

// Says that this process lives, and how long it waits to hear as much.
void Hub::Ping(Connection& connection) {
  OutFrame ping;
  ping.header.type = FrameType::kPing;
  ping.header.value = static_cast<int64_t>(std::min(peer_timeout().count(), kLongestLimit) * 1e9);
  (void)connection.Send(std::move(ping));
}

// `now` is when what had been said until then was at hand: this process may be stopped at any
// moment since, and has then heard nothing without anybody's fault.
void Hub::Tick(Clock::time_point now) {
  std::map<int, double> limits;  // of the peers, of their patience with this process
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
  TickGreetings();
  meetings_->OnTick();
  Segments::The().ReleaseLost();
  std::vector<int> silent;
  size_t processes = 1;  // of this host
  for (const auto& [fd, open] : open_) {
    const auto& connection = open.second;
    if (connection->transport() == "unix") ++processes;
    if (now - std::max(connection->heard, since) > Seconds(mine)) silent.push_back(fd);
    const double theirs = limits[open.first] > 0 ? limits[open.first] : mine;
    const double pause = std::min({mine / 10, theirs / 10, 5.0});
    if (now - connection->sent() < Seconds(pause)) continue;
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
