// How two hubs connect: the process with the lower index tries the addresses of the other. Each
// side sends a random number. The other side's reply proves that it knows the key of the job, which
// is never sent (README.md).
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "xla_ffi/comm/processes/connections/closer.h"
#include "xla_ffi/comm/processes/connections/hmac.h"
#include "xla_ffi/comm/processes/connections/hub.h"

namespace jaxmg {
namespace {

// The limit from the start or the acceptance of a connection to mutual authentication.
constexpr std::chrono::seconds kHandshakeLimit(10);
// The pause between rounds over all routes to a process, and the time after which a process is lost
// if none of its addresses is reachable. A process listens before others learn its address.
constexpr std::chrono::milliseconds kPause(200);
constexpr std::chrono::seconds kGiveUp(2);

// The number of connections to accept at a time, and the pause before the next ones. They leave the
// thread and the processor to the job, however many strangers connect.
constexpr int kAcceptsAtATime = 64;
constexpr std::chrono::milliseconds kRest(20);
// Limit for unauthenticated connections, in addition to two for each awaited process.
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

Hub::Listener* Hub::FindListener(int fd) {
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
  for (int i = 0; i < kAcceptsAtATime && !(near && !Closer::Instance().HasRoom()); ++i) {
    Fd fd = Accept(listener.fd);
    if (fd.get() < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == ECONNABORTED || errno == EINTR) continue;
      break;  // no descriptors or no memory: retrying at once would fail again
    }
    if (near && !IsSameUser(fd)) {
      Closer::Instance().Close(std::make_shared<const Fd>(std::move(fd)));
      continue;
    }
    EndOldestStranger();
    (void)NewHandshake(std::move(fd), listener.transport, -1);
  }
  listener.rests_until = Clock::now() + kRest;
  WatchListeners();
}

// Makes room if the limit is reached. Ends the oldest stranger, which has had the longest time to
// authenticate.
void Hub::EndOldestStranger() {
  size_t strangers = 0;
  auto oldest = handshakes_.end();
  for (auto handshake = handshakes_.begin(); handshake != handshakes_.end(); ++handshake) {
    if (handshake->second.process >= 0) continue;
    ++strangers;
    if (oldest == handshakes_.end() || handshake->second.deadline < oldest->second.deadline) {
      oldest = handshake;
    }
  }
  if (strangers >= kMostStrangers + 2 * awaited_) {
    EndHandshake(oldest->first, "too many connections");
  }
}

Status Hub::NewHandshake(Fd fd, std::string transport, int process) {
  const int number = fd.get();
  Handshake handshake;
  handshake.connection =
      std::make_shared<Connection>(std::move(fd), std::move(transport), poller_.get());
  handshake.process = process;
  handshake.connecting = process >= 0;
  handshake.deadline = Clock::now() + kHandshakeLimit;
  handshakes_[number] = std::move(handshake);
  // Writability signals that the connection is established.
  const Status watched = Watch(number, process >= 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
  if (!watched.ok()) handshakes_.erase(number);
  return watched;
}

// Returns the routes to a process. If its Unix socket is reachable, uses only that or, for TCP,
// loopback addresses. Otherwise uses its other addresses: its loopback addresses would lead to
// processes of this host.
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

// Starts to connect over the next usable route. Requires the lock.
void Hub::Attempt(int process, Peer& peer) {
  const std::vector<std::string> routes = Routes(peer);
  if (peer.next_route == 0) peer.tried.clear();
  if (routes.empty()) peer.tried = "it has no address that can be reached from here";
  while (peer.next_route < routes.size()) {
    const std::string& route = routes[peer.next_route++];
    const bool near = route == "unix";
    Fd fd;
    Status begun = near ? ConnectUnix(peer.address.unix_name, &fd) : ConnectTcp(route, &fd);
    if (begun.ok()) begun = NewHandshake(std::move(fd), near ? route : "tcp " + route, process);
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

// Returns whether the connection was established; if so, sends the hello.
bool Hub::OnConnected(int fd, Handshake& handshake) {
  if (const int error = ConnectError(fd)) {
    EndHandshake(fd, handshake.connection->transport() + ": " + std::strerror(error));
    return false;
  }
  const Status random = RandomBytes(kNonceBytes, &handshake.nonce);
  if (!random.ok()) {
    EndHandshake(fd, random.message());
    return false;
  }
  handshake.connecting = false;
  handshake.deadline = Clock::now() + kHandshakeLimit;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  epoll_ctl(poller_.get(), EPOLL_CTL_MOD, fd, &event);
  auto lock = monitor_.Lock();
  Peer& peer = peers_[handshake.process];
  peer.give_up = Clock::now() + kGiveUp;  // a process listens there
  SendHello(*handshake.connection, handshake.process, handshake.nonce);
  return true;
}

// Requires the lock.
void Hub::SendHello(Connection& connection, int process, const std::string& body) {
  OutFrame hello;
  hello.header.type = FrameType::kHello;
  hello.header.lead = static_cast<int32_t>(kFrameFormat);
  hello.header.from = me_;
  hello.header.to = process;
  hello.header.value = static_cast<int64_t>(std::min(peer_timeout().count(), 1e9) * 1e9);
  hello.body = body;
  connection.SendOrBreak(std::move(hello));
}

// Returns whether the connection may continue.
bool Hub::OnHandshakeFrame(int fd, Handshake& handshake, const FrameHeader& header,
                           const Payload& payload) {
  if (payload.size > 0 && payload.data == nullptr) return false;
  const std::string body(payload.size > 0 ? payload.data.get() : "", payload.size);
  const bool accepted = handshake.process < 0;
  if (accepted && handshake.replied) {
    if (header.type != FrameType::kProof) return false;
    Confirm(fd, handshake, body);
    return true;
  }
  if (!accepted && header.type == FrameType::kRefusal) {
    const Ending ending = header.aux == 1 ? Ending::kNotYet : Ending::kFailed;
    EndHandshake(fd, handshake.connection->transport() + ": " + body, ending);
    return true;
  }
  if (header.type != FrameType::kHello || header.lead != static_cast<int32_t>(kFrameFormat) ||
      body.size() != kNonceBytes + (accepted ? 0 : kSha256Bytes)) {
    return false;
  }
  handshake.hello = header;
  handshake.their_nonce = body.substr(0, kNonceBytes);
  accepted ? Answer(fd, handshake) : Confirm(fd, handshake, body.substr(kNonceBytes));
  return true;
}

// Returns an HMAC over both processes' identities and this connection's nonces. Only holders of the
// key can compute it. Requires the lock.
std::string Hub::ProofOf(int prover, int process, const Handshake& handshake) const {
  const bool lower = me_ < process;
  const std::string mine = self_.Identity(), theirs = peers_.at(process).address.Identity();
  std::string message = "jaxmg " + std::to_string(kFrameFormat) + " proof of " +
                        std::to_string(prover) + " for " + std::to_string(std::min(me_, process)) +
                        " and " + std::to_string(std::max(me_, process)) + " ";
  Append(&message, lower ? handshake.nonce : handshake.their_nonce);
  Append(&message, lower ? handshake.their_nonce : handshake.nonce);
  Append(&message, lower ? mine : theirs);
  Append(&message, lower ? theirs : mine);
  return HmacSha256(key_, message);
}

// Replies to a process that has connected, with this process's proof or with a refusal. A process
// that is not known yet may still belong to the job.
void Hub::Answer(int fd, Handshake& handshake) {
  const int process = handshake.hello.from;
  const Status random = RandomBytes(kNonceBytes, &handshake.nonce);
  if (!random.ok()) return EndHandshake(fd, random.message());
  std::string wrong;
  {
    auto lock = monitor_.Lock();
    const auto peer = peers_.find(process);
    if (handshake.hello.to != me_) {
      wrong = "process " + std::to_string(me_) + " is here";
    } else if (process < 0 || process >= me_) {
      wrong = "a process connects to those of higher indices alone";
    } else if (peer == peers_.end() || peer->second.address.unix_name.empty()) {
      lock.unlock();
      return Refuse(fd, handshake, "the process is not known yet", true);
    } else if (!peer->second.lost.ok() || peer->second.connection != nullptr) {
      wrong = "the process is connected already, or was lost";
    } else {
      handshake.replied = true;
      return SendHello(*handshake.connection, process,
                       handshake.nonce + ProofOf(me_, process, handshake));
    }
  }
  Refuse(fd, handshake, wrong);
}

// Checks the other side's proof. The connecting side sends its proof last, which also tells the
// accepting side that this route has been chosen.
void Hub::Confirm(int fd, Handshake& handshake, const std::string& proof) {
  const bool accepted = handshake.process < 0;
  const int process = handshake.hello.from;
  {
    auto lock = monitor_.Lock();
    if (!accepted && (process != handshake.process || handshake.hello.to != me_)) {
      lock.unlock();
      return EndHandshake(fd, "another process is there");
    }
    if (!EqualInConstantTime(proof, ProofOf(process, process, handshake))) {
      lock.unlock();
      const char* wrong = "it is of another job, or has another secret (JAXMG_SECRET)";
      return accepted ? Refuse(fd, handshake, wrong) : EndHandshake(fd, wrong, Ending::kWrong);
    }
    if (!accepted) {
      OutFrame mine;
      mine.header.type = FrameType::kProof;
      mine.body = ProofOf(me_, process, handshake);
      handshake.connection->SendOrBreak(std::move(mine));
    }
  }
  Attach(fd, handshake);
}

void Hub::Refuse(int fd, Handshake& handshake, const std::string& why, bool not_yet) {
  OutFrame refusal;
  refusal.header.type = FrameType::kRefusal;
  refusal.header.aux = not_yet ? 1 : 0;
  refusal.body = why;
  (void)handshake.connection->Send(std::move(refusal));
  EndHandshake(fd, why);
}

void Hub::Attach(int fd, Handshake& handshake) {
  const int process = handshake.hello.from;
  const std::shared_ptr<Connection> connection = handshake.connection;
  {
    auto lock = monitor_.Lock();
    Peer& peer = peers_[process];
    if (!peer.lost.ok() || peer.connection != nullptr) {
      lock.unlock();
      return EndHandshake(fd, "the process is connected already, or was lost");
    }
    connection->Trust();
    connection->last_received = Clock::now();
    Ping(*connection);
    open_[fd] = {process, connection};
    peer.limit = static_cast<double>(handshake.hello.value) * 1e-9;
    peer.transport = connection->transport();
    peer.connection = connection;
    peer.attempting = false;
    monitor_.Notify();
  }
  handshakes_.erase(fd);
  TickAt(Clock::now());
}

void Hub::EndHandshake(int fd, const std::string& why, Ending ending) {
  const auto found = handshakes_.find(fd);
  if (found == handshakes_.end()) return;
  const int process = found->second.process;
  epoll_ctl(poller_.get(), EPOLL_CTL_DEL, fd, nullptr);
  // Keeps the connection alive, because the caller may be inside its Read.
  const std::shared_ptr<Connection> connection = found->second.connection;
  handshakes_.erase(found);
  if (process < 0) {
    if (connection->transport() == "unix") Closer::Instance().Close(connection);
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
  // A process listens there: it may answer a later attempt; after kWrong it will never accept one.
  if (ending == Ending::kNotYet || ending == Ending::kSilent) {
    peer.give_up = Clock::now() + kPause + kGiveUp;
  }
  if (ending == Ending::kWrong) peer.give_up = Clock::now();
  TickAt(peer.next_attempt);
}

void Hub::TickHandshakes() {
  WatchListeners();
  const Clock::time_point now = Clock::now();
  std::vector<int> all;
  for (const auto& [fd, handshake] : handshakes_) all.push_back(fd);
  for (const int fd : all) {
    const auto found = handshakes_.find(fd);
    if (found == handshakes_.end()) continue;
    Handshake& handshake = found->second;
    if (now <= handshake.deadline) continue;
    EndHandshake(fd, handshake.connection->transport() + ": no answer", Ending::kSilent);
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
