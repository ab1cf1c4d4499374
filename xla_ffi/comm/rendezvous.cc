#include "xla_ffi/comm/rendezvous.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace jaxmg {
namespace {

// The state of one rendezvous that is not complete.
struct Rendezvous {
  explicit Rendezvous(int size)
      : present(size, false), group(std::make_shared<InProcessGroup>(size)) {}
  std::vector<bool> present;
  int arrival_count = 0;
  Status failure;
  std::shared_ptr<InProcessGroup> group;

  bool over() const { return arrival_count == static_cast<int>(present.size()) || !failure.ok(); }
};

struct FailedCall {
  CallKey key = {};
  Status status;
};

struct Table {
  Monitor monitor;
  // The incomplete rendezvous of each key, oldest first.
  std::map<RendezvousKey, std::deque<std::shared_ptr<Rendezvous>>> open;
  // The last calls that failed, for ranks of theirs that arrive later. 64 entries suffice, because
  // XLA ends a program at its first failure and runs fewer programs at a time.
  std::array<FailedCall, 64> failed;
  size_t next_failed = 0;
};

Table& TheTable() { return Forever<Table>(); }

std::string Ranks(const std::vector<bool>& present, bool which) {
  std::string text;
  for (size_t rank = 0; rank < present.size(); ++rank) {
    if (present[rank] != which) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

Status TimeoutError(const Rendezvous& rendezvous, const char* what, Seconds limit) {
  return Error(Code::kDeadlineExceeded, what, ": after ", limit.count(), " s only rank(s) ",
               Ranks(rendezvous.present, true), " of ", rendezvous.present.size(),
               " came to the call; missing: ", Ranks(rendezvous.present, false),
               ". Every device of the mesh must make the same calls in the same order; "
               "JAXMG_RENDEZVOUS_TIMEOUT sets the limit in seconds");
}

// Requires the lock.
void Fail(Table& table, const CallKey& key, const Status& status) noexcept {
  auto entries = table.open.lower_bound({key, INT64_MIN});
  while (entries != table.open.end() && entries->first.call == key) {
    for (const auto& rendezvous : entries->second) {
      if (rendezvous->failure.ok()) rendezvous->failure = status;
    }
    entries = table.open.erase(entries);
  }
  table.failed[table.next_failed] = {key, status};
  table.next_failed = (table.next_failed + 1) % table.failed.size();
  table.monitor.Notify();
}

const Status* FailureOf(const Table& table, const CallKey& key) {
  for (const FailedCall& call : table.failed) {
    if (!call.status.ok() && call.key == key) return &call.status;
  }
  return nullptr;
}

// Returns the first rendezvous at which this rank has not arrived; adds one if there is none.
// Requires the lock.
std::shared_ptr<Rendezvous> FindOrAdd(Table& table, const RendezvousKey& key, int rank, int size) {
  std::deque<std::shared_ptr<Rendezvous>>& queue = table.open[key];
  for (const auto& candidate : queue) {
    if (static_cast<int>(candidate->present.size()) == size && !candidate->present[rank]) {
      return candidate;
    }
  }
  queue.push_back(std::make_shared<Rendezvous>(size));
  return queue.back();
}

}  // namespace

void PrintNotice(const std::string& waiting) {
  std::fprintf(stderr, "jaxmg: %s, for %d s so far; JAXMG_RENDEZVOUS_TIMEOUT sets the limit\n",
               waiting.c_str(), static_cast<int>(kBeforeNotice.count()));
}

Status JoinRendezvous(const RendezvousKey& key, const char* what, int rank, int size,
                      const WaitPolicy& policy, int64_t value,
                      std::shared_ptr<InProcessGroup>* group) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  auto join = [&]() -> Status {
    if (rank < 0 || rank >= size) {
      return Error(Code::kInvalidArgument, what, ": rank ", rank, " of ", size, " ranks");
    }
    const std::shared_ptr<Rendezvous> rendezvous = FindOrAdd(table, key, rank, size);
    rendezvous->present[rank] = true;
    rendezvous->group->SetRankValue(rank, value);
    if (++rendezvous->arrival_count == size) {
      auto& queue = table.open[key];
      queue.erase(std::find(queue.begin(), queue.end(), rendezvous));
      if (queue.empty()) table.open.erase(key);
      table.monitor.Notify();
    }
    const auto over = [&] { return rendezvous->over(); };
    const WaitPolicy quiet = {std::min<Seconds>(policy.limit, kBeforeNotice), policy.spin};
    bool done = table.monitor.Wait(lock, quiet, over);
    if (!done && policy.limit > quiet.limit) {
      const auto first = std::find(rendezvous->present.begin(), rendezvous->present.end(), true);
      if (first - rendezvous->present.begin() == rank) {  // one line is enough
        PrintNotice(std::string(what) + ": waiting for rank(s) " +
                    Ranks(rendezvous->present, false));
      }
      done = table.monitor.Wait(lock, {policy.limit - quiet.limit}, over);
    }
    if (!done) {
      return TimeoutError(*rendezvous, what, policy.limit);
    }
    *group = rendezvous->group;
    return rendezvous->failure;
  };
  if (const Status* failure = FailureOf(table, key.call)) return *failure;
  const Status status = Guarded(join);
  // Before another rank can arrive and complete the rendezvous.
  if (!status.ok() && FailureOf(table, key.call) == nullptr) Fail(table, key.call, status);
  return status;
}

void FailCall(const CallKey& key, const Status& status) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  if (FailureOf(table, key) == nullptr) Fail(table, key, status);
}

}  // namespace jaxmg
