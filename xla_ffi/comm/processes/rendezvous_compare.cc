// Detects processes that pass different operands to one call. Runs at the lead (README.md).
#include <utility>

#include "xla_ffi/comm/processes/rendezvous_registry.h"

namespace jaxmg {

Status DifferentCallsError(int process, const std::string& text, int other,
                           const std::string& other_text) {
  Hub& hub = Hub::Instance();
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
