// Finds processes that wait for each other in different calls: cycles of waits (README.md).
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "xla_ffi/comm/processes/rendezvous/rendezvous_registry.h"

namespace jaxmg {
namespace {

// How long a call waits before the search begins at it, and the time between two rounds.
constexpr std::chrono::seconds kBeforeSearch(1), kRound(1);
// How long answers to the second round may still arrive. Then all detected cycles are failed
// together, because the first failure would break the others.
constexpr std::chrono::milliseconds kLastAnswers(250);

struct PackedChain {
  int32_t lead, process;
  int64_t number, round;
  int64_t count;
};
struct PackedWait {
  int32_t process, lead;
  int64_t number;
  int64_t text_size;
};

template <typename T>
void Append(const T& value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Pack(const WaitChain& chain) {
  std::string body;
  Append(PackedChain{chain.lead, chain.process, chain.number, chain.round,
                     static_cast<int64_t>(chain.waits.size())},
         &body);
  for (const Wait& wait : chain.waits) {
    Append(PackedWait{wait.process, wait.lead, wait.number, static_cast<int64_t>(wait.text.size())},
           &body);
    body += wait.text;
  }
  return body;
}

// Reads a value from the front of `*bytes` and removes it there.
template <typename T>
bool Take(std::string* bytes, T* value) {
  if (bytes->size() < sizeof(*value)) return false;
  std::memcpy(value, bytes->data(), sizeof(*value));
  bytes->erase(0, sizeof(*value));
  return true;
}

bool Unpack(std::string* bytes, WaitChain* chain) {
  PackedChain packed;
  if (!Take(bytes, &packed) || packed.count < 0 ||
      packed.count > static_cast<int64_t>(WaitChain::kLongest)) {
    return false;
  }
  *chain = {packed.lead, packed.process, packed.number, packed.round};
  for (int64_t i = 0; i < packed.count; ++i) {
    PackedWait wait;
    if (!Take(bytes, &wait) || wait.text_size < 0 ||
        wait.text_size > static_cast<int64_t>(bytes->size())) {
      return false;
    }
    const size_t size = static_cast<size_t>(wait.text_size);
    chain->waits.push_back({wait.process, wait.lead, wait.number, bytes->substr(0, size)});
    bytes->erase(0, size);
  }
  return true;
}

OutFrame ChainFrame(FrameType type, const WaitChain& chain) {
  OutFrame frame;
  frame.header.type = type;
  frame.body = Pack(chain);
  return frame;
}

Status CycleError(const WaitChain& cycle) {
  std::vector<Wait> waits = cycle.waits;
  std::sort(waits.begin(), waits.end(),
            [](const Wait& one, const Wait& other) { return one.process < other.process; });
  std::string text;
  const auto call = [](const Wait& wait) { return wait.text.substr(0, wait.text.find('\n')); };
  for (const Wait& wait : waits) {
    text += (text.empty() ? "" : "; ") + wait.text.substr(wait.text.find('\n') + 1) + " waits in " +
            call(wait);
  }
  const Wait& first = waits.front();
  const auto other = std::find_if(waits.begin(), waits.end(),
                                  [&](const Wait& wait) { return call(wait) != call(first); });
  const Wait& second = other == waits.end() ? waits.back() : *other;
  return Error(Code::kInvalidArgument,
               DescribeDifference(first.process, call(first), second.process, call(second)),
               ": the processes of a mesh make different calls, or the same calls in different "
               "orders: ",
               text,
               ". All must make the same calls in the same order, with the same versions of jaxmg");
}

bool Intersect(const std::vector<int64_t>& one, const std::vector<int64_t>& other) {
  return std::any_of(one.begin(), one.end(), [&](int64_t device) {
    return std::find(other.begin(), other.end(), device) != other.end();
  });
}

}  // namespace

RendezvousRegistry::Entry::Entry(RendezvousRegistry& registry, const Presence& presence)
    : registry_(registry) {
  auto lock = registry_.monitor_.Lock();
  for (const Presence& other : registry_.present_) {
    if (presence.device >= 0 && other.device == presence.device &&
        other.on_host == presence.on_host && other.name.run != presence.name.run) {
      registry_.concurrent_ = true;
    }
  }
  here_ = registry_.present_.insert(registry_.present_.end(), presence);
}

RendezvousRegistry::Entry::~Entry() {
  auto lock = registry_.monitor_.Lock();
  registry_.present_.erase(here_);
}

// Returns whether this process, in which `call` waits, can arrive at the other call only after
// `call` is complete, provided that it runs its programs from one thread.
bool RendezvousRegistry::WaitsBefore(const PendingCall& call, const CallName& missing) const {
  if (call.name.IsSameCall(missing)) return false;  // in another group of its ranks
  // This process made the program of `call` before that of `missing`, which doesn't exist yet.
  if (!HasMadeCallSite(missing.digest, missing.index)) return true;
  // If `missing` needs devices of `call`: a device runs one program after the other.
  const auto known = uses_.find({missing.digest, missing.index, missing.group});
  if (concurrent_ || known == uses_.end()) return false;
  const DeviceUse &use = call.use, &other = known->second;
  if (!use.in_order || !other.in_order) return false;
  // On the host the calls of one program may run concurrently, and XLA keeps programs in order only
  // if they use the same devices.
  if (use.on_host) return call.name.run != missing.run && use.devices == other.devices;
  return Intersect(use.devices, other.devices);
}

Clock::time_point RendezvousRegistry::SearchCycles() {
  FailConfirmed();
  if (pending_.empty()) return Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  if (now >= searched_ + kRound) {
    searched_ = now;
    ++round_;
    for (PendingRendezvous& pending : pending_) {
      pending.cycles_before = std::move(pending.cycles);
      pending.cycles.clear();
      pending.searches.clear();
    }
    for (PendingRendezvous& pending : pending_) {
      if (now < pending.since + kBeforeSearch) continue;
      const auto& [process, arrival] = *pending.arrivals.begin();
      AskMissing(pending, {Hub::Instance().me(), process, arrival.number, round_});
    }
  }
  const bool suspect =
      std::any_of(pending_.begin(), pending_.end(),
                  [](const PendingRendezvous& one) { return !one.cycles_before.empty(); });
  return suspect ? std::min(now + kLastAnswers, searched_ + kRound) : searched_ + kRound;
}

// At the lead: asks each process that has not arrived for its waits, once per search.
void RendezvousRegistry::AskMissing(PendingRendezvous& pending, const WaitChain& chain) {
  if (!pending.searches.insert(chain.Search()).second) return;
  std::set<int> missing(pending.processes.begin(), pending.processes.end());
  for (const auto& [process, arrival] : pending.arrivals) missing.erase(process);
  for (const int process : missing) {
    if (process == Hub::Instance().me()) {
      AnswerWaits(pending.name, chain);
      continue;
    }
    OutFrame frame = ChainFrame(FrameType::kAskWaits, chain);
    frame.has_name = true;
    frame.name = pending.name;
    SendTo(process, std::move(frame));
  }
}

// At a process that has not arrived at `missing`: answers to the leads of the calls in which it
// waits and which must complete first.
void RendezvousRegistry::AnswerWaits(const CallName& missing, const WaitChain& chain) {
  for (const Presence& presence : present_) {
    if (presence.name.IsSameCall(missing)) return;  // some rank is on its way to `missing`
  }
  for (const auto& [number, call] : waiting_) {
    if (call->over() || !WaitsBefore(*call, missing)) continue;
    const int lead = call->group->lead();
    if (lead == Hub::Instance().me()) {
      ExtendChain(lead, number, chain);
      continue;
    }
    OutFrame frame = ChainFrame(FrameType::kWaits, chain);
    frame.header.call = number;
    SendTo(lead, std::move(frame));
  }
}

// At the lead of the call in which the process waits: adds the wait to the chain.
void RendezvousRegistry::ExtendChain(int process, int64_t number, WaitChain chain) {
  const auto pending = FindArrival(process, number);
  if (pending == pending_.end() || chain.waits.size() >= WaitChain::kLongest) return;
  Hub& hub = Hub::Instance();
  chain.waits.push_back(
      {process, hub.me(), number, pending->arrivals[process].text + "\n" + hub.Describe(process)});
  const auto first = pending->arrivals.find(chain.process);
  if (chain.lead != hub.me() || first == pending->arrivals.end() ||
      first->second.number != chain.number) {
    return AskMissing(*pending, chain);
  }
  if (chain.round != round_) return;  // an answer to an earlier round
  // These waits were also found one round ago, so all of them have lasted since then: nothing ends
  // them.
  if (pending->cycles_before.count(chain) > 0 && pending->confirmed.empty()) {
    pending->confirmed.push_back(chain);
  }
  pending->cycles.insert(std::move(chain));
}

std::list<PendingRendezvous>::iterator RendezvousRegistry::FindArrival(int process,
                                                                       int64_t number) {
  return std::find_if(pending_.begin(), pending_.end(), [&](const PendingRendezvous& pending) {
    const auto there = pending.arrivals.find(process);
    return there != pending.arrivals.end() && there->second.number == number;
  });
}

void RendezvousRegistry::FailConfirmed() {
  std::vector<WaitChain> cycles;
  for (const PendingRendezvous& pending : pending_) {
    cycles.insert(cycles.end(), pending.confirmed.begin(), pending.confirmed.end());
  }
  for (const WaitChain& cycle : cycles) {
    const Status status = CycleError(cycle);
    for (const Wait& wait : cycle.waits) {
      if (wait.lead == Hub::Instance().me()) FailAtLead(wait, status);
    }
    FailCycle(cycle, 0, status);
  }
}

// Fails the calls of the cycle's waits from `next` on, at their leads. Two leads may not be
// connected, but each is connected with the processes that wait. So the frame takes the path of the
// search. The last wait is in the call from which the search began.
void RendezvousRegistry::FailCycle(const WaitChain& cycle, size_t next, const Status& status) {
  const int me = Hub::Instance().me();
  for (; next + 1 < cycle.waits.size(); ++next) {
    const Wait& wait = cycle.waits[next];
    if (wait.process == me && wait.lead == me) {
      FailAtLead(wait, status);
      continue;
    }
    const bool here = wait.process == me;
    OutFrame frame = ChainFrame(here ? FrameType::kWaits : FrameType::kAskWaits, cycle);
    frame.has_name = !here;
    frame.header.value = static_cast<int64_t>(next);
    frame.status = status;
    return SendTo(here ? wait.lead : wait.process, std::move(frame));
  }
}

void RendezvousRegistry::FailAtLead(const Wait& wait, const Status& status) {
  const auto pending = FindArrival(wait.process, wait.number);
  if (pending == pending_.end()) return;
  RememberFailure(pending->name, status);  // for processes that have not arrived yet
  FailPending(*pending, status);
  pending_.erase(pending);
}

void RendezvousRegistry::HandleWaitsFrame(int process, const FrameHeader& header,
                                          const Payload& payload) {
  const bool asks = header.type == FrameType::kAskWaits;
  std::string bytes(payload.data.get(), payload.data == nullptr ? 0 : payload.size);
  CallName missing;
  WaitChain chain;
  if ((asks && !Take(&bytes, &missing)) || !Unpack(&bytes, &chain)) return;
  if (header.code == 0) {
    return asks ? AnswerWaits(missing, chain) : ExtendChain(process, header.call, std::move(chain));
  }
  const Status status = StatusFrom(header.code, bytes.data(), bytes.size());
  if (header.value < 0 || header.value >= static_cast<int64_t>(chain.waits.size())) return;
  const size_t index = static_cast<size_t>(header.value);
  if (!asks) FailAtLead(chain.waits[index], status);
  FailCycle(chain, asks ? index : index + 1, status);
}

}  // namespace jaxmg
