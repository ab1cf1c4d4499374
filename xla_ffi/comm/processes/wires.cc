#include "xla_ffi/comm/processes/wires.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "xla_ffi/comm/processes/hub.h"
#include "xla_ffi/comm/processes/wire_link.h"

namespace jaxmg {
namespace {

// How long a device may take to end what was enqueued when a process was lost. Nobody can do more
// about it then.
constexpr std::chrono::seconds kLastWait(10);

// Ordinals of a process's devices are below this.
constexpr int kMostDevices = 1024;

// Blocks of a channel that are withdrawn before a rank has come to them: those of failed calls.
constexpr size_t kMostWithdrawn = 1 << 16;

OutFrame WireFrame(FrameType type, const WireChannel& channel, int64_t number = 0) {
  OutFrame frame;
  frame.header.type = type;
  frame.header.from = channel.outgoing ? channel.here : channel.there;
  frame.header.to = channel.outgoing ? channel.there : channel.here;
  frame.header.value = number;
  frame.header.aux = channel.outgoing ? 1 : 0;
  return frame;
}

Status Lost() {
  return Status::Fixed(Code::kUnavailable, "the process from which a block was to come is lost");
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

Wires& Wires::The() { return Forever<Wires>(); }

std::shared_ptr<WirePartner> Wires::PartnerOf(int process) {
  std::shared_ptr<WirePartner>& partner = partners_[process];
  if (partner == nullptr) partner = std::make_shared<WirePartner>();
  return partner;
}

// --- Before blocks pass
// ---------------------------------------------------------------------------

// What this process has, of which the other is told once.
Status Wires::OfferOnce(WirePartner& partner) {
  using Offer = WirePartner::Offer;
  auto lock = monitor_.Lock();
  monitor_.Wait(lock, {Seconds(1e9)}, [&] { return partner.mine_ != Offer::kMaking; });
  if (partner.mine_ == Offer::kMade) return Status::Ok();
  partner.mine_ = Offer::kMaking;
  lock.unlock();
  const Transport transport = Hub::The().transport();
  WireSource* source = source_;
  std::string name;
  Status opened;
  if (transport == Transport::kUnix || transport == Transport::kTcp) {
    opened = Status::Fixed(Code::kUnavailable, "JAXMG_TRANSPORT asks for sockets");
  } else if (source == nullptr) {
    opened = Status::Fixed(Code::kUnavailable, "its devices have none");
  } else {
    opened = Guarded([&] { return source->Open(&name); });
  }
  OutFrame frame;
  frame.header.type = FrameType::kWireOffer;
  frame.header.aux = opened.ok() ? 1 : 0;
  frame.body = opened.ok() ? name : opened.message();
  const Status sent = partner.connection_->Send(std::move(frame));
  lock.lock();
  partner.mine_ = sent.ok() ? Offer::kMade : Offer::kNone;
  if (opened.ok()) partner.my_name_ = name;
  if (!opened.ok()) partner.why_not_ = "here: " + opened.message();
  monitor_.Changed();
  return sent;
}

Status Wires::Meet(int process, const std::shared_ptr<Connection>& connection,
                   Clock::time_point deadline, std::shared_ptr<WirePartner>* partner,
                   std::string* why_not) {
  std::shared_ptr<WirePartner> found;
  {
    auto lock = monitor_.Lock();
    found = PartnerOf(process);
    if (found->connection_ == nullptr) found->connection_ = connection;
  }
  // Or this is told of it from now on.
  JAXMG_RETURN_IF_ERROR(Hub::The().LostBecause(process));
  JAXMG_RETURN_IF_ERROR(OfferOnce(*found));
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
    if (known && found->why_not_.empty()) *partner = found;
    found->in_use_ = *partner != nullptr;
    *why_not = found->why_not_;
  }
  if (lost) return Hub::The().LostBecause(process);
  if (known) return Status::Ok();
  return Error(Code::kDeadlineExceeded, Hub::The().Describe(process),
               " has not said in time by what blocks can pass");
}

WireChannel* Wires::ChannelOf(WirePartner& partner, bool outgoing, int here, int there) {
  auto lock = monitor_.Lock();
  WireChannel& channel = partner.channels_[{outgoing, here, there}];
  if (channel.partner != nullptr) return &channel;
  channel.partner = &partner;
  channel.outgoing = outgoing;
  channel.here = here;
  channel.there = there;
  return &channel;
}

Status Wires::Begin(const std::shared_ptr<WirePartner>& partner, const std::vector<int>& here,
                    const std::vector<int>& there) {
  JAXMG_RETURN_IF_ERROR(StartCourier());
  Status begun;
  ForPairs(here, there, [&](bool outgoing, int mine, int theirs) {
    WireChannel* channel = ChannelOf(*partner, outgoing, mine, theirs);
    if (outgoing && begun.ok()) begun = StartMaking(partner, channel, "");
  });
  return begun;
}

// The sender's end names the wire; the receiver's is made when the name has come. On a thread for
// each, since NCCL lets a thread have but one in the making.
Status Wires::StartMaking(const std::shared_ptr<WirePartner>& partner, WireChannel* channel,
                          std::string id) {
  auto lock = monitor_.Lock();
  if (channel->mine != WireChannel::End::kNone) return Status::Ok();
  const Status started = Guarded([&] {
    std::thread([this, partner, channel, id] { MakeEnd(*partner, *channel, id); }).detach();
    return Status::Ok();
  });
  if (started.ok()) channel->mine = WireChannel::End::kMaking;
  return started;
}

void Wires::MakeEnd(WirePartner& partner, WireChannel& channel, std::string id) noexcept {
  WireSource& source = *source_.load();
  std::unique_ptr<Wire> wire;
  const Status made = Guarded([&]() -> Status {
    if (channel.outgoing) {
      JAXMG_RETURN_IF_ERROR(source.NewId(&id));
      OutFrame frame = WireFrame(FrameType::kWireId, channel);
      frame.body = id;
      JAXMG_RETURN_IF_ERROR(partner.connection_->Send(std::move(frame)));
    }
    return source.Make(channel.here,
                       channel.outgoing ? WireSource::End::kSends : WireSource::End::kReceives, id,
                       channel.given_up, &wire);
  });
  OutFrame frame = WireFrame(FrameType::kWireMade, channel);
  frame.status = made;
  auto lock = monitor_.Lock();  // goes before what is left of the wire
  if (made.ok()) channel.wire = std::move(wire);
  channel.mine = made.ok() ? WireChannel::End::kMade : WireChannel::End::kFailed;
  if (!made.ok() && channel.failure.ok()) channel.failure = made;
  if (channel.wire != nullptr && channel.given_up) channel.wire->Abort();
  partner.connection_->SendOrBreak(std::move(frame));
  monitor_.Changed();
}

Status Wires::Await(int process, WirePartner& partner, const std::vector<int>& here,
                    const std::vector<int>& there, Clock::time_point deadline, Status* failure) {
  using End = WireChannel::End;
  bool all = true, lost = false;
  {
    auto lock = monitor_.Lock();
    const auto decided = [&] {
      if (partner.lost_) return true;
      bool each = true;
      ForPairs(here, there, [&](bool outgoing, int mine, int theirs) {
        const WireChannel& channel = partner.channels_[{outgoing, mine, theirs}];
        const auto done = [](End end) { return end == End::kMade || end == End::kFailed; };
        each = each && done(channel.mine) && done(channel.theirs);
      });
      return each;
    };
    all = monitor_.Wait(lock, {deadline - Clock::now()}, decided);
    lost = partner.lost_;
    ForPairs(here, there, [&](bool outgoing, int mine, int theirs) {
      const WireChannel& channel = partner.channels_[{outgoing, mine, theirs}];
      if (failure->ok()) *failure = channel.failure;
    });
    if (all && !lost && !failure->ok()) {
      partner.failure_ = failure->message();
      partner.in_use_ = false;
    }
  }
  if (lost) return Hub::The().LostBecause(process);
  if (all) return Status::Ok();
  return Error(
      Code::kDeadlineExceeded, "no ", partner.my_name_, " in time between this process and ",
      Hub::The().Describe(process),
      "; JAXMG_RENDEZVOUS_TIMEOUT sets the limit in seconds, and JAXMG_TRANSPORT=tcp takes "
      "another way");
}

// --- Blocks
// ---------------------------------------------------------------------------------------

void Wires::Send(Parcel parcel) {
  auto lock = monitor_.Lock();
  if (parcel.channel->partner->lost_) return;  // its group knows
  waiting_.push_back(std::move(parcel));
  monitor_.Changed();
}

Status Wires::Receive(WireChannel& channel, int64_t number, void* data, size_t bytes) {
  WirePartner& partner = *channel.partner;
  {
    auto lock = monitor_.Lock();
    monitor_.Wait(lock, {Seconds(1e9)}, [&] { return partner.lost_ || !channel.receiving; });
    if (partner.lost_) return Lost();
    if (channel.withdrawn.erase(number) > 0) {
      return Status::Fixed(Code::kAborted, "given up because the sender of a block failed");
    }
    channel.receiving = true;
    channel.accepted = number;
  }
  std::shared_ptr<Event> done;
  Status status = bytes == 0 ? Status::Ok()
                             : Guarded([&] { return channel.wire->Receive(data, bytes, &done); });
  if (status.ok()) {
    partner.connection_->SendOrBreak(WireFrame(FrameType::kWireGo, channel, number));
  }
  {
    auto lock = monitor_.Lock();
    channel.accepted = 0;
  }
  // On the host: nothing is enqueued behind a receive that has not come to its end (README.md).
  if (done != nullptr) status = Guarded([&] { return AwaitPassing(channel, *done); });
  // Nobody knows what one side waits for then.
  if (!status.ok()) partner.connection_->Break();
  auto lock = monitor_.Lock();
  channel.receiving = false;
  monitor_.Changed();
  return status;
}

Status Wires::AwaitPassing(WireChannel& channel, const Event& done) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point lost_since = {};
  for (bool passed = false;;) {
    JAXMG_RETURN_IF_ERROR(channel.wire->HasPassed(done, &passed));
    const bool lost = channel.given_up;
    if (passed) return lost ? Lost() : Status::Ok();
    const Clock::time_point now = Clock::now();
    if (lost && lost_since == Clock::time_point()) lost_since = now;
    if (lost && now - lost_since > kLastWait) return Lost();
    if (now - begin > std::chrono::milliseconds(2)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else {
      std::this_thread::yield();
    }
  }
}

// Every block that was announced is answered: the other side takes it, and then it goes, or says
// that it will not. So no receive is left without its send.
void Wires::Recall(WireLink* link, int from) noexcept {
  constexpr Patience kForever = {Seconds(1e9)};
  const Sender sender = {link, from};
  const auto is_mine = [&](const Parcel& parcel) {
    return parcel.link == link && parcel.from == from;
  };
  std::list<Moving> moving;
  {
    auto lock = monitor_.Lock();
    link->recalled[from] = true;
    ++recalls_;
    monitor_.Wait(lock, kForever, [&] { return busy_ != sender; });
    waiting_.remove_if(is_mine);
    for (const auto& [process, partner] : partners_) {
      for (const auto& [key, channel] : partner->channels_) {
        for (const auto& [number, parcel] : channel.announced) {
          if (!is_mine(parcel)) continue;
          partner->connection_->SendOrBreak(WireFrame(FrameType::kWireWithdraw, channel, number));
        }
      }
    }
    monitor_.Wait(lock, kForever, [&] {
      bool answered = busy_ != sender;
      for (const auto& [process, partner] : partners_) {
        for (auto& [key, channel] : partner->channels_) {
          for (auto one = channel.announced.begin(); one != channel.announced.end();) {
            const bool over = is_mine(one->second) && partner->lost_;
            answered = answered && (over || !is_mine(one->second));
            one = over ? channel.announced.erase(one) : std::next(one);
          }
        }
      }
      return answered;
    });
    --recalls_;
    moving.swap(link->moving[from]);
  }
  for (const Moving& one : moving) {
    (void)Guarded([&] { return AwaitPassing(*one.channel, *one.done); });
  }
}

std::string Wires::Describe(int process) {
  auto lock = monitor_.Lock();
  const auto found = partners_.find(process);
  if (found == partners_.end()) return "";
  const WirePartner& partner = *found->second;
  if (partner.in_use_) return partner.my_name_;
  const std::string& why = partner.failure_.empty() ? partner.why_not_ : partner.failure_;
  if (source_.load() == nullptr || why.empty()) return "";
  return "copies in the host's memory (" + why + ")";
}

// --- The hub's thread
// -----------------------------------------------------------------------------

bool Wires::Came(int process, const FrameHeader& header, Payload payload) {
  if (payload.size > 0 && payload.data == nullptr) return false;
  const std::string body(payload.data ? payload.data.get() : "", payload.data ? payload.size : 0);
  std::shared_ptr<WirePartner> partner;
  {
    auto lock = monitor_.Lock();
    partner = PartnerOf(process);
    if (header.type == FrameType::kWireOffer) {
      partner->theirs_known_ = true;
      if (header.aux == 1) partner->their_name_ = body;
      if (header.aux != 1 && partner->why_not_.empty()) partner->why_not_ = "there: " + body;
      monitor_.Changed();
      return true;
    }
    if (partner->connection_ == nullptr) return false;
  }
  return CameFor(*partner, partner, header, body);
}

bool Wires::CameFor(WirePartner& partner, const std::shared_ptr<WirePartner>& shared,
                    const FrameHeader& header, const std::string& body) {
  if (header.from < 0 || header.from >= kMostDevices || header.to < 0 ||
      header.to >= kMostDevices) {
    return false;
  }
  // Who sends what says which direction it is about.
  const bool outgoing = header.aux == 0;
  WireChannel& channel = *ChannelOf(partner, outgoing, outgoing ? header.from : header.to,
                                    outgoing ? header.to : header.from);
  if (header.type == FrameType::kWireId) {
    return !outgoing && source_.load() != nullptr && StartMaking(shared, &channel, body).ok();
  }
  auto lock = monitor_.Lock();
  switch (header.type) {
    case FrameType::kWireMade:
      channel.theirs = header.code == 0 ? WireChannel::End::kMade : WireChannel::End::kFailed;
      if (header.code != 0) {
        if (channel.failure.ok()) {
          channel.failure = StatusFrom(header.code, body.data(), body.size());
        }
        channel.given_up = true;
        // An end that was never begun is none that anybody waits for.
        if (channel.mine == WireChannel::End::kNone) channel.mine = WireChannel::End::kFailed;
      }
      break;
    case FrameType::kWireGo:
    case FrameType::kWireNo:
      answers_.push_back({&channel, header.value, header.type == FrameType::kWireGo});
      break;
    case FrameType::kWireWithdraw:
      if (channel.accepted == header.value) break;  // go is on its way
      if (channel.withdrawn.size() >= kMostWithdrawn) return false;
      channel.withdrawn.insert(header.value);
      partner.connection_->SendOrBreak(WireFrame(FrameType::kWireNo, channel, header.value));
      break;
    default:
      return false;
  }
  monitor_.Changed();
  return true;
}

void Wires::Lose(int process) noexcept {
  auto lock = monitor_.Lock();
  const auto found = partners_.find(process);
  if (found == partners_.end()) return;
  found->second->lost_ = true;
  found->second->in_use_ = false;
  for (auto& [key, channel] : found->second->channels_) {
    channel.given_up = true;
    if (channel.wire != nullptr) channel.wire->Abort();
  }
  monitor_.Changed();
}

}  // namespace jaxmg
