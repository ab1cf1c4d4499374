#include "xla_ffi/comm/processes/connections/hub.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <iterator>

#include "xla_ffi/comm/processes/links/nccl_channels.h"
#include "xla_ffi/comm/processes/links/segments.h"

namespace jaxmg {
namespace {

// Limits for one process's frames for calls that have not begun here. A process begins a call when
// the lead says so, and may send a few panels before this process learns that the call begins.
constexpr size_t kMostParkedFrames = 1 << 16;
constexpr size_t kMostParkedBytes = size_t{4} << 30;

}  // namespace

Hub& Hub::Instance() { return Forever<Hub>(); }

Seconds Hub::peer_timeout() const { return Seconds(peer_timeout_.load()); }

void Hub::set_peer_timeout(Seconds limit) {
  auto lock = monitor_.Lock();
  peer_timeout_ = limit.count();
  limit_since_ = Clock::now();
  Wake();
}

void Hub::set_transport(Transport transport) { transport_ = transport; }

Status Hub::Listen(const std::string& version, FrameSink* rendezvous, std::string* address) {
  auto lock = monitor_.Lock();
  if (!started_) {
    self_ = LocalAddress();
    self_.version = version;
    self_.transport = NameOf(transport_);
    rendezvous_ = rendezvous;
    JAXMG_RETURN_IF_ERROR(Start());
    started_ = true;
  }
  if (self_.pid != getpid()) {  // the hub's thread exists only in the parent
    return Error(Code::kUnavailable,
                 "this process was forked from a process that others are connected to, so they "
                 "can't reach it; start it with the method spawn or forkserver");
  }
  *address = self_.Text();
  return Status::Ok();
}

Status Hub::ListenOverTcp(TcpScope scope, std::string* lines) {
  auto lock = monitor_.Lock();
  if (!started_) return Error(Code::kInternal, "ListenOverTcp was called before Listen");
  const auto known = tcp_lines_.find(scope);
  if (known != tcp_lines_.end()) {
    *lines = known->second;
    return Status::Ok();
  }
  Fd listener;
  std::vector<std::string> addresses;
  JAXMG_RETURN_IF_ERROR(ListenTcp(scope, &listener, &addresses));
  JAXMG_RETURN_IF_ERROR(AddListener(std::move(listener), "tcp"));
  *lines = tcp_lines_[scope] = TcpLines(addresses);
  return Status::Ok();
}

Status Hub::Connect(int me, const std::map<int, std::string>& addresses, const std::string& key) {
  std::map<int, ProcessAddress> parsed;
  for (const auto& [process, text] : addresses) {
    if (process == me) continue;
    JAXMG_RETURN_IF_ERROR(ParseAddress(text, &parsed[process]));
  }
  auto lock = monitor_.Lock();
  if (!started_) return Error(Code::kInternal, "Connect was called before Listen");
  if (me < 0 || key.empty()) {
    return Error(Code::kInvalidArgument,
                 "the process index must be at least 0, and the key not empty; got index ", me);
  }
  if (me_ >= 0 && (me != me_ || key != key_)) {
    return Error(Code::kInvalidArgument, "this is process ", me_,
                 " of a job already, so it can't be process ", me, " of another");
  }
  me_ = me;
  key_ = key;
  for (auto& [process, address] : parsed) {
    Peer& peer = peers_[process];
    if (!peer.address.unix_name.empty()) {
      if (peer.address.Identity() != address.Identity()) {
        return Error(Code::kInvalidArgument, DescribeLocked(process),
                     " can't change its address; got that of a restarted process: ", address.host,
                     ", pid ", address.pid);
      }
      peer.address.tcp = std::move(address.tcp);
      continue;
    }
    peer.address = std::move(address);
    peer.next_attempt = Clock::now();
    peer.give_up = Clock::now() + std::chrono::seconds(2);
  }
  Wake();
  return Status::Ok();
}

std::vector<ConnectionInfo> Hub::Connections() {
  auto lock = monitor_.Lock();
  std::vector<ConnectionInfo> all;
  for (const auto& [process, peer] : peers_) {
    const std::string state = !peer.lost.ok()              ? "lost: " + peer.lost.message()
                              : peer.connection != nullptr ? "connected"
                                                           : "connecting";
    std::string transport = peer.transport;
    if (Segments::Instance().SharesWith(process)) transport += ", shared memory";
    if (const std::string channels = NcclChannels::Instance().Describe(process);
        !channels.empty()) {
      transport += ", " + channels;
    }
    all.push_back({process, peer.address.host, peer.address.pid, transport, state});
  }
  return all;
}

int Hub::me() {
  auto lock = monitor_.Lock();
  return me_;
}

std::string Hub::Describe(int process) {
  auto lock = monitor_.Lock();
  return DescribeLocked(process);
}

std::string Hub::DescribeLocked(int process) {
  const auto peer = peers_.find(process);
  if (process != me_ && peer == peers_.end()) return "process " + std::to_string(process);
  const ProcessAddress& address = process == me_ ? self_ : peer->second.address;
  return "process " + std::to_string(process) + " (host " + address.host + ", pid " +
         std::to_string(address.pid) + ")";
}

int Hub::CountOnMyCores(const std::vector<int>& processes) {
  auto lock = monitor_.Lock();
  return static_cast<int>(std::count_if(processes.begin(), processes.end(), [&](int process) {
    const auto peer = peers_.find(process);
    return process == me_ || (peer != peers_.end() && peer->second.address.cores == self_.cores);
  }));
}

Status Hub::Await(int process, Clock::time_point deadline) {
  auto lock = monitor_.Lock();
  const auto peer = peers_.find(process);
  if (peer == peers_.end()) {
    return Error(Code::kUnavailable, "the address of process ", process, " is unknown");
  }
  const WaitPolicy policy = {deadline - Clock::now()};
  const bool done = monitor_.Wait(
      lock, policy, [&] { return peer->second.connection != nullptr || !peer->second.lost.ok(); });
  if (!done) {
    const std::string& why = peer->second.why_not;
    return Error(Code::kDeadlineExceeded, DescribeLocked(process), " has not connected",
                 why.empty() ? "" : " (" + why + ")");
  }
  return peer->second.lost;
}

std::shared_ptr<Connection> Hub::ConnectionTo(int process) {
  auto lock = monitor_.Lock();
  const auto peer = peers_.find(process);
  return peer == peers_.end() ? nullptr : peer->second.connection;
}

Status Hub::LossOf(int process) {
  auto lock = monitor_.Lock();
  const auto peer = peers_.find(process);
  return peer == peers_.end() ? Status::Ok() : peer->second.lost;
}

void Hub::Enter(const CallId& id, const std::shared_ptr<FrameSink>& call) {
  std::vector<ParkedFrame> early;
  {
    auto lock = monitor_.Lock();
    calls_[id] = call;
    const auto parked = parked_.find(id);
    if (parked != parked_.end()) early = std::move(parked->second);
    for (const ParkedFrame& frame : early) Unpark(frame);
    RecordKnown(id);
  }
  for (ParkedFrame& frame : early)
    call->OnFrame(frame.process, frame.header, std::move(frame.payload));
}

void Hub::Skip(const CallId& id) {
  auto lock = monitor_.Lock();
  RecordKnown(id);
}

void Hub::Leave(const CallId& id) {
  auto lock = monitor_.Lock();
  calls_.erase(id);
}

// Returns whether the lead may still announce the call to this process.
bool Hub::MayBegin(const CallId& id) const {
  const auto known = known_.find(id.first);
  if (known != known_.end() && id.second <= known->second) return false;
  const auto lead = peers_.find(id.first);
  return lead == peers_.end() || lead->second.lost.ok();
}

// Records that the lead has announced the call to this process. A lead announces calls in order, so
// earlier calls will never begin.
void Hub::RecordKnown(const CallId& id) {
  int64_t& known = known_[id.first];
  known = std::max(known, id.second);
  DropParked({id.first, INT64_MIN}, {id.first, known});
}

// Drops the frames stored for the calls `first` to `last`, inclusive.
void Hub::DropParked(const CallId& first, const CallId& last) noexcept {
  const auto begin = parked_.lower_bound(first), end = parked_.upper_bound(last);
  for (auto call = begin; call != end; ++call) {
    for (const ParkedFrame& frame : call->second) Unpark(frame);
  }
  parked_.erase(begin, end);
}

void Hub::Unpark(const ParkedFrame& frame) noexcept {
  ParkedSize& size = parked_size_[frame.process];
  --size.frames;
  size.bytes -= frame.payload.size;
}

// Stores a frame for a call that has not begun here. Returns false if the process exceeds its
// limits.
bool Hub::Park(const CallId& id, ParkedFrame frame) {
  ParkedSize& size = parked_size_[frame.process];
  if (size.frames >= kMostParkedFrames || size.bytes >= kMostParkedBytes) return false;
  const size_t bytes = frame.payload.size;
  parked_[id].push_back(std::move(frame));
  ++size.frames;
  size.bytes += bytes;
  return true;
}

size_t Hub::calls() {
  auto lock = monitor_.Lock();
  return calls_.size() + parked_.size();
}

// Delivers a frame to the rendezvous or to a call in progress, stores it for a call that has not
// begun, or drops it if the call is over.
bool Hub::Deliver(int process, const FrameHeader& header, Payload payload) {
  if (header.type == FrameType::kPing) {
    auto lock = monitor_.Lock();
    peers_[process].limit = static_cast<double>(header.value) * 1e-9;
    return true;
  }
  if (header.type >= FrameType::kJoin && header.type <= FrameType::kFailCall) {
    rendezvous_->OnFrame(process, header, std::move(payload));
    return true;
  }
  if (header.type < FrameType::kVote || header.type > FrameType::kDevices) return false;
  const CallId id(header.lead, header.call);
  std::shared_ptr<FrameSink> call;
  {
    auto lock = monitor_.Lock();
    const auto found = calls_.find(id);
    if (found != calls_.end()) {
      call = found->second.lock();
    } else if (MayBegin(id)) {
      return Park(id, {process, header, std::move(payload)});
    }
  }
  if (call != nullptr) call->OnFrame(process, header, std::move(payload));
  return true;
}

// Allocates no memory except for the message.
void Hub::Lose(int process, const std::string& why) noexcept {
  std::shared_ptr<Connection> connection;  // released after the lock
  Status lost;
  {
    auto lock = monitor_.Lock();
    const auto found = peers_.find(process);
    if (found == peers_.end() || !found->second.lost.ok()) return;
    lost = Guarded(
        [&] { return Error(Code::kUnavailable, DescribeLocked(process), " is lost, ", why); });
    found->second.lost = lost;
    connection = std::move(found->second.connection);
    found->second.connection = nullptr;
    DropParked({process, INT64_MIN}, {process, INT64_MAX});
    monitor_.Notify();
  }
  // Calls that begin later check LossOf.
  for (CallId last = {INT_MIN, INT64_MIN};;) {
    std::shared_ptr<FrameSink> call;
    {
      auto lock = monitor_.Lock();
      const auto next = calls_.upper_bound(last);
      if (next == calls_.end()) break;
      last = next->first;
      call = next->second.lock();
    }
    if (call != nullptr) call->OnLost(process, lost);
  }
  rendezvous_->OnLost(process, lost);
  Segments::Instance().Lose(process);
  NcclChannels::Instance().Lose(process);
}

}  // namespace jaxmg
