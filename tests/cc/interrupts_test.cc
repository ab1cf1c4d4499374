// SIGINT: which calls it ends, how waiting ranks learn of it, and the state of the signal handler
// afterwards.
#include "xla_ffi/comm/interrupts.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/base/floating_point.h"
#include "xla_ffi/comm/rendezvous.h"
#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {
namespace {

using namespace testing;

std::atomic<int> handled{0};
std::atomic<int> asked{0};
std::atomic<bool> wanted{true};

void Handle(int) { ++handled; }

bool Wanted() {
  ++asked;
  return wanted;
}

using SignalHandler = void (*)(int);

SignalHandler Installed() {
  struct sigaction now = {};
  sigaction(SIGINT, nullptr, &now);
  return now.sa_handler;
}

template <typename Condition>
bool Soon(const Condition& condition) {
  const Clock::time_point deadline = Deadline(kPatience);
  while (!condition() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

// Installs Handle for SIGINT and watches it, once the watcher has processed the signals of earlier
// tests.
void Watch() {
  EXPECT(Soon([] { return asked == CountInterrupts(); }));
  struct sigaction action = {};
  action.sa_handler = Handle;
  sigaction(SIGINT, &action, nullptr);
  EXPECT(WatchInterrupts(&Wanted));
  wanted = true;
}

void FailNobody(const void*, const Status&) noexcept {}
void FailKey(const void* key, const Status& status) noexcept {
  FailCall(*static_cast<const CallKey*>(key), status);
}
std::string Here(const void*) { return " here"; }

int64_t NewRun() {
  static int64_t last = 0;
  return ++last;
}

constexpr char kText[] = "potrs: interrupted by SIGINT (Ctrl-C) here";

// This test must be the first, because later ones watch the signal.
TEST(AProcessThatDoesNotHandleSigintIsNotWatched) {
  for (const SignalHandler none : {SIG_DFL, SIG_IGN}) {
    signal(SIGINT, none);
    EXPECT(!WatchInterrupts(&Wanted));
    CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
    EXPECT(Installed() == none);
  }
}

TEST(TheHandlerIsReplacedWhenACallBegins) {
  Watch();
  EXPECT(Installed() == Handle);
  for (int i = 0; i < 2; ++i) {
    {
      CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
    }
    EXPECT(Installed() != Handle);
    const int before = handled;
    raise(SIGINT);
    EXPECT(handled == before + 1);
    signal(SIGINT, Handle);  // the program installs it again
  }
}

TEST(AProgramIsInterruptedAtItsNextCall) {
  Watch();
  const int64_t run = NewRun(), later = NewRun();
  {
    CallUnderWay call("potrs", run, nullptr, FailNobody, Here);
  }
  const int64_t signals = CountInterrupts();
  raise(SIGINT);
  EXPECT(CountInterrupts() == signals + 1);
  InterruptCalls(signals + 1);  // as the watcher does at some later time
  for (int i = 0; i < 2; ++i) {
    const auto group = std::make_shared<InProcessGroup>(1),
               other = std::make_shared<InProcessGroup>(1);
    CallUnderWay call("potrs", run, nullptr, FailNobody, Here);
    CallUnderWay next("potrs", later, nullptr, FailNobody, Here);
    call.Join(group);
    next.Join(other);
    EXPECT(group->Failure().message() == kText) << group->Failure().message();
    EXPECT(call.Interruption().message() == kText) << call.Interruption().message();
    EXPECT(!other->failed() && next.Interruption().ok());
  }
}

TEST(AnotherHandlerIsLeftAlone) {
  Watch();
  signal(SIGINT, SIG_IGN);
  {
    CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
    EXPECT(Installed() == SIG_IGN);
  }
  EXPECT(Installed() == SIG_IGN);
  Watch();
  {
    CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
    signal(SIGINT, SIG_IGN);
  }
  EXPECT(Installed() == SIG_IGN);
}

TEST(ASignalEndsTheCallsThatBeganBeforeIt) {
  Watch();
  const auto group = std::make_shared<InProcessGroup>(1),
             later = std::make_shared<InProcessGroup>(1);
  CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
  call.Join(group);
  const int64_t signals = CountInterrupts();
  const int before = handled;
  raise(SIGINT);
  EXPECT(handled == before + 1 && CountInterrupts() == signals + 1);
  CallUnderWay next("potrs", NewRun(), nullptr, FailNobody, Here);
  next.Join(later);
  EXPECT(Soon([&] { return group->failed(); }));
  EXPECT(group->Failure().code() == Code::kCancelled);
  EXPECT(call.Interruption().code() == Code::kCancelled && next.Interruption().ok());
  EXPECT(group->Failure().message() == kText) << group->Failure().message();
  InterruptCalls(signals + 1);  // repeated, in case the watcher hasn't finished the list
  EXPECT(!later->failed());
  raise(SIGINT);
  EXPECT(Soon([&] { return later->failed(); }));
}

TEST(ASignalThatIsForTheProgramEndsNoCall) {
  Watch();
  wanted = false;
  const auto group = std::make_shared<InProcessGroup>(1);
  CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
  call.Join(group);
  const int before = handled, asked_before = asked;
  raise(SIGINT);
  EXPECT(handled == before + 1);
  EXPECT(Soon([&] { return asked == asked_before + 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT(!group->failed());
}

TEST(ASignalEndsTheWaitForRanksThatHaveNotCome) {
  Watch();
  const CallKey key = {1, &key};
  CallUnderWay call("potrs", NewRun(), &key, FailKey, Here);
  std::shared_ptr<InProcessGroup> group;
  std::atomic<bool> done{false};
  Status joined;
  std::thread rank([&] {
    joined = JoinRendezvous({key, 0}, "potrs", 0, 2, {kPatience}, 0, &group);
    done = true;
  });
  raise(SIGINT);
  EXPECT(Soon([&] { return done.load(); }));
  rank.join();
  EXPECT(joined.message() == kText) << joined.message();
  // Rank 1, which joins later, gets the same error.
  joined = JoinRendezvous({key, 0}, "potrs", 1, 2, {kPatience}, 0, &group);
  EXPECT(joined.message() == kText) << joined.message();
}

TEST(AGroupThatRanksJoinAfterTheSignalFails) {
  Watch();
  const auto group = std::make_shared<InProcessGroup>(2);
  CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
  raise(SIGINT);
  InterruptCalls(CountInterrupts());
  EXPECT(!group->failed());
  call.Join(group);
  EXPECT(group->Failure().message() == kText);
}

TEST(AllRanksReturnTheInterrupt) {
  Watch();
  const auto group = std::make_shared<InProcessGroup>(3);
  CallUnderWay call("potrs", NewRun(), nullptr, FailNobody, Here);
  call.Join(group);
  std::atomic<int> working{0};
  std::vector<std::thread> threads;
  std::vector<Status> statuses(3);
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto device = NewHostDevice();
      const auto comm = NewInProcessCommunicator(group, rank, device.get(), {kPatience});
      double number = 0;
      statuses[rank] = RunOnAllRanks(
          *comm, [] { return Status::Ok(); },
          [&]() -> Status {
            ++working;
            // Rank 0 computes, and the other ranks wait for a block that it never sends.
            if (rank != 0) return comm->Recv(Stream::kMain, 0, Block(&number, 1, 1, 1));
            while (!comm->failed()) std::this_thread::yield();
            return Status::Ok();
          });
    });
  }
  EXPECT(Soon([&] { return working == 3; }));
  raise(SIGINT);
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) EXPECT(status.message() == kText) << status.message();
}

TEST(WorkDoesNotBeginAfterAnInterrupt) {
  bool began = false;
  const auto statuses = RunRanks(2, [&](const RankContext& context) -> Status {
    const auto abort = [&]() -> Status {
      context.comm.Abort(Status::Fixed(Code::kCancelled, "interrupted"));
      return Status::Ok();
    };
    const auto work = [&]() -> Status {
      began = true;
      return Status::Ok();
    };
    return RunOnAllRanks(context.comm, abort, work);
  });
  EXPECT(!began);
  for (const Status& status : statuses) EXPECT(status.message() == "interrupted");
}

// --- The floating-point mode of native code, and of the thread around it -------------------------

// Returns whether this thread keeps denormals, in operands and in results.
bool KeepsDenormals() {
  volatile double smallest = 4.9e-324, least_normal = 2.3e-308, one = 1, quarter = 0.25;
  volatile double kept = smallest * one, made = least_normal * quarter;
  return kept != 0 && made != 0;
}

TEST(NativeCodeKeepsDenormalsAndRestoresTheMode) {
#if defined(__x86_64__)
  EXPECT(KeepsDenormals());
  const unsigned before = __builtin_ia32_stmxcsr();
  const unsigned flushes = before | 0x8040;  // flush to zero, denormals are zero
  __builtin_ia32_ldmxcsr(flushes);
  EXPECT(!KeepsDenormals());
  {
    const DefaultFloatingPoint mode;
    EXPECT(KeepsDenormals());
    std::thread([] { EXPECT(KeepsDenormals()); }).join();
  }
  constexpr unsigned kSticky = 0x3f;  // status flags of earlier operations; not part of the mode
  EXPECT((__builtin_ia32_stmxcsr() & ~kSticky) == (flushes & ~kSticky));
  EXPECT(!KeepsDenormals());
  __builtin_ia32_ldmxcsr(before);
  {
    const DefaultFloatingPoint mode;
    EXPECT(KeepsDenormals());
  }
  EXPECT(KeepsDenormals());
#endif
}

}  // namespace
}  // namespace jaxmg
