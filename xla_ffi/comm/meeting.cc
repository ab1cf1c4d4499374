#include "xla_ffi/comm/meeting.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace jaxmg {
namespace {

// Where ranks that have not met yet wait for each other.
struct Meeting {
  explicit Meeting(int size)
      : present(size, false), group(std::make_shared<InProcessGroup>(size)) {}
  std::vector<bool> present;
  int arrived = 0;
  Status failure;
  std::shared_ptr<InProcessGroup> group;

  bool over() const { return arrived == static_cast<int>(present.size()) || !failure.ok(); }
};

struct FailedCall {
  CallKey key = {};
  Status status;
};

struct MeetingPlace {
  Monitor monitor;
  // The meetings of a key to which not all ranks have come yet, oldest first.
  std::map<MeetingKey, std::deque<std::shared_ptr<Meeting>>> open;
  // The last calls that failed here, for those of their ranks that are still to come. More than
  // these are not under way at one time: XLA ends a program at its first failure.
  std::array<FailedCall, 64> failed;
  size_t next_failed = 0;
};

MeetingPlace& ThePlace() { return Forever<MeetingPlace>(); }

std::string Ranks(const std::vector<bool>& present, bool which) {
  std::string text;
  for (size_t rank = 0; rank < present.size(); ++rank) {
    if (present[rank] != which) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

Status Late(const Meeting& meeting, const char* what, Seconds limit) {
  return Error(Code::kDeadlineExceeded, what, ": after ", limit.count(), " s only rank(s) ",
               Ranks(meeting.present, true), " of ", meeting.present.size(),
               " came to the call; missing: ", Ranks(meeting.present, false),
               ". Every device of the mesh must make the same calls in the same order; "
               "JAXMG_RENDEZVOUS_TIMEOUT sets the limit in seconds");
}

// With the lock held.
void Fail(MeetingPlace& place, const CallKey& key, const Status& status) noexcept {
  auto meetings = place.open.lower_bound({key, INT64_MIN});
  while (meetings != place.open.end() && meetings->first.call == key) {
    for (const auto& meeting : meetings->second) {
      if (meeting->failure.ok()) meeting->failure = status;
    }
    meetings = place.open.erase(meetings);
  }
  place.failed[place.next_failed] = {key, status};
  place.next_failed = (place.next_failed + 1) % place.failed.size();
  place.monitor.Changed();
}

const Status* FailureOf(const MeetingPlace& place, const CallKey& key) {
  for (const FailedCall& call : place.failed) {
    if (!call.status.ok() && call.key == key) return &call.status;
  }
  return nullptr;
}

// The first meeting to which this rank has not come yet; with the lock held.
std::shared_ptr<Meeting> Come(MeetingPlace& place, const MeetingKey& key, int rank, int size) {
  std::deque<std::shared_ptr<Meeting>>& queue = place.open[key];
  for (const auto& candidate : queue) {
    if (static_cast<int>(candidate->present.size()) == size && !candidate->present[rank]) {
      return candidate;
    }
  }
  queue.push_back(std::make_shared<Meeting>(size));
  return queue.back();
}

}  // namespace

Status Meet(const MeetingKey& key, const char* what, int rank, int size, const Patience& patience,
            int64_t mine, std::shared_ptr<InProcessGroup>* group) noexcept {
  MeetingPlace& place = ThePlace();
  auto lock = place.monitor.Lock();
  auto meet = [&]() -> Status {
    if (rank < 0 || rank >= size) {
      return Error(Code::kInvalidArgument, what, ": rank ", rank, " of ", size, " ranks");
    }
    const std::shared_ptr<Meeting> meeting = Come(place, key, rank, size);
    meeting->present[rank] = true;
    meeting->group->Bring(rank, mine);
    if (++meeting->arrived == size) {
      auto& queue = place.open[key];
      queue.erase(std::find(queue.begin(), queue.end(), meeting));
      if (queue.empty()) place.open.erase(key);
      place.monitor.Changed();
    }
    if (!place.monitor.Wait(lock, patience, [&] { return meeting->over(); })) {
      return Late(*meeting, what, patience.limit);
    }
    *group = meeting->group;
    return meeting->failure;
  };
  if (const Status* failure = FailureOf(place, key.call)) return *failure;
  const Status status = Guarded(meet);
  // Before anybody else can come and take the meeting for complete.
  if (!status.ok() && FailureOf(place, key.call) == nullptr) Fail(place, key.call, status);
  return status;
}

void FailCall(const CallKey& key, const Status& status) noexcept {
  MeetingPlace& place = ThePlace();
  auto lock = place.monitor.Lock();
  if (FailureOf(place, key) == nullptr) Fail(place, key, status);
}

}  // namespace jaxmg
