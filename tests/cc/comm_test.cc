// Messages arrive, agreements are equal on all ranks, and nothing waits forever.
#include <atomic>
#include <chrono>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/living_objects.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/comm/communicator.h"
#include "xla_ffi/comm/rendezvous.h"

namespace jaxmg {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using testing::RunRanks;

TEST(BroadcastAndAllGatherReachEveryRank) {
  for (int ranks : {1, 2, 3, 8, 16}) {
    std::vector<std::vector<int>> gathered(ranks, std::vector<int>(ranks, -1));
    std::vector<int> heard(ranks, -1);
    const auto statuses = RunRanks(ranks, [&](const RankContext& context) -> Status {
      const int rank = context.comm.rank();
      const int mine = 100 + rank;
      JAXMG_RETURN_IF_ERROR(AllGather(context.comm, context.device, Stream::kMain, &mine,
                                      gathered[rank].data(), sizeof(int)));
      for (int root = 0; root < context.comm.size(); ++root) {
        int value = rank == root ? 7 * root : -1;
        JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, root, Block(&value, 1, 1, 1)));
        JAXMG_RETURN_IF_ERROR(WaitAllSent(context.comm, Stream::kMain));
        heard[rank] = value;
        EXPECT(value == 7 * root) << "rank " << rank << " root " << root;
      }
      return context.comm.Agree(Status::Ok());
    });
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT(statuses[rank].ok()) << statuses[rank].message();
      for (int other = 0; other < ranks; ++other) EXPECT(gathered[rank][other] == 100 + other);
    }
  }
}

// The host device with slow copies.
class Slow : public testing::ForwardingDevice {
 public:
  Slow() : Slow(NewHostDevice()) {}
  Status Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) override {
    std::this_thread::sleep_for(milliseconds(20));
    return ForwardingDevice::Copy(stream, target, source);
  }

 private:
  explicit Slow(std::unique_ptr<Device> host) : ForwardingDevice(*host), host_(std::move(host)) {}
  const std::unique_ptr<Device> host_;
};

// A rank starts the next call in memory that other ranks still use for the previous call.
TEST(GatheredBlocksMayBeOverwrittenAtOnce) {
  constexpr int kRanks = 3;
  std::vector<std::vector<int32_t>> gathered(kRanks, std::vector<int32_t>(kRanks, -1));
  std::vector<int32_t> mine = {100, 101, 102};
  const auto statuses = RunRanks(
      kRanks,
      [&](const RankContext& context) -> Status {
        const int rank = context.comm.rank();
        JAXMG_RETURN_IF_ERROR(AllGather(context.comm, context.device, Stream::kMain, &mine[rank],
                                        gathered[rank].data(), sizeof(int32_t)));
        return context.device.FillInt32(Stream::kMain, &mine[rank], 1, -2);
      },
      testing::kPatience,
      [](int rank) -> std::unique_ptr<Device> {
        std::unique_ptr<Device> host = rank == 1 ? std::make_unique<Slow>() : NewHostDevice();
        return testing::NewAsyncDevice(std::move(host), Tuning());
      });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT(statuses[rank].ok()) << statuses[rank].message();
    for (int other = 0; other < kRanks; ++other) {
      EXPECT(gathered[rank][other] == 100 + other) << gathered[rank][other] << " on rank " << rank;
    }
  }
}

TEST(MessagesKeepTheirOrderAndShape) {
  const auto statuses = RunRanks(2, [&](const RankContext& context) -> Status {
    std::vector<double> data(60);
    if (context.comm.rank() == 0) {
      std::iota(data.begin(), data.end(), 0.0);
      for (int i = 0; i < 10; ++i) {  // 2 x 2 blocks of a 6 x 10 matrix
        JAXMG_RETURN_IF_ERROR(context.comm.Send(Stream::kMain, 1, Block(data.data() + i, 6, 2, 2)));
      }
    } else {
      for (int i = 0; i < 10; ++i) {
        double block[4] = {};
        JAXMG_RETURN_IF_ERROR(context.comm.Recv(Stream::kMain, 0, Block(block, 2, 2, 2)));
        EXPECT(block[0] == i && block[1] == i + 1 && block[2] == i + 6 && block[3] == i + 7) << i;
      }
    }
    JAXMG_RETURN_IF_ERROR(WaitAllSent(context.comm, Stream::kMain));
    return context.comm.Agree(Status::Ok());
  });
  for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
}

TEST(AgreementIsTheFirstCause) {
  const auto begin = std::chrono::steady_clock::now();
  const auto statuses = RunRanks(4, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    if (rank == 2) {
      const Status mine = Error(Code::kResourceExhausted, "no memory on rank 2");
      context.comm.Abort(mine);
      return context.comm.Agree(mine);
    }
    int value = 0;  // rank 2 never sends
    const Status told = context.comm.Recv(Stream::kMain, 2, Block(&value, 1, 1, 1));
    EXPECT(told.code() == Code::kAborted) << told.message();
    return context.comm.Agree(told);
  });
  for (const Status& status : statuses) {
    EXPECT(status.code() == Code::kResourceExhausted) << status.message();
    EXPECT(status.message() == "no memory on rank 2") << status.message();
  }
  // The abort wakes waiting ranks at once.
  EXPECT(std::chrono::steady_clock::now() - begin < testing::kPatience / 2);
}

TEST(ASilentRankIsAnErrorEverywhere) {
  const auto statuses = RunRanks(
      3,
      [&](const RankContext& context) -> Status {
        if (context.comm.rank() == 1) return Status::Ok();  // returns without a message
        return context.comm.Agree(Status::Ok());
      },
      milliseconds(200));
  EXPECT(statuses[0].code() == Code::kDeadlineExceeded) << statuses[0].message();
  EXPECT(statuses[2].code() == Code::kDeadlineExceeded) << statuses[2].message();
}

// The limit of rendezvous and waits that succeed at once. It is short, so that a test in which all
// ranks wait in vain doesn't seem to hang.
constexpr Seconds kLimit(10);

// Joins a rendezvous; the rank contributes 10 + rank.
Status Join(int64_t run, int rank, int ranks, Seconds limit,
            std::shared_ptr<InProcessGroup>* group) {
  return JoinRendezvous({{run, nullptr}, 0}, "potrs", rank, ranks, {limit}, 10 + rank, group);
}

TEST(RendezvousMatchTheirCalls) {
  constexpr int kRanks = 4, kRounds = 50;
  std::vector<std::thread> threads;
  std::atomic<int> joined{0};
  for (int64_t run : {1, 2}) {
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, run, rank] {
        for (int round = 0; round < kRounds; ++round) {
          // The same key each time, as in a loop.
          std::shared_ptr<InProcessGroup> group;
          const Status status = Join(run, rank, kRanks, kLimit, &group);
          EXPECT(status.ok()) << status.message();
          if (!status.ok()) return;
          for (int other = 0; other < kRanks; ++other) {
            EXPECT(group->rank_values()[other] == 10 + other) << group->rank_values()[other];
          }
          auto device = NewHostDevice();
          auto comm = NewInProcessCommunicator(group, rank, device.get(), {kLimit});
          const int64_t mine = run * 1000 + round;
          int64_t all[kRanks];
          Status gathered = AllGather(*comm, *device, Stream::kMain, &mine, all, sizeof(mine));
          EXPECT(gathered.ok()) << gathered.message();
          for (int64_t value : all) EXPECT(value == mine) << value << " received for " << mine;
          EXPECT(comm->Agree(Status::Ok()).ok());
          ++joined;
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(joined == 2 * kRanks * kRounds) << joined.load();
}

TEST(TwoCallsOfARankAreTwoRendezvous) {
  std::shared_ptr<InProcessGroup> groups[2][2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    for (int coming = 0; coming < 2; ++coming) {
      threads.emplace_back([&, rank, coming] {
        const Status status = Join(13, rank, 2, kLimit, &groups[rank][coming]);
        EXPECT(status.ok()) << status.message();
      });
      std::this_thread::sleep_for(milliseconds(20));  // the calls arrive in this order
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (int coming : {0, 1}) EXPECT(groups[0][coming] == groups[1][coming]) << coming;
  EXPECT(groups[0][0] != groups[0][1]);
}

TEST(SharedValuesReachEveryRankInEachCall) {
  constexpr int kRanks = 4;
  const auto statuses = RunRanks(kRanks, [&](const RankContext& context) -> Status {
    for (int round = 0; round < 200; ++round) {
      std::vector<int64_t> all;
      JAXMG_RETURN_IF_ERROR(context.comm.Share(10 * round + context.comm.rank(), &all));
      for (int rank = 0; rank < kRanks; ++rank) EXPECT(all[rank] == 10 * round + rank) << round;
    }
    return Status::Ok();
  });
  for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
}

TEST(ABlockOfAnotherShapeIsRefused) {
  const auto statuses = RunRanks(2, [&](const RankContext& context) -> Status {
    double data[6] = {};
    if (context.comm.rank() == 0) {
      return context.comm.Send(Stream::kMain, 1, Block(data, 2, 2, 2));
    }
    const Status status = context.comm.Recv(Stream::kMain, 0, Block(data, 2, 2, 3));
    EXPECT(status.code() == Code::kInternal) << status.message();
    return Status::Ok();
  });
  for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
}

// Calls are distinct if their keys differ in any one number.
TEST(OnlyEqualKeysMeet) {
  const int here = 0, there = 0;
  for (int64_t number : {0, 1, 2}) {
    // A separate run, because these calls fail, and a failed call has no further rendezvous.
    const RendezvousKey key = {{20 + 2 * number, &here}, 0};
    RendezvousKey other = key;
    if (number == 0) ++other.call.run;
    if (number == 1) other.call.call_site = &there;
    if (number == 2) ++other.group;
    Status statuses[2];
    auto join = [&](int rank, const RendezvousKey& mine) {
      std::shared_ptr<InProcessGroup> group;
      statuses[rank] = JoinRendezvous(mine, "potrs", rank, 2, {milliseconds(50)}, 0, &group);
    };
    std::thread first(join, 0, key);
    join(1, other);
    first.join();
    for (const Status& status : statuses) EXPECT(!status.ok());
  }
}

TEST(AMissingRankIsNamed) {
  std::vector<std::thread> threads;
  std::vector<Status> statuses(4);
  for (int rank : {0, 3}) {
    threads.emplace_back([&, rank] {
      std::shared_ptr<InProcessGroup> group;
      statuses[rank] = Join(9, rank, 4, milliseconds(200), &group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank : {0, 3}) {
    EXPECT(statuses[rank].code() == Code::kDeadlineExceeded);
    const std::string text = statuses[rank].message();
    EXPECT(text.find("rank(s) 0, 3 of 4 came") != std::string::npos) << text;
    EXPECT(text.find("missing: 1, 2") != std::string::npos) << text;
  }
  // A rank that arrives later gets the error and does not wait for ranks that have left.
  std::shared_ptr<InProcessGroup> group;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT(Join(9, 1, 4, kLimit, &group).code() == Code::kDeadlineExceeded);
  EXPECT(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  // Other calls are not affected.
  EXPECT(Join(10, 0, 1, milliseconds(200), &group).ok());
}

TEST(FailedRendezvousFreeTheirMemory) {
  int64_t before = 0;
  for (int64_t run = 1000; run < 1300; ++run) {
    if (run == 1100) before = alive;  // the table of failed calls is full
    std::shared_ptr<InProcessGroup> group;
    EXPECT(!Join(run, 0, 2, std::chrono::microseconds(1), &group).ok());
  }
  EXPECT(alive == before) << alive - before << " more after 200 waits";
}

TEST(ARankThatCanNotJoinFailsTheOthers) {
  const Status broken = Error(Code::kUnavailable, "no library on rank 2");
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t run : {11, 12}) {
    std::vector<Status> statuses(4);
    auto join = [&](int rank) {
      std::shared_ptr<InProcessGroup> group;
      statuses[rank] = Join(run, rank, 4, kLimit, &group);
    };
    std::thread waiting(join, 0);
    if (run == 11) std::this_thread::sleep_for(milliseconds(50));  // until rank 0 waits
    FailCall({run, nullptr}, broken);
    waiting.join();
    for (int late : {3, 1, 2}) join(late);
    for (const Status& status : statuses) {
      EXPECT(status.code() == Code::kUnavailable) << status.message();
      EXPECT(status.message() == "no library on rank 2") << status.message();
    }
  }
  EXPECT(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

// Holds also if the rank has no memory left for a message.
TEST(AnExceptionOfARankIsAnErrorOfAll) {
  for (int rounds : {0, 1}) {
    auto group = std::make_shared<InProcessGroup>(3);
    std::vector<Status> statuses(3);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto device = NewHostDevice();
        statuses[rank] =
            RunInGroup(group, rank, device.get(), {kLimit}, [&](Communicator& comm) -> Status {
              for (int i = 0; i < rounds; ++i) JAXMG_RETURN_IF_ERROR(comm.Agree(Status::Ok()));
              if (rank == 1) throw std::bad_alloc();
              if (rank == 2) {
                int value = 0;
                const Status told = comm.Recv(Stream::kMain, 1, Block(&value, 1, 1, 1));
                EXPECT(told.code() == Code::kAborted) << told.message();
                JAXMG_RETURN_IF_ERROR(comm.Agree(told));
              }
              return comm.Agree(Status::Ok());
            });
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    for (const Status& status : statuses) {
      EXPECT(status.code() == Code::kResourceExhausted) << status.message();
      EXPECT(status.message() == "out of host memory") << status.message();
    }
  }
}

// An abort wakes waiting ranks at once, not at their time limit.
TEST(AbortWakesWaitingRanks) {
  const auto begin = std::chrono::steady_clock::now();
  const auto statuses = RunRanks(3, [&](const RankContext& context) -> Status {
    Status mine;
    if (context.comm.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(100));  // until the others wait
      mine = Error(Code::kInternal, "rank 0 gives up");
      context.comm.Abort(mine);
    } else if (context.comm.rank() == 1) {
      int value = 0;
      mine = context.comm.Recv(Stream::kMain, 2, Block(&value, 1, 1, 1));
    } else {
      mine = context.comm.WaitSent(Stream::kMain, 1, 1);
    }
    return context.comm.Agree(mine);
  });
  EXPECT(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  for (const Status& status : statuses) EXPECT(status.message() == "rank 0 gives up");
}

TEST(RendezvousWithoutATimeLimit) {
  for (double limit : {1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT(Deadline(Seconds(limit)) > Clock::now() + std::chrono::hours(24 * 365));
    std::shared_ptr<InProcessGroup> groups[2];
    Status statuses[2];
    const int64_t run = limit == 1e300 ? 31 : 32;
    std::thread first([&] { statuses[0] = Join(run, 0, 2, Seconds(limit), &groups[0]); });
    std::this_thread::sleep_for(milliseconds(20));
    statuses[1] = Join(run, 1, 2, Seconds(limit), &groups[1]);
    first.join();
    EXPECT(statuses[0].ok() && statuses[1].ok() && groups[0] == groups[1]);
  }
}

}  // namespace
}  // namespace jaxmg
