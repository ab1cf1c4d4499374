#include "xla_ffi/comm/processes/links/nccl_channels.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/links/nccl_link.h"

namespace jaxmg {
namespace {

// The time that a device has to finish enqueued operations after a process was lost. Afterwards
// nothing more can be done.
constexpr std::chrono::seconds kLastWait(10);

// Limit for device ordinals in frames.
constexpr int kMostDevices = 1024;

// Limit for blocks of a channel that are withdrawn before a rank receives them. Such blocks belong
// to failed calls.
constexpr size_t kMostWithdrawn = 1 << 16;

OutFrame ChannelFrame(FrameType type, const NcclChannel& channel, int64_t number = 0) {
  OutFrame frame;
  frame.header.type = type;
  frame.header.from = channel.outgoing ? channel.here : channel.there;
  frame.header.to = channel.outgoing ? channel.there : channel.here;
  frame.header.value = number;
  frame.header.aux = channel.outgoing ? 1 : 0;
  return frame;
}

Status LostError() {
  return Status::Fixed(Code::kUnavailable, "the process that should send a block is lost");
}

template <typename Call>
void ForPairs(const std::vector<int>& here, const std::vector<int>& there, const Call& call) {
  for (const bool outgoing : {true, false}) {
    for (const int mine : here) {
      for (const int theirs : there) call(outgoing, mine, theirs);
    }
  }
}

}  // namespace

NcclChannels& NcclChannels::Instance() { return Forever<NcclChannels>(); }

std::shared_ptr<NcclPeer> NcclChannels::FindOrAddPeer(int process) {
  std::shared_ptr<NcclPeer>& peer = peers_[process];
  if (peer == nullptr) peer = std::make_shared<NcclPeer>();
  return peer;
}

// --- Before blocks are sent ---------------------------------------------------------------------

// Initializes the source and tells the other process its name, once.
Status NcclChannels::SendOfferOnce(NcclPeer& peer) {
  using Offer = NcclPeer::Offer;
  auto lock = monitor_.Lock();
  monitor_.Wait(lock, {Seconds(1e9)}, [&] { return peer.mine_ != Offer::kMaking; });
  if (peer.mine_ == Offer::kMade) return Status::Ok();
  peer.mine_ = Offer::kMaking;
  lock.unlock();
  const Transport transport = Hub::Instance().transport();
  ChannelSource* source = source_;
  std::string name;
  Status opened;
  if (transport == Transport::kUnix || transport == Transport::kTcp) {
    opened = Status::Fixed(Code::kUnavailable, "JAXMG_TRANSPORT requests sockets");
  } else if (source == nullptr) {
    opened = Status::Fixed(Code::kUnavailable, "its devices can't use NCCL");
  } else {
    opened = Guarded([&] { return source->Open(&name); });
  }
  OutFrame frame;
  frame.header.type = FrameType::kNcclOffer;
  frame.header.aux = opened.ok() ? 1 : 0;
  frame.body = opened.ok() ? name : opened.message();
  const Status sent = peer.connection_->Send(std::move(frame));
  lock.lock();
  peer.mine_ = sent.ok() ? Offer::kMade : Offer::kNone;
  if (opened.ok()) peer.my_name_ = name;
  if (!opened.ok()) peer.why_not_ = "here: " + opened.message();
  monitor_.Notify();
  return sent;
}

Status NcclChannels::Negotiate(int process, const std::shared_ptr<Connection>& connection,
                               Clock::time_point deadline, std::shared_ptr<NcclPeer>* peer,
                               std::string* why_not) {
  std::shared_ptr<NcclPeer> found;
  {
    auto lock = monitor_.Lock();
    found = FindOrAddPeer(process);
    if (found->connection_ == nullptr) found->connection_ = connection;
  }
  // Checked after registration: a later loss is reported to this object.
  JAXMG_RETURN_IF_ERROR(Hub::Instance().LossOf(process));
  JAXMG_RETURN_IF_ERROR(SendOfferOnce(*found));
  bool known = false, lost = false;
  {
    auto lock = monitor_.Lock();
    monitor_.Wait(lock, {deadline - Clock::now()},
                  [&] { return found->theirs_known_ || found->lost_; });
    known = found->theirs_known_;
    lost = found->lost_;
    if (known && found->why_not_.empty() && found->my_name_ != found->their_name_) {
      found->why_not_ = found->their_name_ + " there, " + found->my_name_ + " here";
    }
    if (known && found->why_not_.empty()) *peer = found;
    found->in_use_ = *peer != nullptr;
    *why_not = found->why_not_;
  }
  if (lost) return Hub::Instance().LossOf(process);
  if (known) return Status::Ok();
  return Error(Code::kDeadlineExceeded, Hub::Instance().Describe(process),
               " did not report in time how it can exchange blocks");
}

NcclChannel* NcclChannels::ChannelOf(NcclPeer& peer, bool outgoing, int here, int there) {
  auto lock = monitor_.Lock();
  NcclChannel& channel = peer.channels_[{outgoing, here, there}];
  if (channel.peer != nullptr) return &channel;
  channel.peer = &peer;
  channel.outgoing = outgoing;
  channel.here = here;
  channel.there = there;
  return &channel;
}

Status NcclChannels::StartMakingAll(const std::shared_ptr<NcclPeer>& peer,
                                    const std::vector<int>& here, const std::vector<int>& there) {
  JAXMG_RETURN_IF_ERROR(StartSenderThread());
  Status begun;
  ForPairs(here, there, [&](bool outgoing, int mine, int theirs) {
    NcclChannel* channel = ChannelOf(*peer, outgoing, mine, theirs);
    if (outgoing && begun.ok()) begun = StartMaking(peer, channel, "");
  });
  return begun;
}

// Starts to make this process's end of a channel. The sending end creates the identifier; the
// receiving end is made when the identifier arrives. Each end is made on its own thread, because a
// thread can't have several NCCL initializations in progress.
Status NcclChannels::StartMaking(const std::shared_ptr<NcclPeer>& peer, NcclChannel* channel,
                                 std::string id) {
  auto lock = monitor_.Lock();
  if (channel->mine != NcclChannel::State::kNone) return Status::Ok();
  const Status started = Guarded([&] {
    std::thread([this, peer, channel, id] { MakeEnd(*peer, *channel, id); }).detach();
    return Status::Ok();
  });
  if (started.ok()) channel->mine = NcclChannel::State::kMaking;
  return started;
}

void NcclChannels::MakeEnd(NcclPeer& peer, NcclChannel& channel, std::string id) noexcept {
  ChannelSource& source = *source_.load();
  std::unique_ptr<ChannelEnd> end;
  const Status made = Guarded([&]() -> Status {
    if (channel.outgoing) {
      JAXMG_RETURN_IF_ERROR(source.NewId(&id));
      OutFrame frame = ChannelFrame(FrameType::kNcclId, channel);
      frame.body = id;
      JAXMG_RETURN_IF_ERROR(peer.connection_->Send(std::move(frame)));
    }
    return source.Make(
        channel.here, channel.outgoing ? ChannelSource::End::kSends : ChannelSource::End::kReceives,
        id, channel.canceled, &end);
  });
  OutFrame frame = ChannelFrame(FrameType::kNcclMade, channel);
  frame.status = made;
  auto lock = monitor_.Lock();  // released before the failed end is destroyed
  if (made.ok()) channel.end = std::move(end);
  channel.mine = made.ok() ? NcclChannel::State::kMade : NcclChannel::State::kFailed;
  if (!made.ok() && channel.failure.ok()) channel.failure = made;
  if (channel.end != nullptr && channel.canceled) channel.end->Abort();
  peer.connection_->SendOrBreak(std::move(frame));
  monitor_.Notify();
}

Status NcclChannels::Await(int process, NcclPeer& peer, const std::vector<int>& here,
                           const std::vector<int>& there, Clock::time_point deadline,
                           Status* failure) {
  using State = NcclChannel::State;
  bool all = true, lost = false;
  {
    auto lock = monitor_.Lock();
    const auto decided = [&] {
      if (peer.lost_) return true;
      bool each = true;
      ForPairs(here, there, [&](bool outgoing, int mine, int theirs) {
        const NcclChannel& channel = peer.channels_[{outgoing, mine, theirs}];
        const auto done = [](State state) {
          return state == State::kMade || state == State::kFailed;
        };
        each = each && done(channel.mine) && done(channel.theirs);
      });
      return each;
    };
    all = monitor_.Wait(lock, {deadline - Clock::now()}, decided);
    lost = peer.lost_;
    ForPairs(here, there, [&](bool outgoing, int mine, int theirs) {
      const NcclChannel& channel = peer.channels_[{outgoing, mine, theirs}];
      if (failure->ok()) *failure = channel.failure;
    });
    if (all && !lost && !failure->ok()) {
      peer.failure_ = failure->message();
      peer.in_use_ = false;
    }
  }
  if (lost) return Hub::Instance().LossOf(process);
  if (all) return Status::Ok();
  return Error(
      Code::kDeadlineExceeded, "no connection by ", peer.my_name_,
      " in time between this process and ", Hub::Instance().Describe(process),
      "; JAXMG_RENDEZVOUS_TIMEOUT sets the limit in seconds, and JAXMG_TRANSPORT=tcp avoids NCCL");
}

// --- Blocks -------------------------------------------------------------------------------------

void NcclChannels::Send(PendingSend pending) {
  auto lock = monitor_.Lock();
  if (pending.channel->peer->lost_) return;  // the group learns of the loss
  waiting_.push_back(std::move(pending));
  monitor_.Notify();
}

Status NcclChannels::Receive(NcclChannel& channel, int64_t number, void* data, size_t bytes) {
  NcclPeer& peer = *channel.peer;
  {
    auto lock = monitor_.Lock();
    monitor_.Wait(lock, {Seconds(1e9)}, [&] { return peer.lost_ || !channel.receiving; });
    if (peer.lost_) return LostError();
    if (channel.withdrawn.erase(number) > 0) {
      return Status::Fixed(Code::kAborted, "given up because the sender of a block failed");
    }
    channel.receiving = true;
    channel.accepted = number;
  }
  std::shared_ptr<Event> done;
  Status status =
      bytes == 0 ? Status::Ok() : Guarded([&] { return channel.end->Receive(data, bytes, &done); });
  if (status.ok()) {
    peer.connection_->SendOrBreak(ChannelFrame(FrameType::kNcclGo, channel, number));
  }
  {
    auto lock = monitor_.Lock();
    channel.accepted = 0;
  }
  // Waits on the host: nothing may be enqueued after an incomplete receive (README.md).
  if (done != nullptr) status = Guarded([&] { return AwaitEvent(channel, *done); });
  // After a failure the state of the other side is unknown.
  if (!status.ok()) peer.connection_->Break();
  auto lock = monitor_.Lock();
  channel.receiving = false;
  monitor_.Notify();
  return status;
}

Status NcclChannels::AwaitEvent(NcclChannel& channel, const Event& done) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point lost_since = {};
  for (bool passed = false;;) {
    JAXMG_RETURN_IF_ERROR(channel.end->HasPassed(done, &passed));
    const bool lost = channel.canceled;
    if (passed) return lost ? LostError() : Status::Ok();
    const Clock::time_point now = Clock::now();
    if (lost && lost_since == Clock::time_point()) lost_since = now;
    if (lost && now - lost_since > kLastWait) return LostError();
    if (now - begin > std::chrono::milliseconds(2)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else {
      std::this_thread::yield();
    }
  }
}

// Every announced block gets an answer: either the other side accepts it, and the block is sent, or
// it confirms the withdrawal. So every receive has its send.
void NcclChannels::Recall(NcclLink* link, int from) noexcept {
  constexpr WaitPolicy kForever = {Seconds(1e9)};
  const Sender sender = {link, from};
  const auto is_mine = [&](const PendingSend& pending) {
    return pending.link == link && pending.from == from;
  };
  std::list<EnqueuedSend> enqueued;
  {
    auto lock = monitor_.Lock();
    link->recalled[from] = true;
    ++recalls_;
    monitor_.Wait(lock, kForever, [&] { return busy_ != sender; });
    waiting_.remove_if(is_mine);
    for (const auto& [process, peer] : peers_) {
      for (const auto& [key, channel] : peer->channels_) {
        for (const auto& [number, pending] : channel.announced) {
          if (!is_mine(pending)) continue;
          peer->connection_->SendOrBreak(ChannelFrame(FrameType::kNcclWithdraw, channel, number));
        }
      }
    }
    monitor_.Wait(lock, kForever, [&] {
      bool answered = busy_ != sender;
      for (const auto& [process, peer] : peers_) {
        for (auto& [key, channel] : peer->channels_) {
          for (auto one = channel.announced.begin(); one != channel.announced.end();) {
            const bool over = is_mine(one->second) && peer->lost_;
            answered = answered && (over || !is_mine(one->second));
            one = over ? channel.announced.erase(one) : std::next(one);
          }
        }
      }
      return answered;
    });
    --recalls_;
    enqueued.swap(link->enqueued[from]);
  }
  for (const EnqueuedSend& one : enqueued) {
    (void)Guarded([&] { return AwaitEvent(*one.channel, *one.done); });
  }
}

std::string NcclChannels::Describe(int process) {
  auto lock = monitor_.Lock();
  const auto found = peers_.find(process);
  if (found == peers_.end()) return "";
  const NcclPeer& peer = *found->second;
  if (peer.in_use_) return peer.my_name_;
  const std::string& why = peer.failure_.empty() ? peer.why_not_ : peer.failure_;
  if (source_.load() == nullptr || why.empty()) return "";
  return "copies in the host's memory (" + why + ")";
}

// --- The hub's thread ---------------------------------------------------------------------------

bool NcclChannels::OnFrame(int process, const FrameHeader& header, Payload payload) {
  if (payload.size > 0 && payload.data == nullptr) return false;
  const std::string body(payload.data ? payload.data.get() : "", payload.data ? payload.size : 0);
  std::shared_ptr<NcclPeer> peer;
  {
    auto lock = monitor_.Lock();
    peer = FindOrAddPeer(process);
    if (header.type == FrameType::kNcclOffer) {
      peer->theirs_known_ = true;
      if (header.aux == 1) peer->their_name_ = body;
      if (header.aux != 1 && peer->why_not_.empty()) peer->why_not_ = "there: " + body;
      monitor_.Notify();
      return true;
    }
    if (peer->connection_ == nullptr) return false;
  }
  return OnChannelFrame(*peer, peer, header, body);
}

bool NcclChannels::OnChannelFrame(NcclPeer& peer, const std::shared_ptr<NcclPeer>& shared,
                                  const FrameHeader& header, const std::string& body) {
  if (header.from < 0 || header.from >= kMostDevices || header.to < 0 ||
      header.to >= kMostDevices) {
    return false;
  }
  // `aux` says which side sent the frame, which determines the channel's direction.
  const bool outgoing = header.aux == 0;
  NcclChannel& channel = *ChannelOf(peer, outgoing, outgoing ? header.from : header.to,
                                    outgoing ? header.to : header.from);
  if (header.type == FrameType::kNcclId) {
    return !outgoing && source_.load() != nullptr && StartMaking(shared, &channel, body).ok();
  }
  auto lock = monitor_.Lock();
  switch (header.type) {
    case FrameType::kNcclMade:
      channel.theirs = header.code == 0 ? NcclChannel::State::kMade : NcclChannel::State::kFailed;
      if (header.code != 0) {
        if (channel.failure.ok()) {
          channel.failure = StatusFrom(header.code, body.data(), body.size());
        }
        channel.canceled = true;
        // An end whose creation has not started counts as failed.
        if (channel.mine == NcclChannel::State::kNone) channel.mine = NcclChannel::State::kFailed;
      }
      break;
    case FrameType::kNcclGo:
    case FrameType::kNcclNo:
      answers_.push_back({&channel, header.value, header.type == FrameType::kNcclGo});
      break;
    case FrameType::kNcclWithdraw:
      if (channel.accepted == header.value) break;  // kNcclGo is on its way
      if (channel.withdrawn.size() >= kMostWithdrawn) return false;
      channel.withdrawn.insert(header.value);
      peer.connection_->SendOrBreak(ChannelFrame(FrameType::kNcclNo, channel, header.value));
      break;
    default:
      return false;
  }
  monitor_.Notify();
  return true;
}

void NcclChannels::Lose(int process) noexcept {
  auto lock = monitor_.Lock();
  const auto found = peers_.find(process);
  if (found == peers_.end()) return;
  found->second->lost_ = true;
  found->second->in_use_ = false;
  for (auto& [key, channel] : found->second->channels_) {
    channel.canceled = true;
    if (channel.end != nullptr) channel.end->Abort();
  }
  monitor_.Notify();
}

}  // namespace jaxmg
