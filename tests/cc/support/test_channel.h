// NCCL channels, emulated on the host with sockets. A thread at each end executes the enqueued
// operations after random delays. As on a GPU, an end waits for the other end until the channel is
// aborted, even if the other end is gone, and blocks all later operations.
#ifndef JAXMG_TESTS_CC_SUPPORT_TEST_CHANNEL_H_
#define JAXMG_TESTS_CC_SUPPORT_TEST_CHANNEL_H_

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "tests/cc/support/devices/async_workers.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/comm/processes/connections/socket.h"
#include "xla_ffi/device/nccl_channel.h"

namespace jaxmg::testing {

class TestChannelEnd : public ChannelEnd {
 public:
  TestChannelEnd(Fd socket, unsigned seed)
      : end_(std::make_shared<End>()), random_(seed), worker_(seed) {
    end_->socket = std::move(socket);
  }

  Status Send(const void* data, size_t bytes, std::shared_ptr<Event>* done) override {
    return Enqueue(done, [=](End& end) {
      char taken = 0;
      return end.Move(true, const_cast<size_t*>(&bytes), sizeof(bytes)) &&
             end.Move(true, const_cast<void*>(data), bytes) && end.Move(false, &taken, 1);
    });
  }

  Status Receive(void* data, size_t bytes, std::shared_ptr<Event>* done) override {
    // Otherwise the sender might wait for an operation that follows this receive.
    EXPECT(!last_ || last_->IsSet()) << "a receive is enqueued behind one that waits";
    return Enqueue(done, [=](End& end) {
      size_t sent = 0;
      char taken = 1;
      if (!end.Move(false, &sent, sizeof(sent))) return false;
      EXPECT(sent == bytes) << sent << " bytes have come, not " << bytes;
      return end.Move(false, data, bytes) && end.Move(true, &taken, 1);
    });
  }

  Status HasPassed(const Event& event, bool* passed) override {
    *passed = static_cast<const AsyncEvent&>(event).signal->IsSet();
    return Status::Ok();
  }
  Status Check() override { return Status::Ok(); }
  void Abort() noexcept override { end_->aborted = true; }

 private:
  struct End {
    Fd socket;
    std::atomic<bool> aborted{false};

    bool Move(bool out, void* data, size_t bytes) {
      for (size_t done = 0; done < bytes;) {
        char* at = static_cast<char*>(data) + done;
        const ssize_t count =
            out ? send(socket.get(), at, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                : recv(socket.get(), at, bytes - done, MSG_DONTWAIT);
        if (count > 0) done += static_cast<size_t>(count);
        if (aborted) return false;
        pollfd wait = {socket.get(), static_cast<short>(out ? POLLOUT : POLLIN), 0};
        if (count < 0) poll(&wait, 1, 1);
        if (count == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return true;
    }
  };

  template <typename Work>
  Status Enqueue(std::shared_ptr<Event>* done, const Work& work) {
    // A call of NCCL may take this long.
    if (random_() % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (end_->aborted) return Status::Fixed(Code::kUnavailable, "the channel is aborted");
    auto event = std::make_shared<AsyncEvent>();
    event->signal = last_ = std::make_shared<Signal>();
    worker_.Enqueue([work, end = end_, signal = last_] {
      work(*end);
      signal->Set();
      return Status::Ok();
    });
    *done = std::move(event);
    return Status::Ok();
  }

  const std::shared_ptr<End> end_;
  std::shared_ptr<Signal> last_;
  std::minstd_rand random_;
  Worker worker_;
};

class TestChannelSource : public ChannelSource {
 public:
  // Injected failures.
  std::string name = "sockets 1";
  std::atomic<bool> refuses{false}, hangs{false};
  std::atomic<int> made{0};

  Status Open(std::string* text) override {
    *text = name;
    return Status::Ok();
  }

  Status NewId(std::string* id) override {
    Fd listener;
    JAXMG_RETURN_IF_ERROR(ListenUnix(&listener, id));
    std::lock_guard<std::mutex> lock(mutex_);
    listeners_[*id] = std::move(listener);
    return Status::Ok();
  }

  Status Make(int, End end, const std::string& id, const std::atomic<bool>& given_up,
              std::unique_ptr<ChannelEnd>* channel_end) override {
    Fd connected;
    if (refuses) return Error(Code::kInternal, "refused on purpose");
    while (!given_up) {
      if (!hangs && end == End::kReceives) {
        JAXMG_RETURN_IF_ERROR(ConnectUnix(id, &connected));
      } else if (!hangs) {
        std::lock_guard<std::mutex> lock(mutex_);
        connected = Accept(listeners_[id]);
      }
      if (connected.get() >= 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (given_up) return Error(Code::kAborted, "given up");
    *channel_end =
        std::make_unique<TestChannelEnd>(std::move(connected), static_cast<unsigned>(++made));
    return Status::Ok();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Fd> listeners_;
};

// The process's single instance, which threads may use until the process ends.
inline TestChannelSource& TheTestChannels() {
  static auto* source = new TestChannelSource;
  return *source;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_TEST_CHANNEL_H_
