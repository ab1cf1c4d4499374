#include "xla_ffi/comm/hub.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <iterator>

#include "xla_ffi/comm/segments.h"
#include "xla_ffi/comm/wires.h"

namespace jaxmg {

Hub& Hub::The() { return Forever<Hub>(); }

Seconds Hub::peer_timeout() const { return Seconds(peer_timeout_.load()); }

void Hub::set_peer_timeout(Seconds limit) {
  auto lock = monitor_.Lock();
  peer_timeout_ = limit.count();
  limit_since_ = Clock::now();
  Wake();
}

void Hub::set_transport(Transport transport) { transport_ = transport; }

Status Hub::Listen(const std::string& version, FrameSink* meetings, std::string* address) {
  auto lock = monitor_.Lock();
  if (!started_) {
    self_ = LocalAddress();
    self_.version = version;
    meetings_ = meetings;
    JAXMG_RETURN_IF_ERROR(Start());
    started_ = true;
  }
  if (self_.pid != getpid()) {  // whose thread the hub's is not
    return Error(Code::kUnavailable,
                 "this process was forked from one that others are connected with, and can't be "
                 "reached itself: start it by spawn or forkserver");
  }
  *address = self_.Text();
  return Status::Ok();
}

Status Hub::Connect(int me, const std::map<int, std::string>& addresses, const std::string& job) {
  std::map<int, ProcessAddress> parsed;
  for (const auto& [process, text] : addresses) {
    if (process == me) continue;
    JAXMG_RETURN_IF_ERROR(ParseAddress(text, &parsed[process]));
  }
  auto lock = monitor_.Lock();
  if (!started_) return Error(Code::kInternal, "processes are connected before this one listens");
  if (me < 0 || job.empty()) return Error(Code::kInvalidArgument, "process ", me, " of no job");
  if (me_ >= 0 && (me != me_ || job != job_)) {
    return Error(Code::kInvalidArgument, "this is process ", me_,
                 " of a job already, and can't be process ", me, " of another");
  }
  me_ = me;
  job_ = job;
  for (auto& [process, address] : parsed) {
    Peer& peer = peers_[process];
    if (!peer.address.unix_name.empty() || !peer.address.tcp.empty()) {
      if (peer.address.Text() != address.Text()) {
        return Error(Code::kInvalidArgument, DescribeLocked(process),
                     " can't have another address, of a process started anew: ", address.host,
                     ", pid ", address.pid);
      }
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
    if (Segments::The().Shares(process)) transport += ", shared memory";
    if (const std::string wires = Wires::The().Describe(process); !wires.empty()) {
      transport += ", " + wires;
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
    return Error(Code::kUnavailable, "nobody said where process ", process, " is");
  }
  const Patience patience = {deadline - Clock::now()};
  const bool done = monitor_.Wait(lock, patience, [&] {
    return peer->second.connection != nullptr || !peer->second.lost.ok();
  });
  if (!done) {
    return Error(Code::kDeadlineExceeded, DescribeLocked(process), " has not connected");
  }
  return peer->second.lost;
}

std::shared_ptr<Connection> Hub::ConnectionTo(int process) {
  auto lock = monitor_.Lock();
  const auto peer = peers_.find(process);
  return peer == peers_.end() ? nullptr : peer->second.connection;
}

Status Hub::LostBecause(int process) {
  auto lock = monitor_.Lock();
  const auto peer = peers_.find(process);
  return peer == peers_.end() ? Status::Ok() : peer->second.lost;
}

void Hub::Enter(const CallId& id, const std::shared_ptr<FrameSink>& call) {
  std::vector<Parked> early;
  {
    auto lock = monitor_.Lock();
    calls_[id] = call;
    const auto parked = parked_.find(id);
    if (parked != parked_.end()) early = std::move(parked->second);
    Know(id);
  }
  for (Parked& frame : early) call->OnFrame(frame.process, frame.header, std::move(frame.payload));
}

void Hub::Skip(const CallId& id) {
  auto lock = monitor_.Lock();
  Know(id);
}

void Hub::Leave(const CallId& id) {
  auto lock = monitor_.Lock();
  calls_.erase(id);
}

// Whether this process may still hear that the call begins.
bool Hub::MayBegin(const CallId& id) const {
  const auto known = known_.find(id.first);
  if (known != known_.end() && id.second <= known->second) return false;
  const auto lead = peers_.find(id.first);
  return lead == peers_.end() || lead->second.lost.ok();
}

// This process has heard of the call: of none that its lead began before will it hear any more.
void Hub::Know(const CallId& id) {
  int64_t& known = known_[id.first];
  known = std::max(known, id.second);
  parked_.erase(parked_.lower_bound({id.first, INT64_MIN}), parked_.upper_bound({id.first, known}));
}

size_t Hub::calls() {
  auto lock = monitor_.Lock();
  return calls_.size() + parked_.size();
}

// What a frame is for: the meeting, a call under way, one that has not begun here, or one that is
// over.
bool Hub::Deliver(int process, const FrameHeader& header, Payload payload) {
  if (header.type == FrameType::kPing) {
    auto lock = monitor_.Lock();
    peers_[process].limit = static_cast<double>(header.value) * 1e-9;
    return true;
  }
  if (header.type >= FrameType::kMeet && header.type <= FrameType::kFailCall) {
    meetings_->OnFrame(process, header, std::move(payload));
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
      parked_[id].push_back({process, header, std::move(payload)});
    }
  }
  if (call != nullptr) call->OnFrame(process, header, std::move(payload));
  return true;
}

// Takes no memory but for the message.
void Hub::Lose(int process, const std::string& why) noexcept {
  std::shared_ptr<Connection> connection;  // goes after the lock
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
    for (auto parked = parked_.begin(); parked != parked_.end();) {
      parked = parked->first.first == process ? parked_.erase(parked) : std::next(parked);
    }
    monitor_.Changed();
  }
  // Those that begin later find the process lost.
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
  meetings_->OnLost(process, lost);
  Segments::The().Lose(process);
  Wires::The().Lose(process);
}

}  // namespace jaxmg
