// Processes that never come to a call, come to another one, can't get ready for it, or don't belong
// to the job: all others have an error that says who and what, within the limit.
#include <csignal>

#include "tests/cc/processes.h"
#include "xla_ffi/comm/meeting.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Transport kTransports[] = {Transport::kUnix, Transport::kTcp};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

double SecondsSince(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

JobOptions Over(Transport transport, Seconds peer_timeout) {
  JobOptions options;
  options.transport = transport;
  options.peer_timeout = peer_timeout;
  return options;
}

TEST(ARankThatNeverComesIsNamed) {
  for (const int absent : {0, 1, 2}) {
    RunProcesses(3, [&](int process) -> std::string {
      const auto site = SiteOn(3, {0, 1, 2});
      if (process == absent) {
        std::this_thread::sleep_for(milliseconds(1000));
        // What comes after all hears of it.
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

// Where some ranks of a process come and others don't.
TEST(AMissingRankOfAnotherProcessIsNamed) {
  RunProcesses(2, [&](int process) {
    const auto site = SiteOn(3, {0, 1, 1});
    std::vector<Status> statuses(3);
    std::vector<std::thread> threads;
    for (int rank = process; rank <= process; ++rank) {  // rank 2 doesn't come
      threads.emplace_back([&, rank] {
        std::shared_ptr<InProcessGroup> group;
        int sharing = 0;
        statuses[rank] = MeetAcross({site, 1, 0, rank, ""}, {milliseconds(500)}, &group, &sharing);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string text = statuses[process].message();
    EXPECT(statuses[process].code() == Code::kDeadlineExceeded) << text;
    EXPECT(Has(text, "1, 2 of process 1 (host ")) << text;
    return "";
  });
}

TEST(DifferentCallsAreNamedOnBothSides) {
  // Other options in the call: no names that could meet, so the limit says what each waits in.
  RunProcesses(2, [&](int process) {
    const auto site = SiteOn(2, {0, 1}, process == 0 ? "potrs (n 8)" : "potri (n 50)");
    for (const RankOutcome& one : RunRanksHere(
             site, 1, [](const RankContext& context) { return context.comm.Agree(Status::Ok()); },
             milliseconds(process == 0 ? 500 : 1500))) {
      const std::string text = one.status.message();
      EXPECT(one.status.code() == Code::kDeadlineExceeded) << text;
      EXPECT(Has(text, "potri")) << text;
      EXPECT(process == 1 || (Has(text, "potrs (n 8)") && Has(text, "waits in potri (n 50)")))
          << text;
    }
    return "";
  });
  // Other operands: the lead compares them.
  RunProcesses(2, [&](int process) {
    const auto begin = Clock::now();
    for (const RankOutcome& one : RunRanksHere(
             SiteOn(2, {0, 1}), 1,
             [](const RankContext& context) { return context.comm.Agree(Status::Ok()); }, kPatience,
             process == 0 ? "float64" : "float32")) {
      const std::string text = one.status.message();
      EXPECT(one.status.code() == Code::kInvalidArgument) << text;
      EXPECT(Has(text, "float64") && Has(text, "float32") && Has(text, "process 1 (host ")) << text;
    }
    EXPECT(SecondsSince(begin) < 5);
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

// Two jobs whose processes have the same indices, and know each other's addresses.
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
            EXPECT(!one.status.ok()) << "process " << process << " met one of another job";
          }
          for (const ConnectionInfo& info : Hub::The().Connections()) {
            EXPECT(info.state != "connected") << info.state;
          }
          return "";
        },
        options);
  }
}

// A rank that can't get ready fails the call everywhere, before it and after it.
TEST(ARankThatWillNotComeTellsAllProcesses) {
  RunProcesses(3, [&](int process) {
    const auto site = SiteOn(4, {0, 1, 1, 2});
    for (const int broken : {0, 1, 2}) {
      const auto begin = Clock::now();
      const Status why = Error(Code::kUnavailable, "no library in process ", broken);
      std::vector<Status> statuses;
      // All are connected before one fails.
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

// Nobody is there who could answer: a process that ended before anybody connected.
TEST(AProcessThatIsGoneBeforeIsNamed) {
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
