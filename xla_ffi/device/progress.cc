#include "xla_ffi/device/progress.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "xla_ffi/device/timeline.h"

namespace jaxmg {
namespace {

constexpr uint32_t kEnd = UINT32_MAX;
constexpr size_t kWords = 1024;  // of one allocation

std::atomic<bool>& Wanted() {
  static std::atomic<bool> wanted{false};
  return wanted;
}

}  // namespace

// All calls of the process, and the words that devices write. A word is used again only after a
// device has written kEnd to it, because it may write later than the call returns on the host.
class ProgressBoard {
 public:
  static ProgressBoard& Instance() {
    static auto* board = new ProgressBoard;  // threads may use it until the process ends
    return *board;
  }

  std::shared_ptr<CallProgress> Add(Device& device, const CallDescription& of) {
    std::unique_lock<std::mutex> lock(mutex_);
    Drop([](const CallProgress& call) { return call.ended() && !call.seen_; });
    while (words_.empty()) {
      // CUDA may wait for the device here, and watchers must not.
      lock.unlock();
      uint32_t* words = nullptr;
      if (!device.NewProgressWords(kWords, &words).ok()) return nullptr;
      lock.lock();
      for (size_t i = 0; i < kWords; ++i) words_.push_back(words + i);
    }
    auto progress = std::make_shared<CallProgress>(of, words_.back());
    words_.pop_back();
    progress->call_ = ++calls_;
    all_.push_back(progress);
    return progress;
  }

  std::vector<ProgressSnapshot> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<ProgressSnapshot> taken;
    const double now = SteadySeconds();
    for (const std::shared_ptr<CallProgress>& call : all_) {
      const ProgressSnapshot snapshot = call->Look(now);
      if (!snapshot.ended || call->seen_) taken.push_back(snapshot);
      call->seen_ = !snapshot.ended;
    }
    Drop([](const CallProgress& call) { return call.ended() && !call.seen_; });
    return taken;
  }

  void Forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::shared_ptr<CallProgress>& call : all_) call->seen_ = false;
  }

 private:
  template <typename Test>
  void Drop(const Test& test) {
    auto drops = [&](const std::shared_ptr<CallProgress>& call) {
      if (!test(*call)) return false;
      // After a failure the device may still write to the word.
      if (!call->failed_) words_.push_back(call->word_);
      return true;
    };
    all_.erase(std::remove_if(all_.begin(), all_.end(), drops), all_.end());
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<CallProgress>> all_;
  std::vector<uint32_t*> words_;  // that no call uses
  int64_t calls_ = 0;
};

void SetProgressWanted(bool wanted) noexcept {
  Wanted().store(wanted, std::memory_order_relaxed);
  if (!wanted) ProgressBoard::Instance().Forget();
}

bool ProgressWanted() noexcept { return Wanted().load(std::memory_order_relaxed); }

std::vector<ProgressSnapshot> TakeProgress() { return ProgressBoard::Instance().Take(); }

CallProgress::CallProgress(const CallDescription& of, uint32_t* word)
    : of_(of), word_(word), begun_(SteadySeconds()) {
  __atomic_store_n(word_, 0, __ATOMIC_RELEASE);
}

void CallProgress::Announce(double operations) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (depth_ > 0 || announced_) return;
  total_ = operations;
  announced_ = true;
}

void CallProgress::BeginStage(const char* name, int64_t steps, double operations,
                              int remaining) noexcept {
  if (depth_++ > 0) return;
  before_ += operations_;
  operations_ = operations;
  remaining_ = remaining;
  now_ = {name, 0, steps, before_};
  if (announced_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  total_ = before_ + operations_;
}

void CallProgress::Reached(Device& device, Stream stream, int64_t step) noexcept {
  if (depth_ > 1 || now_.steps <= 0) return;
  now_.step = std::min(step, now_.steps);
  const double left = 1 - static_cast<double>(now_.step) / static_cast<double>(now_.steps);
  now_.done = before_ + operations_ * (1 - std::pow(left, remaining_));
  (void)Put(device, stream, now_);
}

void CallProgress::EndStage() noexcept { --depth_; }

bool CallProgress::Put(Device& device, Stream stream, const Mark& mark) noexcept {
  uint32_t count = 0;
  const Status kept = Guarded([&] {
    std::lock_guard<std::mutex> lock(mutex_);
    marks_.push_back(mark);
    count = static_cast<uint32_t>(marks_.size());
    return Status::Ok();
  });
  // Without a mark the call is less finely divided. An error of the device shows at the next
  // operation of the call.
  return kept.ok() && device.RecordShared(stream, SharedEvent(word_, count)).ok();
}

bool CallProgress::Begin(Device& device) noexcept {
  if (Put(device, Stream::kMain, now_)) return true;
  failed_ = true;
  return false;
}

void CallProgress::End(Device& device, bool ok) noexcept {
  if (ok && device.RecordShared(Stream::kMain, SharedEvent(word_, kEnd)).ok()) return;
  failed_ = true;
}

bool CallProgress::ended() const noexcept {
  return failed_ || __atomic_load_n(word_, __ATOMIC_ACQUIRE) == kEnd;
}

ProgressSnapshot CallProgress::Look(double now) {
  const uint32_t reached = __atomic_load_n(word_, __ATOMIC_ACQUIRE);
  std::lock_guard<std::mutex> lock(mutex_);
  const bool ended = failed_ || reached == kEnd;
  // Before the first step the device may still do earlier work, so the call's time begins now.
  if (!ended && reached == 0) begun_ = now;
  const size_t index = std::min<size_t>(reached, marks_.size());
  const Mark mark = index == 0 ? Mark{"", 0, 0, 0} : marks_[index - 1];
  // The announced operations are an estimate, which the steps may exceed.
  constexpr double kMost = 0.99;
  double fraction = total_ > 0 ? std::min(mark.done / total_, kMost) : -1;
  if (ended && !failed_) fraction = 1;
  return {call_, of_, mark.stage, mark.step, mark.steps, fraction, now - begun_, ended, !failed_};
}

ReportedCall::ReportedCall(Device* device, const CallDescription& of, bool reports) noexcept
    : device_(device) {
  if (!reports || !ProgressWanted()) return;
  const Status made = Guarded([&] {
    progress_ = ProgressBoard::Instance().Add(*device_, of);
    return Status::Ok();
  });
  if (!made.ok() || progress_ == nullptr) return;
  if (!progress_->Begin(*device_)) {
    progress_ = nullptr;
    return;
  }
  device_->set_progress(progress_.get());
}

void ReportedCall::End(const Status& status) noexcept {
  if (progress_ == nullptr) return;
  device_->set_progress(nullptr);
  progress_->End(*device_, status.ok());
  progress_ = nullptr;
}

}  // namespace jaxmg
