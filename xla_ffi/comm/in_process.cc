#include "xla_ffi/comm/in_process.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace jaxmg {

using Clock = std::chrono::steady_clock;

namespace {

Clock::time_point Deadline(std::chrono::duration<double> limit) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
}

struct Message {
  Bytes2D block;
  std::shared_ptr<Event> ready;
};

// One direction between two ranks.
struct Channel {
  std::deque<Message> messages;
  std::deque<std::shared_ptr<Event>> taken;  // one event a message that the receiver copied
};

}  // namespace

class InProcessGroup {
 public:
  explicit InProcessGroup(int size)
      : size_(size), channels_(size * size), votes_(size), shared_(size) {}

  int size() const { return size_; }

  void Post(int from, int to, Message message) {
    std::lock_guard<std::mutex> lock(mutex_);
    channel(from, to).messages.push_back(std::move(message));
    changed_.notify_all();
  }

  Status TakeMessage(int from, int to, Clock::time_point deadline, Message* message) {
    return Await(
        deadline, [&] { return !channel(from, to).messages.empty(); },
        [&] {
          *message = std::move(channel(from, to).messages.front());
          channel(from, to).messages.pop_front();
        },
        [&] {
          return Error(Code::kDeadlineExceeded, "rank ", to,
                       " waited in vain for a message from rank ", from);
        });
  }

  void PostTaken(int from, int to, std::shared_ptr<Event> done) {
    std::lock_guard<std::mutex> lock(mutex_);
    channel(from, to).taken.push_back(std::move(done));
    changed_.notify_all();
  }

  Status AwaitTaken(int from, int to, Clock::time_point deadline, std::shared_ptr<Event>* done) {
    return Await(
        deadline, [&] { return !channel(from, to).taken.empty(); },
        [&] {
          *done = std::move(channel(from, to).taken.front());
          channel(from, to).taken.pop_front();
        },
        [&] {
          return Error(Code::kDeadlineExceeded, "rank ", to, " did not take a message from rank ",
                       from, " in time");
        });
  }

  // Between two agreements, of which the second keeps a quick rank from bringing its next number
  // before all have read this one.
  Status Share(int rank, int64_t mine, Clock::time_point deadline, std::vector<int64_t>* all) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      shared_[rank] = mine;
    }
    JAXMG_RETURN_IF_ERROR(Agree(rank, Status::Ok(), deadline));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      *all = shared_;
    }
    return Agree(rank, Status::Ok(), deadline);
  }

  // An abort of the group is one of the outcomes that ranks agree on, so it does not end the wait.
  Status Agree(int rank, const Status& mine, Clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t round = agreements_;
    votes_[rank] = mine;
    if (++voted_ == size_) {
      outcome_ = Status::Ok();
      for (const Status& vote : votes_) {
        // Ranks that were only told of a failure repeat it as kAborted; the cause goes first.
        if (!vote.ok() && (outcome_.ok() || outcome_.code() == Code::kAborted)) {
          if (outcome_.ok() || vote.code() != Code::kAborted) outcome_ = vote;
        }
      }
      voted_ = 0;
      ++agreements_;
      changed_.notify_all();
      return outcome_;
    }
    if (!changed_.wait_until(lock, deadline, [&] { return agreements_ != round; })) {
      Status late =
          Error(Code::kDeadlineExceeded, "rank ", rank, " waited in vain for the others to agree");
      if (aborted_.ok()) aborted_ = late;
      changed_.notify_all();
      return aborted_;
    }
    return outcome_;
  }

  void Abort(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_.ok()) aborted_ = status;
    changed_.notify_all();
  }

 private:
  Channel& channel(int from, int to) { return channels_[from * size_ + to]; }

  template <typename Ready, typename Take, typename Late>
  Status Await(Clock::time_point deadline, Ready ready, Take take, Late late) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return !aborted_.ok() || ready(); });
    if (!aborted_.ok()) {
      return Error(Code::kAborted, "given up because another rank failed: ", aborted_.message());
    }
    if (!ready()) {
      aborted_ = late();
      changed_.notify_all();
      return aborted_;
    }
    take();
    return Status::Ok();
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Channel> channels_;
  Status aborted_;
  std::vector<Status> votes_;
  std::vector<int64_t> shared_;  // what each rank brought to Share
  int voted_ = 0;
  int64_t agreements_ = 0;
  Status outcome_;
};

namespace {

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessGroup> group, int rank, Device* device,
                        std::chrono::duration<double> limit)
      : group_(std::move(group)),
        rank_(rank),
        device_(device),
        limit_(limit),
        sent_(group_->size(), 0),
        taken_(group_->size(), 0) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  Status Agree(const Status& mine) override { return group_->Agree(rank_, mine, Deadline(limit_)); }

  Status Share(int64_t mine, std::vector<int64_t>* all) override {
    return group_->Share(rank_, mine, Deadline(limit_), all);
  }

  Status Send(Stream stream, int peer, const Bytes2D& block) override {
    Message message = {block, nullptr};
    JAXMG_RETURN_IF_ERROR(device_->NewEvent(&message.ready));
    JAXMG_RETURN_IF_ERROR(device_->Record(stream, message.ready.get()));
    group_->Post(rank_, peer, std::move(message));
    ++sent_[peer];
    return Status::Ok();
  }

  int64_t Sent(int peer) const override { return sent_[peer]; }

  Status WaitSent(Stream stream, int peer, int64_t count) override {
    for (; taken_[peer] < count; ++taken_[peer]) {
      std::shared_ptr<Event> done;
      JAXMG_RETURN_IF_ERROR(group_->AwaitTaken(rank_, peer, Deadline(limit_), &done));
      JAXMG_RETURN_IF_ERROR(device_->Wait(stream, *done));
    }
    return Status::Ok();
  }

  Status Recv(Stream stream, int peer, const Bytes2D& block) override {
    Message message;
    JAXMG_RETURN_IF_ERROR(group_->TakeMessage(peer, rank_, Deadline(limit_), &message));
    if (message.block.height != block.height || message.block.columns != block.columns) {
      return Error(Code::kInternal, "rank ", rank_, " expects a block of ", block.height,
                   " bytes x ", block.columns, " from rank ", peer, ", which sent ",
                   message.block.height, " x ", message.block.columns);
    }
    JAXMG_RETURN_IF_ERROR(device_->Wait(stream, *message.ready));
    {
      const Range range(*device_, stream, "receive", peer);
      JAXMG_RETURN_IF_ERROR(device_->Copy(stream, block, message.block));
    }
    return Return(stream, peer);
  }

  Status Borrow(Stream stream, int peer, Bytes2D* block) override {
    Message message;
    JAXMG_RETURN_IF_ERROR(group_->TakeMessage(peer, rank_, Deadline(limit_), &message));
    *block = message.block;
    return device_->Wait(stream, *message.ready);
  }

  Status Return(Stream stream, int peer) override {
    std::shared_ptr<Event> done;
    JAXMG_RETURN_IF_ERROR(device_->NewEvent(&done));
    JAXMG_RETURN_IF_ERROR(device_->Record(stream, done.get()));
    group_->PostTaken(peer, rank_, std::move(done));
    return Status::Ok();
  }

  void Abort(const Status& status) override { group_->Abort(status); }

 private:
  std::shared_ptr<InProcessGroup> group_;
  const int rank_;
  Device* const device_;
  const std::chrono::duration<double> limit_;
  // By peer: messages to it, and how many of them are known to have been taken.
  std::vector<int64_t> sent_, taken_;
};

// Where ranks that have not met yet wait for each other. One that fails does so for all of them.
struct Meeting {
  explicit Meeting(int size)
      : present(size, false), group(std::make_shared<InProcessGroup>(size)) {}
  std::vector<bool> present;
  int arrived = 0;
  Status failure;
  std::shared_ptr<InProcessGroup> group;
};

struct MeetingPlace {
  std::mutex mutex;
  std::condition_variable changed;
  // The meetings of a key to which not all ranks have come yet, oldest first.
  std::map<MeetingKey, std::deque<std::shared_ptr<Meeting>>> open;
};

MeetingPlace& ThePlace() {
  // Never destroyed: threads of the runtime may still wait here when the process exits.
  static MeetingPlace* place = new MeetingPlace;
  return *place;
}

std::string Ranks(const std::vector<bool>& present, bool which) {
  std::string text;
  for (size_t rank = 0; rank < present.size(); ++rank) {
    if (present[rank] != which) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

}  // namespace

Status Meet(const MeetingKey& key, const std::string& what, int rank, int size,
            std::chrono::duration<double> limit, const Status& ready,
            std::shared_ptr<InProcessGroup>* group) {
  if (rank < 0 || rank >= size) {
    return Error(Code::kInvalidArgument, what, ": rank ", rank, " of ", size, " ranks");
  }
  MeetingPlace& place = ThePlace();
  const Clock::time_point deadline = Deadline(limit);
  std::unique_lock<std::mutex> lock(place.mutex);
  // The first meeting to which this rank has not come yet.
  std::deque<std::shared_ptr<Meeting>>& queue = place.open[key];
  std::shared_ptr<Meeting> meeting;
  for (const auto& candidate : queue) {
    if (static_cast<int>(candidate->present.size()) == size && !candidate->present[rank]) {
      meeting = candidate;
      break;
    }
  }
  if (!meeting) {
    meeting = std::make_shared<Meeting>(size);
    queue.push_back(meeting);
  }
  meeting->present[rank] = true;
  if (++meeting->arrived == size) {
    queue.erase(std::find(queue.begin(), queue.end(), meeting));
    if (queue.empty()) place.open.erase(key);
  }
  auto fail = [&](const Status& status) {
    if (meeting->failure.ok()) meeting->failure = status;
  };
  if (!ready.ok()) fail(ready);
  place.changed.notify_all();
  auto over = [&] { return meeting->arrived == size || !meeting->failure.ok(); };
  if (!place.changed.wait_until(lock, deadline, over)) {
    fail(Error(Code::kDeadlineExceeded, what, ": after ", limit.count(), " s only rank(s) ",
               Ranks(meeting->present, true), " of ", size,
               " came to the call; missing: ", Ranks(meeting->present, false),
               ". Every device of the mesh must make the same calls in the same order; "
               "JAXMG_RENDEZVOUS_TIMEOUT sets the limit in seconds"));
    place.changed.notify_all();
  }
  *group = meeting->group;
  return meeting->failure;
}

std::unique_ptr<Communicator> NewInProcessCommunicator(std::shared_ptr<InProcessGroup> group,
                                                       int rank, Device* device,
                                                       std::chrono::duration<double> limit) {
  return std::make_unique<InProcessCommunicator>(std::move(group), rank, device, limit);
}

std::shared_ptr<InProcessGroup> NewInProcessGroup(int size) {
  return std::make_shared<InProcessGroup>(size);
}

}  // namespace jaxmg
