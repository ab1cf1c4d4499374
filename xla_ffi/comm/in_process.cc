#include "xla_ffi/comm/in_process.h"

#include <array>
#include <utility>

namespace jaxmg {

InProcessGroup::InProcessGroup(int size)
    : size_(size), queues_(size * size), votes_(size), shared_(size), rank_values_(size) {}

Status InProcessGroup::Prepare(Device& device, Stream stream, int, int, Message* message) {
  if (message->ready != nullptr) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(device.NewEvent(&message->ready));
  return device.Record(stream, message->ready.get());
}

Status InProcessGroup::RecordTaken(Device& device, Stream stream, int, int,
                                   std::shared_ptr<Event>* done) {
  JAXMG_RETURN_IF_ERROR(device.NewEvent(done));
  return device.Record(stream, done->get());
}

void InProcessGroup::Post(int from, int to, Message message) {
  auto lock = monitor_.Lock();
  queues(from, to).messages.push_back(std::move(message));
  monitor_.Notify();
}

Status InProcessGroup::TakeMessage(Device&, int from, int to, const WaitPolicy& policy,
                                   Message* message) {
  return Await(
      policy, [&] { return !queues(from, to).messages.empty(); },
      [&] {
        *message = std::move(queues(from, to).messages.front());
        queues(from, to).messages.pop_front();
      },
      [&] {
        return Error(Code::kDeadlineExceeded, "rank ", to,
                     " timed out waiting for a message from rank ", from);
      });
}

void InProcessGroup::PostTaken(int from, int to, std::shared_ptr<Event> done) {
  auto lock = monitor_.Lock();
  queues(from, to).taken.push_back(std::move(done));
  monitor_.Notify();
}

Status InProcessGroup::AwaitTaken(int from, int to, const WaitPolicy& policy,
                                  std::shared_ptr<Event>* done) {
  return Await(
      policy, [&] { return !queues(from, to).taken.empty(); },
      [&] {
        *done = std::move(queues(from, to).taken.front());
        queues(from, to).taken.pop_front();
      },
      [&] {
        return Error(Code::kDeadlineExceeded, "rank ", to, " did not take a message from rank ",
                     from, " in time");
      });
}

template <typename Ready, typename Take, typename Late>
Status InProcessGroup::Await(const WaitPolicy& policy, Ready ready, Take take, Late late) {
  auto lock = monitor_.Lock();
  monitor_.Wait(lock, policy, [&] { return !aborted_.ok() || ready(); });
  if (!aborted_.ok()) return GivenUp(aborted_);
  if (!ready()) {
    AbortLocked(late());
    return aborted_;
  }
  take();
  return Status::Ok();
}

// Shares between two agreements: the second one keeps a fast rank from writing its next number
// before all ranks have read this one.
Status InProcessGroup::Share(int rank, int64_t mine, const WaitPolicy& policy,
                             std::vector<int64_t>* all) {
  const Status room = Guarded([&] {
    all->resize(size_);
    return Status::Ok();
  });
  {
    auto lock = monitor_.Lock();
    shared_[rank] = mine;
  }
  JAXMG_RETURN_IF_ERROR(Agree(rank, room, policy));
  {
    auto lock = monitor_.Lock();
    *all = shared_;
  }
  return Agree(rank, Status::Ok(), policy);
}

// An abort doesn't end the wait, because it is one of the possible results of an agreement.
Status InProcessGroup::Agree(int rank, const Status& mine, const WaitPolicy& policy) noexcept {
  auto lock = monitor_.Lock();
  const int64_t round = agreements_;
  Vote(rank, mine);
  if (!monitor_.Wait(lock, policy, [&] { return agreements_ != round; })) {
    const Status late = Guarded([&] {
      return Error(Code::kDeadlineExceeded, "rank ", rank,
                   " timed out waiting for the other ranks to agree");
    });
    AbortLocked(late);
    return aborted_;
  }
  return outcome_;
}

void InProcessGroup::Vote(int rank, const Status& mine) noexcept {
  votes_[rank] = mine;
  ++voted_;
  CountVotes();
}

void InProcessGroup::CountVotes() noexcept {
  if (voted_ == 0 || voted_ + departed_ < size_) return;
  outcome_ = departure_;
  for (Status& vote : votes_) {
    // Ranks that gave up because of another rank's failure report kAborted; the original error
    // takes precedence.
    if (outcome_.ok() ||
        (outcome_.code() == Code::kAborted && !vote.ok() && vote.code() != Code::kAborted)) {
      outcome_ = vote;
    }
    vote = Status::Ok();
  }
  voted_ = 0;
  ++agreements_;
  OnOutcome();
  monitor_.Notify();
}

void InProcessGroup::Abort(const Status& status) noexcept {
  auto lock = monitor_.Lock();
  AbortLocked(status);
}

void InProcessGroup::AbortLocked(const Status& status) noexcept {
  if (aborted_.ok()) {
    aborted_ = status;
    failed_.store(true, std::memory_order_release);
    OnAbort();
  }
  monitor_.Notify();
}

Status InProcessGroup::Failure() noexcept {
  auto lock = monitor_.Lock();
  return aborted_;
}

void InProcessGroup::Depart(const Status& why) noexcept {
  auto lock = monitor_.Lock();
  DepartLocked(why);
}

void InProcessGroup::DepartLocked(const Status& why) noexcept {
  AbortLocked(why);
  if (departed_++ == 0) departure_ = why;
  CountVotes();
}

namespace {

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessGroup> group, int rank, Device* device,
                        const WaitPolicy& policy)
      : group_(std::move(group)),
        rank_(rank),
        device_(device),
        patience_(policy),
        sent_(group_->size(), 0),
        taken_(group_->size(), 0) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  Status Agree(const Status& mine) noexcept override {
    return group_->Agree(rank_, mine, patience_);
  }

  Status Share(int64_t mine, std::vector<int64_t>* all) override {
    return group_->Share(rank_, mine, patience_, all);
  }

  Status Send(Stream stream, int peer, const Bytes2D& block) override {
    InProcessGroup::Message message = {block};
    JAXMG_RETURN_IF_ERROR(group_->Prepare(*device_, stream, rank_, peer, &message));
    group_->Post(rank_, peer, std::move(message));
    ++sent_[peer];
    return Status::Ok();
  }

  // All peers in this process wait for the same event.
  Status SendToAll(Stream stream, const Bytes2D& block) override {
    std::array<InProcessGroup::Message, kNumLinkKinds> messages;
    for (InProcessGroup::Message& message : messages) message.block = block;
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank_ + size() - step) % size();
      InProcessGroup::Message& message = messages[static_cast<int>(group_->LinkKindTo(peer))];
      JAXMG_RETURN_IF_ERROR(group_->Prepare(*device_, stream, rank_, peer, &message));
      group_->Post(rank_, peer, message);
      ++sent_[peer];
    }
    return Status::Ok();
  }

  int64_t Sent(int peer) const override { return sent_[peer]; }

  Status WaitSent(Stream stream, int peer, int64_t count) override {
    for (; taken_[peer] < count; ++taken_[peer]) {
      std::shared_ptr<Event> done;
      JAXMG_RETURN_IF_ERROR(group_->AwaitTaken(rank_, peer, patience_, &done));
      JAXMG_RETURN_IF_ERROR(device_->Wait(stream, *done));
    }
    return Status::Ok();
  }

  Status Recv(Stream stream, int peer, const Bytes2D& block) override {
    InProcessGroup::Message message;
    JAXMG_RETURN_IF_ERROR(group_->TakeMessage(*device_, peer, rank_, patience_, &message));
    if (message.block.height != block.height || message.block.columns != block.columns) {
      return Error(Code::kInternal, "rank ", rank_, " expects a block of ", block.height,
                   " bytes x ", block.columns, " from rank ", peer, ", which sent ",
                   message.block.height, " x ", message.block.columns);
    }
    JAXMG_RETURN_IF_ERROR(device_->Wait(stream, *message.ready));
    {
      const Range range(*device_, stream, "receive", peer);
      JAXMG_RETURN_IF_ERROR(device_->CopyFromPeer(stream, block, message.block));
    }
    return Return(stream, peer);
  }

  Status Borrow(Stream stream, int peer, Bytes2D* block) override {
    InProcessGroup::Message message;
    JAXMG_RETURN_IF_ERROR(group_->TakeMessage(*device_, peer, rank_, patience_, &message));
    *block = message.block;
    return device_->Wait(stream, *message.ready);
  }

  Status Return(Stream stream, int peer) override {
    std::shared_ptr<Event> done;
    JAXMG_RETURN_IF_ERROR(group_->RecordTaken(*device_, stream, peer, rank_, &done));
    group_->PostTaken(peer, rank_, std::move(done));
    return Status::Ok();
  }

  void Abort(const Status& status) noexcept override { group_->Abort(status); }
  Status Failure() const noexcept override { return group_->Failure(); }
  bool failed() const noexcept override { return group_->failed(); }

 private:
  std::shared_ptr<InProcessGroup> group_;
  const int rank_;
  Device* const device_;
  const WaitPolicy patience_;
  // By peer: the number of messages sent, and how many of them are known to have been taken.
  std::vector<int64_t> sent_, taken_;
};

}  // namespace

std::unique_ptr<Communicator> NewInProcessCommunicator(std::shared_ptr<InProcessGroup> group,
                                                       int rank, Device* device,
                                                       const WaitPolicy& policy) {
  return std::make_unique<InProcessCommunicator>(std::move(group), rank, device, policy);
}

}  // namespace jaxmg
