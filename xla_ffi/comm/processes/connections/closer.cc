#include "xla_ffi/comm/processes/connections/closer.h"

#include <thread>
#include <utility>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/monitor.h"

namespace jaxmg {
namespace {

constexpr int kMostThreads = 8;
constexpr size_t kMostWaiting = 64;

}  // namespace

Closer& Closer::Instance() { return Forever<Closer>(); }

bool Closer::HasRoom() {
  std::lock_guard<std::mutex> lock(mutex_);
  return waiting_.size() < kMostWaiting;
}

void Closer::Close(std::shared_ptr<const void> connection) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(connection));
  if (threads_ == kMostThreads) return;
  // If no thread can be started, a running thread or the next call closes the connection.
  const Status started = Guarded([&] {
    std::thread([this] { Run(); }).detach();
    return Status::Ok();
  });
  if (started.ok()) ++threads_;
}

void Closer::Run() noexcept {
  for (;;) {
    std::shared_ptr<const void> connection;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (waiting_.empty()) {
        --threads_;
        return;
      }
      connection = std::move(waiting_.front());
      waiting_.pop_front();
    }
  }
}

}  // namespace jaxmg
