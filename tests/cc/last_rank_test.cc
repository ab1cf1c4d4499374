// Calls that the last rank to arrive executes for all ranks (comm/rendezvous.h).
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/support/testing.h"
#include "xla_ffi/comm/rendezvous.h"

namespace jaxmg::testing {
namespace {

using std::chrono::milliseconds;

// The limit of waits that succeed at once.
constexpr Seconds kLimit(10);

// Runs one rank of a call that the last rank executes for all. `part` is this rank's operand.
Status DoForAll(int64_t run, int rank, int ranks, const int* part, Seconds limit,
                const std::function<Status(const std::vector<const void*>&)>& work) {
  const RendezvousKey key = {{run, nullptr}, 0};
  std::shared_ptr<MeetingForAll> meeting;
  bool last = false;
  JAXMG_RETURN_IF_ERROR(ArriveForAll(key, "potrs", rank, ranks, part, &meeting, &last));
  if (!last) return AwaitWork(key, "potrs", rank, {limit}, *meeting);
  const Status outcome = Guarded([&] { return work(PartsOf(*meeting)); });
  FinishForAll(*meeting, outcome);
  return outcome;
}

TEST(TheLastRankWorksForAll) {
  constexpr int kRanks = 4, kRounds = 50;
  std::atomic<int> worked{0}, done{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        int part = 100 * round + rank;
        const Status status =
            DoForAll(3000, rank, kRanks, &part, kLimit, [&](const std::vector<const void*>& parts) {
              for (int other = 0; other < kRanks; ++other) {
                int* theirs = static_cast<int*>(const_cast<void*>(parts[other]));
                EXPECT(*theirs == 100 * round + other) << *theirs;
                *theirs = -round;
              }
              ++worked;
              return Status::Ok();
            });
        EXPECT(status.ok()) << status.message();
        // Once a rank's call returns, all work is done.
        EXPECT(part == -round) << part;
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(worked == kRounds) << worked.load();
  EXPECT(done == kRanks * kRounds) << done.load();
}

TEST(ARankThatIsAloneNeverWaitsForOthers) {
  int part = 0;
  EXPECT(DoForAll(3001, 0, 1, &part, milliseconds(1), [&](const auto& parts) {
           return parts[0] == &part ? Status::Ok() : Error(Code::kInternal, "another part");
         }).ok());
}

TEST(AnErrorOfTheRankThatWorksIsThatOfAll) {
  std::vector<Status> statuses(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      int part = 0;
      statuses[rank] = DoForAll(3002, rank, 3, &part, kLimit,
                                [](const auto&) -> Status { throw std::bad_alloc(); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    EXPECT(status.code() == Code::kResourceExhausted) << status.message();
  }
}

TEST(ARankThatDoesNotArriveIsNamedAndNobodyWorks) {
  std::atomic<int> worked{0};
  std::vector<Status> statuses(3);
  auto arrive = [&](int rank, Seconds limit) {
    int part = 0;
    statuses[rank] = DoForAll(3003, rank, 3, &part, limit, [&](const auto&) {
      ++worked;
      return Status::Ok();
    });
  };
  std::thread first(arrive, 0, milliseconds(100)), second(arrive, 2, kLimit);
  first.join();
  second.join();
  arrive(1, kLimit);  // after the deadline
  for (const Status& status : statuses) {
    EXPECT(status.code() == Code::kDeadlineExceeded) << status.message();
    EXPECT(std::string(status.message()).find("missing: 1") != std::string::npos);
  }
  EXPECT(worked == 0) << worked.load();
}

// The limit applies to ranks that don't arrive; work may take longer. A failure of the call during
// the work doesn't end it either.
TEST(WorkMayTakeLongerThanTheLimit) {
  std::vector<Status> statuses(2);
  std::atomic<bool> over{false};
  auto work = [&](const std::vector<const void*>&) {
    FailCall(CallKey{3004, nullptr}, Error(Code::kCancelled, "interrupted"));
    std::this_thread::sleep_for(milliseconds(150));
    over = true;
    return Status::Ok();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      int part = 0;
      statuses[rank] = DoForAll(3004, rank, 2, &part, milliseconds(50), work);
      EXPECT(over);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
}

TEST(ARankThatWorksWithOthersMeetsNoneThatWorksForAll) {
  Status together;
  std::thread waiting([&] {
    std::shared_ptr<InProcessGroup> group;
    const RendezvousKey key = {{3006, nullptr}, 0};
    together = JoinRendezvous(key, "potrs", 0, 2, {kLimit}, 0, &group);
  });
  std::this_thread::sleep_for(milliseconds(20));
  int part = 0;
  const Status for_all =
      DoForAll(3006, 1, 2, &part, milliseconds(50), [](const auto&) { return Status::Ok(); });
  waiting.join();
  for (const Status& status : {together, for_all}) {
    EXPECT(status.code() == Code::kDeadlineExceeded) << status.message();
  }
}

TEST(AFailureOfACallEndsTheWaitForItsLastRank) {
  Status status;
  std::thread waiting([&] {
    int part = 0;
    status = DoForAll(3005, 0, 2, &part, kLimit, [](const auto&) { return Status::Ok(); });
  });
  std::this_thread::sleep_for(milliseconds(20));
  FailCall(CallKey{3005, nullptr}, Error(Code::kCancelled, "interrupted"));
  waiting.join();
  EXPECT(status.code() == Code::kCancelled) << status.message();
}

// Ranks that leave their parts wait for nobody: each makes all of its calls at once.
TEST(TheLastRankTakesThePartsThatOthersHaveLeft) {
  constexpr int kRanks = 3, kRounds = 50;
  std::atomic<int> worked{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        std::shared_ptr<MeetingForAll> meeting;
        bool last = false;
        const Status left =
            LeavePart({{3007, nullptr}, 0}, "potrs", rank, kRanks,
                      std::make_shared<const int>(100 * round + rank), &meeting, &last);
        EXPECT(left.ok()) << left.message();
        if (!last) continue;
        for (int other = 0; other < kRanks; ++other) {
          const int part = *static_cast<const int*>(PartsOf(*meeting)[other]);
          EXPECT(part == 100 * round + other) << part;
        }
        ++worked;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(worked == kRounds) << worked.load();
}

TEST(AFailureInTheExecutionIsThatOfRanksThatLeaveTheirParts) {
  const int site = 0;
  const RendezvousKey key = {{3008, &site}, 0}, another = {{3009, &site}, 0};
  std::shared_ptr<MeetingForAll> meeting;
  bool last = false;
  auto part = std::make_shared<const int>(0);
  const std::weak_ptr<const int> memory = part;
  EXPECT(LeavePart(key, "potrs", 0, 2, std::move(part), &meeting, &last).ok() && !last);
  meeting.reset();
  EXPECT(!memory.expired());
  FailCall(CallKey{3008, &memory}, Error(Code::kCancelled, "interrupted"));
  EXPECT(memory.expired());
  const Status late =
      LeavePart(key, "potrs", 1, 2, std::make_shared<const int>(0), &meeting, &last);
  EXPECT(late.code() == Code::kCancelled && !last) << late.message();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT(
        LeavePart(another, "potrs", rank, 2, std::make_shared<const int>(0), &meeting, &last).ok());
  }
  EXPECT(last);
}

TEST(AFailureOfAllCallsEndsTheWaitsOfAnExecution) {
  const int site = 0;
  const RendezvousKey key = {{3010, &site}, 0};
  Status status;
  std::thread waiting([&] {
    std::shared_ptr<InProcessGroup> group;
    status = JoinRendezvous(key, "potrs", 0, 2, {kLimit}, 0, &group);
  });
  std::this_thread::sleep_for(milliseconds(20));
  FailCall(CallKey{3011, nullptr}, Error(Code::kInternal, "another execution"));
  FailCall(CallKey{3010, nullptr}, Error(Code::kCancelled, "interrupted"));
  waiting.join();
  EXPECT(status.code() == Code::kCancelled) << status.message();
  std::shared_ptr<InProcessGroup> group;
  EXPECT(JoinRendezvous(key, "potrs", 1, 2, {kLimit}, 0, &group).code() == Code::kCancelled);
}

}  // namespace
}  // namespace jaxmg::testing
