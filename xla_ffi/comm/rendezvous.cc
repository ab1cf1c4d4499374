#include "xla_ffi/comm/rendezvous.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/comm/in_process.h"

namespace jaxmg {

// The state of one incomplete rendezvous.
struct Rendezvous {
  Rendezvous(int size, bool for_all) : for_all(for_all), present(size, false) {}
  const bool for_all;  // whether this is a MeetingForAll rather than a MeetingOfGroup
  std::vector<bool> present;
  int arrival_count = 0;
  Status failure;

  int size() const { return static_cast<int>(present.size()); }
  bool complete() const { return arrival_count == size(); }
};

// The rendezvous of ranks that work together.
struct MeetingOfGroup : Rendezvous {
  static constexpr bool kForAll = false;
  explicit MeetingOfGroup(int size)
      : Rendezvous(size, kForAll), group(std::make_shared<InProcessGroup>(size)) {}
  std::shared_ptr<InProcessGroup> group;
};

struct MeetingForAll : Rendezvous {
  static constexpr bool kForAll = true;
  explicit MeetingForAll(int size) : Rendezvous(size, kForAll), parts(size) {}
  std::vector<const void*> parts;
  std::vector<std::shared_ptr<const void>> left;  // parts of ranks that don't wait, which own them
  bool worked = false;
  Status outcome;
};

namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

struct FailedCall {
  CallKey key = {};
  Status status;
};

struct Table {
  Monitor monitor;
  // The incomplete rendezvous of each key, oldest first.
  std::map<RendezvousKey, std::deque<std::shared_ptr<Rendezvous>>> open;
  // The last failed calls, for their ranks that arrive later. 64 entries suffice, because XLA ends
  // a program at its first failure and runs fewer programs at a time.
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

// Returns whether the failure of `failed` is that of the call: of this call, or of all.
bool IsPartOf(const CallKey& key, const CallKey& failed) {
  return key == failed || (failed.call_site == nullptr && key.run == failed.run);
}

// Removes the incomplete rendezvous of an execution at which no rank waits. Requires the lock.
void DropLeftParts(Table& table, int64_t run) noexcept {
  auto entries = table.open.lower_bound({{run, nullptr}, INT64_MIN});
  while (entries != table.open.end() && entries->first.call.run == run) {
    std::deque<std::shared_ptr<Rendezvous>>& queue = entries->second;
    queue.erase(std::remove_if(queue.begin(), queue.end(),
                               [](const auto& rendezvous) {
                                 return rendezvous->for_all &&
                                        !static_cast<MeetingForAll&>(*rendezvous).left.empty();
                               }),
                queue.end());
    entries = queue.empty() ? table.open.erase(entries) : std::next(entries);
  }
}

// Requires the lock.
void Fail(Table& table, const CallKey& key, const Status& status) noexcept {
  auto entries = table.open.lower_bound({key, INT64_MIN});
  while (entries != table.open.end() && IsPartOf(entries->first.call, key)) {
    for (const auto& rendezvous : entries->second) {
      if (rendezvous->failure.ok()) rendezvous->failure = status;
    }
    entries = table.open.erase(entries);
  }
  table.failed[table.next_failed] = {key, status};
  table.next_failed = (table.next_failed + 1) % table.failed.size();
  DropLeftParts(table, key.run);
  table.monitor.Notify();
}

const Status* FailureOf(const Table& table, const CallKey& key) {
  for (const FailedCall& call : table.failed) {
    if (!call.status.ok() && IsPartOf(key, call.key)) return &call.status;
  }
  return nullptr;
}

// Arrives at the key's first rendezvous at which this rank has not arrived; adds a rendezvous if
// there is no such one. Requires the lock.
template <typename Meeting>
Status Arrive(Table& table, const RendezvousKey& key, const char* what, int rank, int size,
              std::shared_ptr<Meeting>* meeting) {
  if (rank < 0 || rank >= size) {
    return Error(Code::kInvalidArgument, what, ": invalid rank ", rank, "; there are ", size,
                 " ranks");
  }
  std::deque<std::shared_ptr<Rendezvous>>& queue = table.open[key];
  auto found = std::find_if(queue.begin(), queue.end(), [&](const auto& candidate) {
    return candidate->for_all == Meeting::kForAll && candidate->size() == size &&
           !candidate->present[rank];
  });
  if (found == queue.end()) {
    queue.push_back(std::make_shared<Meeting>(size));
    found = queue.end() - 1;
  }
  *meeting = std::static_pointer_cast<Meeting>(*found);
  (*found)->present[rank] = true;
  if (++(*found)->arrival_count == size) {
    queue.erase(found);
    if (queue.empty()) table.open.erase(key);
  }
  return Status::Ok();
}

// Waits until over() returns true. Returns an error if the limit passes before all ranks have
// arrived. Requires the lock.
template <typename Over>
Status Await(Table& table, std::unique_lock<std::mutex>& lock, const Rendezvous& rendezvous,
             const char* what, int rank, const WaitPolicy& policy, const Over& over) {
  const WaitPolicy quiet = {std::min<Seconds>(policy.limit, kBeforeNotice), policy.spin};
  bool done = table.monitor.Wait(lock, quiet, over);
  if (!done && policy.limit > quiet.limit && !rendezvous.complete()) {
    const auto first = std::find(rendezvous.present.begin(), rendezvous.present.end(), true);
    if (first - rendezvous.present.begin() == rank) {  // one rank prints for all
      PrintNotice(std::string(what) + ": waiting for rank(s) " + Ranks(rendezvous.present, false));
    }
    done = table.monitor.Wait(lock, {policy.limit - quiet.limit}, over);
  }
  if (!done && !rendezvous.complete()) return TimeoutError(rendezvous, what, policy.limit);
  if (!done) table.monitor.Wait(lock, {Seconds(kForever)}, over);
  return Status::Ok();
}

// Calls step() with the lock held, unless the call has failed. If step() fails, fails the call
// before another rank can arrive and complete the rendezvous.
template <typename Step>
Status InTable(const CallKey& key, const Step& step) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  if (const Status* failure = FailureOf(table, key)) return *failure;
  const Status status = Guarded([&] { return step(table, lock); });
  if (!status.ok() && FailureOf(table, key) == nullptr) Fail(table, key, status);
  return status;
}

}  // namespace

void PrintNotice(const std::string& waiting) {
  std::fprintf(stderr, "jaxmg: %s, for %d s so far; JAXMG_RENDEZVOUS_TIMEOUT sets the limit\n",
               waiting.c_str(), static_cast<int>(kBeforeNotice.count()));
}

Status JoinRendezvous(const RendezvousKey& key, const char* what, int rank, int size,
                      const WaitPolicy& policy, int64_t value,
                      std::shared_ptr<InProcessGroup>* group) noexcept {
  return InTable(key.call, [&](Table& table, std::unique_lock<std::mutex>& lock) -> Status {
    std::shared_ptr<MeetingOfGroup> meeting;
    JAXMG_RETURN_IF_ERROR(Arrive(table, key, what, rank, size, &meeting));
    meeting->group->SetRankValue(rank, value);
    if (meeting->complete()) table.monitor.Notify();
    const auto over = [&] { return meeting->complete() || !meeting->failure.ok(); };
    JAXMG_RETURN_IF_ERROR(Await(table, lock, *meeting, what, rank, policy, over));
    *group = meeting->group;
    return meeting->failure;
  });
}

Status ArriveInGroup(const RendezvousKey& key, const char* what, int rank, int size, int64_t value,
                     std::shared_ptr<MeetingOfGroup>* meeting) noexcept {
  return InTable(key.call, [&](Table& table, std::unique_lock<std::mutex>&) -> Status {
    JAXMG_RETURN_IF_ERROR(Arrive(table, key, what, rank, size, meeting));
    (*meeting)->group->SetRankValue(rank, value);
    if ((*meeting)->complete()) table.monitor.Notify();
    return Status::Ok();
  });
}

Status AwaitGroup(const RendezvousKey& key, const char* what, int rank, const WaitPolicy& policy,
                  MeetingOfGroup& meeting, std::shared_ptr<InProcessGroup>* group) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  const auto over = [&] { return meeting.complete() || !meeting.failure.ok(); };
  const Status waited =
      Guarded([&] { return Await(table, lock, meeting, what, rank, policy, over); });
  if (!waited.ok()) {
    if (FailureOf(table, key.call) == nullptr) Fail(table, key.call, waited);
    return waited;
  }
  *group = meeting.group;
  return meeting.failure;
}

bool AwaitGroupBriefly(MeetingOfGroup& meeting, Seconds patience) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  const auto over = [&] { return meeting.complete() || !meeting.failure.ok(); };
  return table.monitor.Wait(lock, {patience}, over);
}

Status ArriveForAll(const RendezvousKey& key, const char* what, int rank, int size,
                    const void* part, std::shared_ptr<MeetingForAll>* meeting,
                    bool* last) noexcept {
  return InTable(key.call, [&](Table& table, std::unique_lock<std::mutex>&) -> Status {
    JAXMG_RETURN_IF_ERROR(Arrive(table, key, what, rank, size, meeting));
    (*meeting)->parts[rank] = part;
    *last = (*meeting)->complete();
    return Status::Ok();
  });
}

const std::vector<const void*>& PartsOf(const MeetingForAll& meeting) noexcept {
  return meeting.parts;
}

void FinishForAll(MeetingForAll& meeting, const Status& outcome) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  meeting.outcome = outcome;
  meeting.worked = true;
  table.monitor.Notify();
}

Status AwaitWork(const RendezvousKey& key, const char* what, int rank, const WaitPolicy& policy,
                 MeetingForAll& meeting) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  const auto over = [&] { return meeting.worked || !meeting.failure.ok(); };
  const Status waited =
      Guarded([&] { return Await(table, lock, meeting, what, rank, policy, over); });
  if (waited.ok()) return meeting.worked ? meeting.outcome : meeting.failure;
  if (meeting.complete()) {  // the last rank uses this rank's part, even if this wait failed
    table.monitor.Wait(lock, {Seconds(kForever)}, [&] { return meeting.worked; });
    return meeting.outcome;
  }
  if (FailureOf(table, key.call) == nullptr) Fail(table, key.call, waited);
  return waited;
}

bool AwaitWorkBriefly(MeetingForAll& meeting, const WaitPolicy& patience) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  const auto over = [&] { return !meeting.failure.ok() || meeting.worked; };
  if (table.monitor.Wait(lock, patience, over)) return true;
  return meeting.complete() && table.monitor.Wait(lock, {patience.limit}, over);
}

Status LeavePart(const RendezvousKey& key, const char* what, int rank, int size,
                 std::shared_ptr<const void> part, std::shared_ptr<MeetingForAll>* meeting,
                 bool* last) noexcept {
  return InTable(key.call, [&](Table& table, std::unique_lock<std::mutex>&) -> Status {
    for (const FailedCall& call : table.failed) {
      if (!call.status.ok() && call.key.run == key.call.run) return call.status;
    }
    JAXMG_RETURN_IF_ERROR(Arrive(table, key, what, rank, size, meeting));
    (*meeting)->left.resize(size);
    (*meeting)->parts[rank] = part.get();
    (*meeting)->left[rank] = std::move(part);
    *last = (*meeting)->complete();
    return Status::Ok();
  });
}

void FailCall(const CallKey& key, const Status& status) noexcept {
  Table& table = TheTable();
  auto lock = table.monitor.Lock();
  if (FailureOf(table, key) == nullptr) Fail(table, key, status);
}

}  // namespace jaxmg
