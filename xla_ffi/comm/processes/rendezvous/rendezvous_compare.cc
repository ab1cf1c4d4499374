// Detects processes that pass different operands to one call. Runs at the lead (README.md).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/comm/processes/rendezvous/rendezvous_registry.h"

namespace jaxmg {
namespace {

// A part of a call's text: its name, in the caller's words, and its value.
struct Item {
  std::string name, value;
};

// The words that precede values in texts, and the names of these values.
constexpr std::pair<const char*, const char*> kWords[] = {
    {"jaxmg ", "the version of jaxmg"},
    {"b of ", "the shape of b"},
    {"blocks of ", "the shape of a device's rows"},
    {"ranks ", "the number of devices"},
    {"tile ", "the tile width"},
    {"products ", "the precision"},
    {"check_b ", "the check of b"},
};

Item ItemOf(const std::string& part) {
  for (const auto& [word, name] : kWords) {
    if (part.rfind(word, 0) == 0) return {name, part.substr(std::string(word).size())};
  }
  const size_t space = part.find(' ');
  if (space == std::string::npos) return {"the dtype", part};
  return {part.substr(0, space), part.substr(space + 1)};
}

// Splits texts such as "potrs (backend native, n 64), float64, blocks of 32 x 64, jaxmg 2.0.0".
std::vector<Item> ItemsOf(const std::string& text) {
  const size_t open = text.find(" (");
  std::vector<Item> items = {{"the routine", text.substr(0, open)}};
  if (open == std::string::npos) return items;
  std::string rest = text.substr(open + 2);
  if (const size_t close = rest.find(')'); close != std::string::npos) rest.erase(close, 1);
  for (size_t end = 0; !rest.empty(); rest.erase(0, end)) {
    const size_t comma = rest.find(", ");
    items.push_back(ItemOf(rest.substr(0, comma)));
    end = comma == std::string::npos ? rest.size() : comma + 2;
  }
  return items;
}

}  // namespace

std::string DescribeDifference(int process, const std::string& text, int other,
                               const std::string& other_text) {
  const std::vector<Item> items = ItemsOf(text), others = ItemsOf(other_text);
  std::string differences;
  for (const Item& item : items) {
    const auto same = std::find_if(others.begin(), others.end(),
                                   [&](const Item& one) { return one.name == item.name; });
    if (same == others.end() || same->value == item.value) continue;
    // Shapes usually differ because an earlier item, such as n, does. If the routine differs, so do
    // all other items.
    if (item.name.rfind("the shape", 0) == 0 && !differences.empty()) continue;
    differences += (differences.empty() ? "" : ", ") + item.name + " is " + item.value +
                   " in process " + std::to_string(process) + " and " + same->value +
                   " in process " + std::to_string(other);
    if (item.name == "the routine") break;
  }
  return differences.empty() ? "two programs contain this call" : differences;
}

Status DifferentCallsError(int process, const std::string& text, int other,
                           const std::string& other_text) {
  Hub& hub = Hub::Instance();
  return Error(Code::kInvalidArgument, DescribeDifference(process, text, other, other_text),
               ": the processes of a mesh make different calls: ", hub.Describe(process), " ", text,
               "; ", hub.Describe(other), " ", other_text,
               ". All must make the same calls in the same order, with the same versions of jaxmg");
}

// A call site has the same operands in all its executions. XLA numbers executions differently if
// the operands differ, so processes that pass different operands arrive at two rendezvous of one
// call site. Returns true if there are two such rendezvous, and fails both.
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
