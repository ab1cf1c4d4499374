// How two hubs become connected: the process of the lower index goes through the other's addresses.
// Each sends a random number, and by it the other proves that it knows the key of their job, which
// never passes between them (README.md).
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "xla_ffi/comm/processes/closer.h"
#include "xla_ffi/comm/processes/hmac.h"
#include "xla_ffi/comm/processes/hub.h"

namespace jaxmg {
namespace {

// From when a connection is begun, or accepted, until both sides know each other.
constexpr std::chrono::seconds kGreetingLimit(10);
// Between rounds over all routes to a process, and until a process none of whose addresses can be
// reached is lost. It has listened before anybody knew of it.
constexpr std::chrono::milliseconds kPause(200);
constexpr std::chrono::seconds kGiveUp(2);

// Of connections that are accepted at a time, and until the next are. So strangers, however many
// they are, leave the thread and the processor to the job.
constexpr int kAcceptsAtATime = 64;
constexpr std::chrono::milliseconds kRest(20);
// Accepted and not known, beside two for each process that is awaited.
constexpr size_t kMostStrangers = 64;

constexpr size_t kNonceBytes = 32;

void Append(std::string* text, const std::string& piece) {
  *text += std::to_string(piece.size()) + ":" + piece;
}

}  // namespace

Status Hub::AddListener(Fd fd, const char* transport) {
  JAXMG_RETURN_IF_ERROR(Watch(fd.get(), 0));
  listeners_.push_back({std::move(fd), transport});
  return Status::Ok();
}

Hub::Listener* Hub::ListenerOf(int fd) {
  auto lock = monitor_.Lock();
  for (Listener& listener : listeners_) {
    if (listener.fd.get() == fd) return &listener;
  }
  return nullptr;
}

void Hub::WatchListeners() {
  const Clock::time_point now = Clock::now();
  auto lock = monitor_.Lock();
  awaited_ = 0;
  for (const auto& [process, peer] : peers_) {
    awaited_ += process < me_ && peer.connection == nullptr && peer.lost.ok() ? 1 : 0;
  }
  for (Listener& listener : listeners_) {
    const bool rests = now < listener.rests_until;
    if (awaited_ > 0 && rests) TickAt(listener.rests_until);
    const bool wanted = awaited_ > 0 && !rests;
    if (wanted == listener.watched) continue;
    epoll_event event = {};
    event.events = wanted ? EPOLLIN : 0u;
    event.data.fd = listener.fd.get();
    if (epoll_ctl(poller_.get(), EPOLL_CTL_MOD, listener.fd.get(), &event) == 0) {
      listener.watched = wanted;
    }
  }
}

void Hub::AcceptSome(Listener& listener) {
  const bool near = listener.transport == std::string("unix");
  for (int i = 0; i < kAcceptsAtATime && !(near && !Closer::The().HasRoom()); ++i) {
    Fd fd = Accept(listener.fd);
    if (fd.get() < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == ECONNABORTED || errno == EINTR) continue;
      break;  // no descriptors or no memory: it would be asked at once again
    }
    if (near && !IsSameUser(fd)) {
      Closer::The().Close(std::make_shared<const Fd>(std::move(fd)));
      continue;
    }
    EndOldestStranger();
    (void)NewGreeting(std::move(fd), listener.transport, -1);
  }
  listener.rests_until = Clock::now() + kRest;
  WatchListeners();
}

// Where there are as many as may be: it has had the longest time to say who it is.
void Hub::EndOldestStranger() {
  size_t strangers = 0;
  auto oldest = greetings_.end();
  for (auto greeting = greetings_.begin(); greeting != greetings_.end(); ++greeting) {
    if (greeting->second.process >= 0) continue;
    ++strangers;
    if (oldest == greetings_.end() || greeting->second.deadline < oldest->second.deadline) {
      oldest = greeting;
    }
  }
  if (strangers >= kMostStrangers + 2 * awaited_) {
    EndGreeting(oldest->first, "too many connections");
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

// To a process that is reached by the Unix socket, or over the loopback interface, no other way is
// tried; and of another host's addresses not those that lead to whoever listens on this one.
std::vector<std::string> Hub::Routes(const Peer& peer) const {
  const bool near = peer.address.local == self_.local;
  const std::string tcp = TcpBetween(self_, peer.address);
  std::vector<std::string> routes;
  if (tcp.empty() && near && !peer.address.unix_name.empty()) routes.push_back("unix");
  for (const std::string& address : peer.address.tcp) {
    if (!tcp.empty() && IsLoopback(address) == near) routes.push_back(address);
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
    if (begun.code() == Code::kResourceExhausted) peer.give_up = Clock::now() + kPause + kGiveUp;
    peer.tried += (peer.tried.empty() ? "" : "; ") + begun.message();
  }
  peer.next_route = 0;
  peer.why_not = peer.tried;
  peer.next_attempt = Clock::now() + kPause;
  peer.rounds_failed = true;
}

// Whether the connection that was begun is there; then the hello goes.
bool Hub::Established(int fd, Greeting& greeting) {
  if (const int error = ConnectError(fd)) {
    EndGreeting(fd, greeting.connection->transport() + ": " + std::strerror(error));
    return false;
  }
  const Status random = RandomBytes(kNonceBytes, &greeting.nonce);
  if (!random.ok()) {
    EndGreeting(fd, random.message());
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
  Greet(*greeting.connection, greeting.process, greeting.nonce);
  return true;
}

// With the lock held.
void Hub::Greet(Connection& connection, int process, const std::string& body) {
  OutFrame hello;
  hello.header.type = FrameType::kHello;
  hello.header.lead = static_cast<int32_t>(kWireFormat);
  hello.header.from = me_;
  hello.header.to = process;
  hello.header.value = static_cast<int64_t>(std::min(peer_timeout().count(), 1e9) * 1e9);
  hello.body = body;
  connection.SendOrBreak(std::move(hello));
}

// Whether the connection may go on.
bool Hub::GreetingCame(int fd, Greeting& greeting, const FrameHeader& header,
                       const Payload& payload) {
  if (payload.size > 0 && payload.data == nullptr) return false;
  const std::string body(payload.size > 0 ? payload.data.get() : "", payload.size);
  const bool accepted = greeting.process < 0;
  if (accepted && greeting.replied) {
    if (header.type != FrameType::kProof) return false;
    Confirm(fd, greeting, body);
    return true;
  }
  if (!accepted && header.type == FrameType::kRefused) {
    const Ending ending = header.aux == 1 ? Ending::kNotYet : Ending::kFailed;
    EndGreeting(fd, greeting.connection->transport() + ": " + body, ending);
    return true;
  }
  if (header.type != FrameType::kHello || header.lead != static_cast<int32_t>(kWireFormat) ||
      body.size() != kNonceBytes + (accepted ? 0 : kSha256Bytes)) {
    return false;
  }
  greeting.hello = header;
  greeting.their_nonce = body.substr(0, kNonceBytes);
  accepted ? Answer(fd, greeting) : Confirm(fd, greeting, body.substr(kNonceBytes));
  return true;
}

// What only who has the key can say of these two processes, as they are now, and of this
// connection; with the lock held.
std::string Hub::ProofOf(int prover, int process, const Greeting& greeting) const {
  const bool lower = me_ < process;
  const std::string mine = self_.Identity(), theirs = peers_.at(process).address.Identity();
  std::string message = "jaxmg " + std::to_string(kWireFormat) + " proof of " +
                        std::to_string(prover) + " for " + std::to_string(std::min(me_, process)) +
                        " and " + std::to_string(std::max(me_, process)) + " ";
  Append(&message, lower ? greeting.nonce : greeting.their_nonce);
  Append(&message, lower ? greeting.their_nonce : greeting.nonce);
  Append(&message, lower ? mine : theirs);
  Append(&message, lower ? theirs : mine);
  return HmacSha256(key_, message);
}

// To who has connected: this process's proof, or why it is not let in. A process that this one does
// not know yet may be of the job all the same.
void Hub::Answer(int fd, Greeting& greeting) {
  const int process = greeting.hello.from;
  const Status random = RandomBytes(kNonceBytes, &greeting.nonce);
  if (!random.ok()) return EndGreeting(fd, random.message());
  std::string wrong;
  {
    auto lock = monitor_.Lock();
    const auto peer = peers_.find(process);
    if (greeting.hello.to != me_) {
      wrong = "process " + std::to_string(me_) + " is here";
    } else if (process < 0 || process >= me_) {
      wrong = "a process connects to those of higher indices alone";
    } else if (peer == peers_.end() || peer->second.address.unix_name.empty()) {
      lock.unlock();
      return Refuse(fd, greeting, "the process is not known yet", true);
    } else if (!peer->second.lost.ok() || peer->second.connection != nullptr) {
      wrong = "the process is connected already, or was lost";
    } else {
      greeting.replied = true;
      return Greet(*greeting.connection, process, greeting.nonce + ProofOf(me_, process, greeting));
    }
  }
  Refuse(fd, greeting, wrong);
}

// The other side's proof has come: last of all to who accepted the connection, so that who
// connected has taken this route and no other.
void Hub::Confirm(int fd, Greeting& greeting, const std::string& proof) {
  const bool accepted = greeting.process < 0;
  const int process = greeting.hello.from;
  {
    auto lock = monitor_.Lock();
    if (!accepted && (process != greeting.process || greeting.hello.to != me_)) {
      lock.unlock();
      return EndGreeting(fd, "another process is there");
    }
    if (!EqualInConstantTime(proof, ProofOf(process, process, greeting))) {
      lock.unlock();
      const char* wrong = "it is of another job, or has another secret (JAXMG_SECRET)";
      return accepted ? Refuse(fd, greeting, wrong) : EndGreeting(fd, wrong, Ending::kWrong);
    }
    if (!accepted) {
      OutFrame mine;
      mine.header.type = FrameType::kProof;
      mine.body = ProofOf(me_, process, greeting);
      greeting.connection->SendOrBreak(std::move(mine));
    }
  }
  Attach(fd, greeting);
}

void Hub::Refuse(int fd, Greeting& greeting, const std::string& why, bool not_yet) {
  OutFrame refusal;
  refusal.header.type = FrameType::kRefused;
  refusal.header.aux = not_yet ? 1 : 0;
  refusal.body = why;
  (void)greeting.connection->Send(std::move(refusal));
  EndGreeting(fd, why);
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
  TickAt(Clock::now());
}

void Hub::EndGreeting(int fd, const std::string& why, Ending ending) {
  const auto found = greetings_.find(fd);
  if (found == greetings_.end()) return;
  const int process = found->second.process;
  epoll_ctl(poller_.get(), EPOLL_CTL_DEL, fd, nullptr);
  // The caller may be about to return through its Read.
  const std::shared_ptr<Connection> connection = found->second.connection;
  greetings_.erase(found);
  if (process < 0) {
    if (connection->transport() == "unix") Closer::The().Close(connection);
    return;
  }
  auto lock = monitor_.Lock();
  Peer& peer = peers_[process];
  peer.attempting = false;
  peer.next_attempt = Clock::now();
  if (ending == Ending::kNotYet) {
    --peer.next_route;
    peer.next_attempt += kPause;
  } else {
    peer.tried += (peer.tried.empty() ? "" : "; ") + why;
  }
  // Somebody is there, and may answer when it is asked again; or will never say anything else.
  if (ending == Ending::kNotYet || ending == Ending::kSilent) {
    peer.give_up = Clock::now() + kPause + kGiveUp;
  }
  if (ending == Ending::kWrong) peer.give_up = Clock::now();
  TickAt(peer.next_attempt);
}

void Hub::TickGreetings() {
  WatchListeners();
  const Clock::time_point now = Clock::now();
  std::vector<int> all;
  for (const auto& [fd, greeting] : greetings_) all.push_back(fd);
  for (const int fd : all) {
    const auto found = greetings_.find(fd);
    if (found == greetings_.end()) continue;
    Greeting& greeting = found->second;
    if (now <= greeting.deadline) continue;
    EndGreeting(fd, greeting.connection->transport() + ": no answer", Ending::kSilent);
  }
  std::map<int, std::string> unreachable;
  {
    auto lock = monitor_.Lock();
    for (auto& [process, peer] : peers_) {
      if (process < me_ || peer.connection != nullptr || !peer.lost.ok() || peer.attempting)
        continue;
      if (peer.next_attempt > now) {
        TickAt(peer.next_attempt);
        continue;
      }
      peer.rounds_failed = false;
      Attempt(process, peer);
      if (peer.rounds_failed) TickAt(peer.next_attempt);
      if (peer.rounds_failed && now > peer.give_up) unreachable[process] = peer.tried;
    }
  }
  for (const auto& [process, tried] : unreachable) {
    Lose(process, "none of its addresses can be reached (" + tried + ")");
  }
}

}  // namespace jaxmg
