// Processes that never join a call, join another one, can't prepare it, or don't belong to the job:
// within the limit, all others get an error that names the process and the reason.
#include <csignal>

#include "tests/cc/support/processes.h"
#include "xla_ffi/comm/processes/rendezvous/rendezvous_registry.h"
#include "xla_ffi/comm/rendezvous.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Transport kTransports[] = {Transport::kUnix, Transport::kTcp};

TEST(ARankThatNeverJoinsIsNamed) {
  for (const int absent : {0, 1, 2}) {
    RunProcesses(3, [&](int process) -> std::string {
      const auto site = SiteOn(3, {0, 1, 2});
      if (process == absent) {
        std::this_thread::sleep_for(milliseconds(1000));
        // A rank that joins late gets the same error.
        const auto begin = Clock::now();
        for (const RankOutcome& one : RunRanksHere(site, 1, [](const RankContext& context) {
               return context.comm.Agree(Status::Ok());
             })) {
          EXPECT(!one.status.ok());
        }
        EXPECT(SecondsSince(begin) < 5);
        return "";
      }
      const auto begin = Clock::now();
      for (const RankOutcome& one : RunRanksHere(
               site, 1, [](const RankContext& context) { return context.comm.Agree(Status::Ok()); },
               milliseconds(500))) {
        const std::string text = one.status.message();
        EXPECT(one.status.code() == Code::kDeadlineExceeded) << text;
        const std::string a = std::to_string(absent);
        EXPECT(Has(text, a + " of process " + a + " (host ")) << text;
        EXPECT(Has(text, "potrs")) << text;
      }
      EXPECT(SecondsSince(begin) < 7);
      EXPECT(NothingIsLeft());
      return "";
    });
  }
}

// Some ranks of a process join, and others don't.
TEST(AMissingRankOfAnotherProcessIsNamed) {
  RunProcesses(2, [&](int process) {
    const auto site = SiteOn(3, {0, 1, 1});
    std::vector<Status> statuses(3);
    std::vector<std::thread> threads;
    for (int rank = process; rank <= process; ++rank) {  // rank 2 doesn't join
      threads.emplace_back([&, rank] {
        std::shared_ptr<InProcessGroup> group;
        int sharing = 0;
        statuses[rank] =
            JoinSharedRendezvous({site, 1, 0, rank, ""}, {milliseconds(500)}, &group, &sharing);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string text = statuses[process].message();
    EXPECT(statuses[process].code() == Code::kDeadlineExceeded) << text;
    EXPECT(Has(text, "1, 2 of process 1 (host ")) << text;
    return "";
  });
}

// Checks that the error names both calls and comes long before the limit.
void FailsAtOnce(const std::vector<RankOutcome>& outcomes, const char* one, const char* other) {
  for (const RankOutcome& outcome : outcomes) {
    const std::string text = outcome.status.message();
    EXPECT(outcome.status.code() == Code::kInvalidArgument) << text;
    EXPECT(Has(text, one) && Has(text, other)) << text;
    EXPECT(Has(text, "process 0 (host ") && Has(text, "process 1 (host ")) << text;
  }
}

Status Agrees(const RankContext& context) { return context.comm.Agree(Status::Ok()); }

TEST(DifferentCallsFailAtOnce) {
  // Different options: the call sites have different names, each unknown to the other process.
  RunProcesses(2, [&](int process) {
    const auto begin = Clock::now();
    const auto site = SiteOn(2, {0, 1}, process == 0 ? "potrs (n 8)" : "potri (n 50)");
    FailsAtOnce(RunRanksHere(site, 10 + process, Agrees), "potrs (n 8)", "potri (n 50)");
    EXPECT(SecondsSince(begin) < 5) << SecondsSince(begin);
    AllOk(RunRanksHere(SiteOn(2, {0, 1}, "potrs (n 9)"), 1, Agrees));
    EXPECT(NothingIsLeft());
    return "";
  });
  // Different operands, in executions with the same RunId and with different ones.
  for (const int step : {0, 1}) {
    RunProcesses(2, [&](int process) {
      const auto begin = Clock::now();
      const auto site = SiteOn(2, {0, 1});
      const auto outcomes = RunRanksHere(site, 1 + step * process, Agrees, kPatience,
                                         process == 0 ? "float64" : "float32");
      FailsAtOnce(outcomes, "float64", "float32");
      for (const RankOutcome& outcome : outcomes) {  // from the comparison, not from a cycle
        const std::string text = outcome.status.message();
        EXPECT(Has(text, "make different calls: ")) << text;
        EXPECT(Has(text, "the dtype is float64 in process 0 and float32 in process 1: ")) << text;
      }
      EXPECT(SecondsSince(begin) < 5) << SecondsSince(begin);
      AllOk(RunRanksHere(site, 7, Agrees));
      EXPECT(NothingIsLeft());
      return "";
    });
  }
}

TEST(WhatDiffersIsSaidInTheWordsOfTheCaller) {
  const auto expect = [](const char* one, const char* other, const std::string& difference) {
    const std::string found = DescribeDifference(0, one, 1, other);
    EXPECT(found == difference) << found;
  };
  const char* text = "potrs (backend native, n 64, tile 5), float64, blocks of 32 x 64, jaxmg 2";
  expect(text, "potrs (backend native, n 68, tile 7), float32, blocks of 34 x 68, jaxmg 2",
         "n is 64 in process 0 and 68 in process 1, the tile width is 5 in process 0 and 7 in "
         "process 1, the dtype is float64 in process 0 and float32 in process 1");
  expect(text, "syevd (n 3)", "the routine is potrs in process 0 and syevd in process 1");
  expect("gels (n 2), float64, blocks of 1 x 2, b of 2 x 1",
         "gels (n 2), float64, blocks of 1 x 2, b of 2 x 3",
         "the shape of b is 2 x 1 in process 0 and 2 x 3 in process 1");
  expect(text, text, "two programs contain this call");
  expect("", "(", "the routine is  in process 0 and ( in process 1");
}

// The calls in which the other processes waited have already failed.
TEST(AProcessThatJoinsLaterLearnsThatTheCallsDiffer) {
  RunProcesses(3, [&](int process) {
    const auto site = SiteOn(3, {0, 1, 2}, process == 0 ? "potrs (n 8)" : "potrs (n 9)");
    if (process == 2) std::this_thread::sleep_for(milliseconds(2500));
    const auto begin = Clock::now();
    FailsAtOnce(RunRanksHere(site, 1 + (process > 0 ? 1 : 0), Agrees), "potrs (n 8)",
                "potrs (n 9)");
    EXPECT(SecondsSince(begin) < 5) << SecondsSince(begin);
    EXPECT(NothingIsLeft());
    return "";
  });
}

// Programs may run concurrently. So a process that waits in one call may join the other one later,
// if it has made that program. The devices of a program are unknown before it has run.
// processes_order_test.cc tests calls whose order is known to differ.
TEST(CallsThatMayStillJoinAreWaitedFor) {
  for (const bool late : {false, true}) {  // process 0 makes the second program later
    RunProcesses(2, [&](int process) {
      const auto first = SiteOn(2, {0, 1}, "potrs (n 8)");
      std::shared_ptr<const SharedCallSite> second;
      const auto make = [&] { second = SiteOn(2, {0, 1}, "potrs (n 9)"); };
      if (process == 1 || !late) make();
      std::vector<RankOutcome> one;
      std::thread other([&] {
        if (process == 1) std::this_thread::sleep_for(milliseconds(2500));
        one = RunRanksHere(first, 1, Agrees);
      });
      if (process == 0) std::this_thread::sleep_for(milliseconds(2500));
      if (second == nullptr) make();
      AllOk(RunRanksHere(second, 2, Agrees));
      other.join();
      AllOk(one);
      EXPECT(NothingIsLeft());
      return "";
    });
  }
}

// The processes have made both programs but run neither, so their order is unknown.
TEST(CallsInAnotherOrderAreNamedAtTheLimit) {
  RunProcesses(2, [&](int process) {
    const auto first = SiteOn(2, {0, 1}, "potrs (n 8)"), second = SiteOn(2, {0, 1}, "potri (n 50)");
    for (const RankOutcome& one : RunRanksHere(process == 0 ? first : second, 1 + process, Agrees,
                                               milliseconds(process == 0 ? 1500 : 2500))) {
      const std::string text = one.status.message();
      EXPECT(one.status.code() == Code::kDeadlineExceeded) << text;
      EXPECT(Has(text, "potri")) << text;
      EXPECT(process == 1 || (Has(text, "potrs (n 8)") && Has(text, "waits in potri (n 50)")))
          << text;
    }
    return "";
  });
}

TEST(OtherVersionsOfThePluginAreNamed) {
  JobOptions options;
  options.change = [](int process, JobOptions* mine) {
    mine->version = process == 0 ? "1.2" : "1.3";
  };
  RunProcesses(
      2,
      [&](int) {
        for (const RankOutcome& one : RunRanksHere(SiteOn(2, {0, 1}), 1, [](const RankContext& c) {
               return c.comm.Agree(Status::Ok());
             })) {
          const std::string text = one.status.message();
          EXPECT(Has(text, "jaxmg 1.2") && Has(text, "jaxmg 1.3")) << text;
        }
        return "";
      },
      options);
}

// Two jobs whose processes have the same indices and know each other's addresses.
TEST(ProcessesOfAnotherJobAreRefused) {
  for (const Transport transport : kTransports) {
    JobOptions options = Over(transport, seconds(20));
    options.change = [](int process, JobOptions* mine) {
      if (process == 1) mine->job = "another job";
    };
    RunProcesses(
        2,
        [&](int process) {
          for (const RankOutcome& one : RunRanksHere(
                   SiteOn(2, {0, 1}), 1,
                   [](const RankContext& c) { return c.comm.Agree(Status::Ok()); },
                   milliseconds(500))) {
            const std::string text = one.status.message();
            EXPECT(!one.status.ok()) << "process " << process << " joined one of another job";
            // The connecting process gets the other's proof first, and doesn't wait for the limit.
            EXPECT(process == 1 || Has(text, "has another secret (JAXMG_SECRET)")) << text;
          }
          for (const ConnectionInfo& info : Hub::Instance().Connections()) {
            EXPECT(info.state != "connected") << info.state;
          }
          return "";
        },
        options);
  }
}

// The process runs, but accepts no connection before it knows which processes to expect. That may
// take longer than the time limit of a greeting.
TEST(AProcessThatKnowsTheOthersLateIsWaitedFor) {
  for (const Transport transport : {Transport::kTcp}) {
    JobOptions options = Over(transport, seconds(20));
    std::map<int, std::string> all;
    options.before = [&](int process, std::map<int, std::string>* addresses) {
      all = *addresses;
      // Process 2 expects only process 1, which connects later than process 0.
      if (process == 2) addresses->erase(0);
      if (process == 1) std::this_thread::sleep_for(seconds(12));
    };
    RunProcesses(
        3,
        [&](int process) {
          if (process == 2) {
            std::this_thread::sleep_for(seconds(13));
            EXPECT(Hub::Instance().Connect(2, all, options.job).ok());
          }
          AllOk(RunRanksHere(SiteOn(3, {0, 1, 2}), 1, Agrees));
          return "";
        },
        options);
  }
}

// A rank that can't prepare the call fails it in all processes, including those that join later.
TEST(ARankThatCanNotJoinFailsAllProcesses) {
  RunProcesses(3, [&](int process) {
    const auto site = SiteOn(4, {0, 1, 1, 2});
    for (const int broken : {0, 1, 2}) {
      const auto begin = Clock::now();
      const Status why = Error(Code::kUnavailable, "no library in process ", broken);
      std::vector<Status> statuses;
      // All processes connect before one fails.
      for (const RankOutcome& one : RunRanksHere(site, 10 + 2 * broken, [](const RankContext& c) {
             return c.comm.Agree(Status::Ok());
           })) {
        EXPECT(one.status.ok()) << one.status.message();
      }
      if (process == broken) {
        std::this_thread::sleep_for(milliseconds(100));
        FailCall({11 + 2 * broken, site.get()}, why);
        FailSharedCall(*site, 11 + 2 * broken, why);
      }
      for (const RankOutcome& one : RunRanksHere(site, 11 + 2 * broken, [](const RankContext& c) {
             return c.comm.Agree(Status::Ok());
           })) {
        EXPECT(one.status.message() == "potrs: " + why.message()) << one.status.message();
      }
      EXPECT(SecondsSince(begin) < 10);
    }
    EXPECT(NothingIsLeft());
    return "";
  });
}

// A process that ended before any other one connected to it.
TEST(AProcessThatHasEndedIsNamed) {
  for (const Transport transport : {Transport::kAuto}) {
    RunProcesses(2,
                 [&](int process) -> std::string {
                   if (process == 1) kill(getpid(), SIGKILL);
                   for (const RankOutcome& one : RunRanksHere(
                            SiteOn(2, {0, 1}), 1,
                            [](const RankContext& c) { return c.comm.Agree(Status::Ok()); })) {
                     EXPECT(one.status.code() == Code::kUnavailable) << one.status.message();
                     EXPECT(Has(one.status.message(), "process 1 (host ")) << one.status.message();
                   }
                   return "";
                 },
                 Over(transport, seconds(20)), {1});
  }
}

}  // namespace
}  // namespace jaxmg
