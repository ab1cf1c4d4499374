// How two hubs become connected: the process of the lower index goes through the other's addresses;
// both say who they are, and of which job, before anything else.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "xla_ffi/comm/hub.h"

namespace jaxmg {
namespace {

// For a connection to be established, and for the first frame of one that was accepted.
constexpr std::chrono::seconds kGreetingLimit(10);
// Between rounds over all routes to a process, and until a process none of whose addresses can be
// reached is lost. It has listened before anybody knew of it.
constexpr std::chrono::milliseconds kPause(200);
constexpr std::chrono::seconds kGiveUp(2);

}  // namespace

void Hub::AcceptAll(const Fd& listener, const char* transport) {
  for (;;) {
    Fd fd = Accept(listener);
    if (fd.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(10));  // it would be asked at once again
    }
    if (fd.get() < 0) return;
    (void)NewGreeting(std::move(fd), transport, -1);
  }
}

Status Hub::NewGreeting(Fd fd, std::string transport, int process) {
  const int number = fd.get();
  Greeting greeting;
  greeting.connection =
      std::make_shared<Connection>(std::move(fd), std::move(transport), poller_.get());
  greeting.process = process;
  greeting.connecting = process >= 0;
  greeting.deadline = Clock::now() + kGreetingLimit;
  greetings_[number] = std::move(greeting);
  // Room to write says that a connection is there.
  const Status watched = Watch(number, process >= 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
  if (!watched.ok()) greetings_.erase(number);
  return watched;
}

std::vector<std::string> Hub::Routes(const Peer& peer) const {
  const Transport transport = transport_;
  std::vector<std::string> routes;
  if (transport != Transport::kTcp && peer.address.local == self_.local &&
      !peer.address.unix_name.empty()) {
    routes.push_back("unix");
  }
  if (transport != Transport::kUnix) {
    routes.insert(routes.end(), peer.address.tcp.begin(), peer.address.tcp.end());
  }
  return routes;
}

// Begins with the next route that can be begun with; with the lock held.
void Hub::Attempt(int process, Peer& peer) {
  const std::vector<std::string> routes = Routes(peer);
  if (peer.next_route == 0) peer.tried.clear();
  if (routes.empty()) peer.tried = "it has no address that can be reached from here";
  while (peer.next_route < routes.size()) {
    const std::string& route = routes[peer.next_route++];
    const bool near = route == "unix";
    Fd fd;
    Status begun = near ? ConnectUnix(peer.address.unix_name, &fd) : ConnectTcp(route, &fd);
    if (begun.ok()) begun = NewGreeting(std::move(fd), near ? route : "tcp " + route, process);
    if (begun.ok()) {
      peer.attempting = true;
      return;
    }
    peer.tried += (peer.tried.empty() ? "" : "; ") + begun.message();
  }
  peer.next_route = 0;
  peer.next_attempt = Clock::now() + kPause;
  peer.rounds_failed = true;
}

// Whether the connection that was begun is there; then the hello goes.
bool Hub::Established(int fd, Greeting& greeting) {
  if (const int error = ConnectError(fd)) {
    EndGreeting(fd, greeting.connection->transport() + ": " + std::strerror(error));
    return false;
  }
  greeting.connecting = false;
  greeting.deadline = Clock::now() + kGreetingLimit;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  epoll_ctl(poller_.get(), EPOLL_CTL_MOD, fd, &event);
  auto lock = monitor_.Lock();
  Peer& peer = peers_[greeting.process];
  peer.give_up = Clock::now() + kGiveUp;  // somebody is there
  Greet(*greeting.connection, greeting.process);
  return true;
}

// With the lock held.
void Hub::Greet(Connection& connection, int process) {
  OutFrame hello;
  hello.header.type = FrameType::kHello;
  hello.header.lead = static_cast<int32_t>(kWireFormat);
  hello.header.from = me_;
  hello.header.to = process;
  hello.header.value = static_cast<int64_t>(std::min(peer_timeout().count(), 1e9) * 1e9);
  hello.body = job_;
  connection.SendOrBreak(std::move(hello));
}

// Whether the connection may go on.
bool Hub::HelloCame(int fd, Greeting& greeting, const FrameHeader& header, const Payload& payload) {
  std::string body(payload.data == nullptr ? "" : std::string(payload.data.get(), payload.size));
  // The third word: who connected has this process's hello, and won't try elsewhere.
  if (greeting.replied && header.type == FrameType::kPing) {
    Attach(fd, greeting);
    return true;
  }
  if (header.type == FrameType::kRefused) {
    EndGreeting(fd, greeting.connection->transport() + ": " + body);
    return true;
  }
  if (header.type != FrameType::kHello || header.lead != static_cast<int32_t>(kWireFormat)) {
    return false;
  }
  greeting.hello = header;
  greeting.job = std::move(body);
  greeting.greeted = true;
  Admit(fd, greeting);
  return true;
}

// Makes the connection a peer's, or ends it; or leaves it, where this process does not know yet
// what job it is in and who else is.
void Hub::Admit(int fd, Greeting& greeting) {
  const int process = greeting.hello.from;
  std::string wrong;
  {
    auto lock = monitor_.Lock();
    const auto peer = peers_.find(process);
    const bool known = me_ >= 0 && peer != peers_.end() && !peer->second.address.host.empty();
    if (me_ >= 0 && (greeting.job != job_ || greeting.hello.to != me_)) {
      wrong = "process " + std::to_string(me_) + " is of another job";
    } else if (!known) {
      return;
    } else if (greeting.process >= 0 && greeting.process != process) {
      wrong = "another process is there";
    } else if (!peer->second.lost.ok() || peer->second.connection != nullptr) {
      wrong = "the process is connected already, or was lost";
    } else if (greeting.process < 0) {
      if (!greeting.replied) Greet(*greeting.connection, process);
      greeting.replied = true;
    }
  }
  if (wrong.empty()) {
    if (greeting.process >= 0) Attach(fd, greeting);
    return;
  }
  if (greeting.process < 0) {
    OutFrame refusal;
    refusal.header.type = FrameType::kRefused;
    refusal.body = wrong;
    (void)greeting.connection->Send(std::move(refusal));
  }
  EndGreeting(fd, wrong);
}

void Hub::Attach(int fd, Greeting& greeting) {
  const int process = greeting.hello.from;
  const std::shared_ptr<Connection> connection = greeting.connection;
  {
    auto lock = monitor_.Lock();
    Peer& peer = peers_[process];
    if (!peer.lost.ok() || peer.connection != nullptr) {
      lock.unlock();
      return EndGreeting(fd, "the process is connected already, or was lost");
    }
    connection->Trust();
    connection->heard = Clock::now();
    Ping(*connection);
    open_[fd] = {process, connection};
    peer.limit = static_cast<double>(greeting.hello.value) * 1e-9;
    peer.transport = connection->transport();
    peer.connection = connection;
    peer.attempting = false;
    monitor_.Changed();
  }
  greetings_.erase(fd);
  next_tick_ = Clock::now();
}

void Hub::EndGreeting(int fd, const std::string& why) {
  const auto found = greetings_.find(fd);
  if (found == greetings_.end()) return;
  const int process = found->second.process;
  epoll_ctl(poller_.get(), EPOLL_CTL_DEL, fd, nullptr);
  // The caller may be about to return through its Read.
  const std::shared_ptr<Connection> connection = found->second.connection;
  greetings_.erase(found);
  if (process < 0) return;
  auto lock = monitor_.Lock();
  Peer& peer = peers_[process];
  peer.attempting = false;
  peer.next_attempt = Clock::now();
  peer.tried += (peer.tried.empty() ? "" : "; ") + why;
  next_tick_ = Clock::now();
}

void Hub::TickGreetings() {
  const Clock::time_point now = Clock::now();
  std::vector<int> all;
  for (const auto& [fd, greeting] : greetings_) all.push_back(fd);
  for (const int fd : all) {
    const auto found = greetings_.find(fd);
    if (found == greetings_.end()) continue;
    Greeting& greeting = found->second;
    if (greeting.greeted && !greeting.replied) {
      Admit(fd, greeting);
    } else if (!greeting.greeted && now > greeting.deadline) {
      EndGreeting(fd, greeting.connection->transport() + ": no answer");
    }
  }
  std::map<int, std::string> unreachable;
  {
    auto lock = monitor_.Lock();
    for (auto& [process, peer] : peers_) {
      if (process < me_ || peer.connection != nullptr || !peer.lost.ok() || peer.attempting)
        continue;
      if (peer.next_attempt > now) continue;
      peer.rounds_failed = false;
      Attempt(process, peer);
      if (peer.rounds_failed && now > peer.give_up) unreachable[process] = peer.tried;
    }
  }
  for (const auto& [process, tried] : unreachable) {
    Lose(process, "none of its addresses can be reached (" + tried + ")");
  }
}

}  // namespace jaxmg
