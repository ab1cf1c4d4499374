// Whether processes that wait for each other make different calls: at the lead (README.md).
#include <algorithm>
#include <utility>

#include "xla_ffi/comm/processes/meetings.h"

namespace jaxmg {
namespace {

// How long processes wait in two calls before the lead asks whether they run different programs. In
// programs that run at one time it is no more than a moment; and two threads that start programs,
// against the rule, may be compiling them in another order.
constexpr std::chrono::seconds kBeforeComparison(1);

bool HasSite(const std::vector<CallName>& names, const CallName& name) {
  return std::any_of(names.begin(), names.end(),
                     [&](const CallName& one) { return one.SameSite(name); });
}

}  // namespace

Status Different(int process, const std::string& text, int other, const std::string& other_text) {
  Hub& hub = Hub::The();
  return Error(Code::kInvalidArgument,
               "the processes of a mesh make different calls: ", hub.Describe(process), " ", text,
               "; ", hub.Describe(other), " ", other_text,
               ". All must make the same calls in the same order, with the same versions of jaxmg");
}

// A site has the same operands in all its executions. XLA numbers executions differently where
// these differ, so processes that pass different ones come to two meetings of one site. Returns
// whether there are two, which have failed then.
bool Meetings::CompareOperands(const Gathering& gathering) {
  const std::string& text = gathering.came.begin()->second.text;
  for (const Gathering& other : gatherings_) {
    if (!other.IsBeside(gathering) || !other.name.SameSite(gathering.name)) continue;
    if (other.came.begin()->second.text == text) continue;
    FailBoth(other, gathering);
    return true;
  }
  return false;
}

// Processes that wait in two calls may have started both, and be about to come to the other one:
// programs run at one time. But where one of them came to its call before it had made the program
// of the other's, and the other likewise, they don't make the same calls in the same order.
void Meetings::ComparePrograms() {
  const Clock::time_point now = Clock::now();
  if (gatherings_.size() < 2 || now < compared_ + kBeforeComparison) return;
  compared_ = now;
  std::vector<Gathering*> waiting;
  for (Gathering& gathering : gatherings_) {
    if (now >= gathering.since + kBeforeComparison) waiting.push_back(&gathering);
  }
  struct Question {
    int process;
    int64_t number;
    CallName name;
  };
  std::vector<Question> questions;  // an answer of this process's own changes the gatherings
  for (Gathering* one : waiting) {
    for (const Gathering* other : waiting) {
      if (!one->IsBeside(*other) || one->name.SameSite(other->name)) continue;
      for (auto& [process, arrival] : one->came) {
        if (other->came.count(process) > 0) continue;
        if (HasSite(arrival.asked, other->name)) break;
        arrival.asked.push_back(other->name);
        questions.push_back({process, arrival.number, other->name});
        break;
      }
    }
  }
  for (const Question& one : questions) AskMade(one.process, one.number, one.name);
}

void Meetings::AskMade(int process, int64_t number, const CallName& name) {
  if (process == Hub::The().me()) {
    if (!HasMadeSite(name.digest, name.index)) NotMade(process, number, name);
    return;
  }
  OutFrame frame;
  frame.header.type = FrameType::kAskMade;
  frame.header.call = number;
  frame.named = true;
  frame.name = name;
  Tell(process, std::move(frame));
}

void Meetings::NotMade(int process, int64_t number, const CallName& name) {
  for (Gathering& gathering : gatherings_) {
    const auto there = gathering.came.find(process);
    if (there == gathering.came.end() || there->second.number != number) continue;
    // No answer but to a question.
    if (!HasSite(there->second.asked, name) || HasSite(there->second.not_made, name)) return;
    there->second.not_made.push_back(name);
    for (const Gathering& other : gatherings_) {
      if (!other.IsBeside(gathering) || !other.name.SameSite(name)) continue;
      if (other.came.count(process) > 0) continue;
      for (const auto& [another, arrival] : other.came) {
        if (gathering.came.count(another) == 0 && HasSite(arrival.not_made, gathering.name)) {
          return FailBoth(gathering, other);
        }
      }
    }
    return;
  }
}

void Meetings::FailBoth(const Gathering& one, const Gathering& other) {
  const auto& [process, arrival] = *one.came.begin();
  const auto& [another, its] = *other.came.begin();
  const Status different = process < another ? Different(process, arrival.text, another, its.text)
                                             : Different(another, its.text, process, arrival.text);
  for (const Gathering* gathering : {&one, &other}) {
    Remember(gathering->name, different);  // for those that have not come to it yet
    FailGathering(*gathering, different);
  }
  gatherings_.remove_if([copies = std::pair(&one, &other)](const Gathering& gathering) {
    return &gathering == copies.first || &gathering == copies.second;
  });
}

}  // namespace jaxmg
