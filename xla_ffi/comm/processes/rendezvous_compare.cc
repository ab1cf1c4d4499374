// Detects processes that wait for each other because they make different calls. Runs at the lead
// (README.md).
#include <algorithm>
#include <utility>

#include "xla_ffi/comm/processes/rendezvous_registry.h"

namespace jaxmg {
namespace {

// How long processes wait in two calls before the lead asks whether they run different programs.
// Concurrent programs wait only a moment; but two threads that start programs, which the rules
// forbid, may be compiling them in different orders.
constexpr std::chrono::seconds kBeforeComparison(1);

bool ContainsCallSite(const std::vector<CallName>& names, const CallName& name) {
  return std::any_of(names.begin(), names.end(),
                     [&](const CallName& one) { return one.IsSameCallSite(name); });
}

}  // namespace

Status DifferentCallsError(int process, const std::string& text, int other,
                           const std::string& other_text) {
  Hub& hub = Hub::The();
  return Error(Code::kInvalidArgument,
               "the processes of a mesh make different calls: ", hub.Describe(process), " ", text,
               "; ", hub.Describe(other), " ", other_text,
               ". All must make the same calls in the same order, with the same versions of jaxmg");
}

// A call site has the same operands in all its executions. XLA numbers executions differently if
// the operands differ, so processes that pass different operands arrive at two rendezvous of one
// call site. Returns true if there are two; both have failed then.
bool RendezvousRegistry::CompareOperands(const PendingRendezvous& pending) {
  const std::string& text = pending.arrivals.begin()->second.text;
  for (const PendingRendezvous& other : pending_) {
    if (!other.HasSameProcesses(pending) || !other.name.IsSameCallSite(pending.name)) continue;
    if (other.arrivals.begin()->second.text == text) continue;
    FailBoth(other, pending);
    return true;
  }
  return false;
}

// Processes that wait in two calls may have started both and be about to arrive at the other one,
// because programs run concurrently. But if one of them arrived at its call before it had made the
// program of the other's, and the other likewise, they don't make the same calls in the same order.
void RendezvousRegistry::ComparePrograms() {
  const Clock::time_point now = Clock::now();
  if (pending_.size() < 2 || now < compared_ + kBeforeComparison) return;
  compared_ = now;
  std::vector<PendingRendezvous*> waiting;
  for (PendingRendezvous& pending : pending_) {
    if (now >= pending.since + kBeforeComparison) waiting.push_back(&pending);
  }
  struct Question {
    int process;
    int64_t number;
    CallName name;
  };
  std::vector<Question> questions;  // an answer of this process changes the pending rendezvous
  for (PendingRendezvous* one : waiting) {
    for (const PendingRendezvous* other : waiting) {
      if (!one->HasSameProcesses(*other) || one->name.IsSameCallSite(other->name)) continue;
      for (auto& [process, arrival] : one->arrivals) {
        if (other->arrivals.count(process) > 0) continue;
        if (ContainsCallSite(arrival.asked, other->name)) break;
        arrival.asked.push_back(other->name);
        questions.push_back({process, arrival.number, other->name});
        break;
      }
    }
  }
  for (const Question& one : questions) AskWhetherMade(one.process, one.number, one.name);
}

void RendezvousRegistry::AskWhetherMade(int process, int64_t number, const CallName& name) {
  if (process == Hub::The().me()) {
    if (!HasMadeCallSite(name.digest, name.index)) RecordNotMade(process, number, name);
    return;
  }
  OutFrame frame;
  frame.header.type = FrameType::kAskMade;
  frame.header.call = number;
  frame.has_name = true;
  frame.name = name;
  SendTo(process, std::move(frame));
}

void RendezvousRegistry::RecordNotMade(int process, int64_t number, const CallName& name) {
  for (PendingRendezvous& pending : pending_) {
    const auto there = pending.arrivals.find(process);
    if (there == pending.arrivals.end() || there->second.number != number) continue;
    // Ignore answers that were not asked for.
    if (!ContainsCallSite(there->second.asked, name) ||
        ContainsCallSite(there->second.not_made, name))
      return;
    there->second.not_made.push_back(name);
    for (const PendingRendezvous& other : pending_) {
      if (!other.HasSameProcesses(pending) || !other.name.IsSameCallSite(name)) continue;
      if (other.arrivals.count(process) > 0) continue;
      for (const auto& [another, arrival] : other.arrivals) {
        if (pending.arrivals.count(another) == 0 &&
            ContainsCallSite(arrival.not_made, pending.name)) {
          return FailBoth(pending, other);
        }
      }
    }
    return;
  }
}

void RendezvousRegistry::FailBoth(const PendingRendezvous& one, const PendingRendezvous& other) {
  const auto& [process, arrival] = *one.arrivals.begin();
  const auto& [another, its] = *other.arrivals.begin();
  const Status different = process < another
                               ? DifferentCallsError(process, arrival.text, another, its.text)
                               : DifferentCallsError(another, its.text, process, arrival.text);
  for (const PendingRendezvous* pending : {&one, &other}) {
    RememberFailure(pending->name, different);  // for processes that have not arrived yet
    FailPending(*pending, different);
  }
  pending_.remove_if([copies = std::pair(&one, &other)](const PendingRendezvous& pending) {
    return &pending == copies.first || &pending == copies.second;
  });
}

}  // namespace jaxmg
