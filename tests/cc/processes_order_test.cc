// Processes that make their calls in different orders get an error within a few seconds. It lists
// the calls. If a rendezvous may still succeed, the processes wait.
#include "tests/cc/support/processes.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Longer than the time to detect that a rendezvous can't succeed.
constexpr milliseconds kLate(4500);
// The limit of calls that must fail long before they reach it.
constexpr seconds kLimit(6);

Status Agrees(const RankContext& context) { return context.comm.Agree(Status::Ok()); }

// Devices of a call with two ranks in each process, on two devices.
Devices Two() { return {NewSharingHostDevice, true, true}; }
std::shared_ptr<const SharedCallSite> SiteOfAll(int processes, const std::string& text) {
  std::vector<int> all;
  for (int process = 0; process < processes; ++process) all.insert(all.end(), 2, process);
  return SiteOn(2 * processes, all, text);
}

void Runs(const std::shared_ptr<const SharedCallSite>& site, int64_t run,
          const Devices& devices = {}) {
  AllOk(RunRanksHere(site, run, Agrees, kPatience, "float64", devices));
}

// Checks that all ranks of this process get an error with these texts, long before the limit.
void Fails(const std::shared_ptr<const SharedCallSite>& site, int64_t run,
           const std::vector<std::string>& texts, const Devices& devices = {}) {
  const auto begin = Clock::now();
  for (const RankOutcome& one : RunRanksHere(site, run, Agrees, kLimit, "float64", devices)) {
    const std::string text = one.status.message();
    EXPECT(one.status.code() == Code::kInvalidArgument) << text;
    EXPECT(Has(text, "in different orders")) << text;
    for (const std::string& part : texts) EXPECT(Has(text, part)) << part << " is not in " << text;
  }
  EXPECT(SecondsSince(begin) < 5) << SecondsSince(begin);
}

TEST(CallsInOppositeOrdersFailSoon) {
  for (const int processes : {2, 3}) {
    for (const int odd : {0, processes - 1}) {
      RunProcesses(processes, [&](int process) {
        const auto first = SiteOfAll(processes, "potrs (n 8)");
        const auto second = SiteOfAll(processes, "syevd (n 50)");
        Runs(first, 1, Two());
        Runs(second, 2, Two());
        const auto name = [&](int index) { return "process " + std::to_string(index) + " (host "; };
        const std::vector<std::string> texts = {"waits in potrs (n 8), float64",
                                                "waits in syevd (n 50), float64", name(odd)};
        if (process == odd) {
          Fails(second, 4, texts, Two());
          Fails(first, 3, texts, Two());
        } else {
          Fails(first, 3, texts, Two());
          Fails(second, 4, texts, Two());
        }
        Runs(first, 5, Two());  // not affected by the failed call
        EXPECT(NothingIsLeft());
        return "";
      });
    }
  }
}

// The other processes haven't made this process's program, but it has made theirs.
TEST(ACallThatOthersNeverMakeFailsSoon) {
  for (const int odd : {0, 1}) {
    RunProcesses(3, [&](int process) {
      const auto all = SiteOfAll(3, "potrs (n 8)");
      Runs(all, 1, Two());
      const std::vector<std::string> texts = {"waits in potrs (n 8)", "waits in potri (n 9)"};
      if (process == odd) {
        Fails(SiteOfAll(3, "potri (n 9)"), 7, texts, Two());
      } else {
        Fails(all, 2, texts, Two());
      }
      EXPECT(NothingIsLeft());
      return "";
    });
  }
}

// No two processes wait for each other directly, and no lead knows all calls.
TEST(ProcessesThatWaitInACycleFail) {
  RunProcesses(3, [&](int process) {
    const std::vector<std::vector<int>> meshes = {{0, 1}, {1, 2}, {2, 0}};
    const std::vector<std::string> names = {"potrs (n 8)", "syevd (n 9)", "potri (n 10)"};
    std::vector<std::shared_ptr<const SharedCallSite>> sites;
    for (int i = 0; i < 3; ++i) sites.push_back(SiteOn(2, meshes[i], names[i]));
    const auto has = [&](int i) { return meshes[i][0] == process || meshes[i][1] == process; };
    for (int i = 0; i < 3; ++i) {
      if (has(i)) Runs(sites[i], 1 + i);
    }
    Fails(
        sites[process], 11 + process,
        {"process 0 (host ", "process 1 (host ", "process 2 (host ", names[0], names[1], names[2]});
    EXPECT(NothingIsLeft());
    return "";
  });
}

// The calls have different leads. The lead of the second call starts its search when the first lead
// has completed its own, and learns of the cycle from the first lead.
TEST(CallsOnMeshesInOppositeOrderOfRanksFail) {
  RunProcesses(3, [&](int process) {
    const auto first = SiteOn(2, {0, 1}, "potrs (n 8)");
    const auto second = SiteOn(3, {1, 0, 2}, "potri (n 9)");
    if (process != 2) Runs(first, 1);
    Runs(second, 2);
    for (const bool swapped : {false, true}) {
      const bool at_first = process != 2 && (process == 0) != swapped;
      // A search starts a second after the last process has arrived, and takes two rounds.
      if (!at_first) std::this_thread::sleep_for(milliseconds(process == 2 ? 1700 : 900));
      Fails(at_first ? first : second, (swapped ? 20 : 10) + (at_first ? 0 : 1),
            {"waits in potrs (n 8)", "waits in potri (n 9)"});
    }
    EXPECT(NothingIsLeft());
    return "";
  });
}

// A GPU runs a program's calls one after the other, so another call means another branch or another
// iteration.
TEST(OneProgramWithOtherCallsFailsOnGpus) {
  RunProcesses(2, [&](int process) {
    const Devices gpu = {NewSharingHostDevice, false, false};
    const auto first = SiteOn(2, {0, 1}, "potrs (n 8)"), second = SiteOn(2, {0, 1}, "potri (n 9)");
    Runs(first, 1, gpu);
    Runs(second, 1, gpu);
    Fails(process == 0 ? first : second, 2, {"waits in potrs (n 8)", "waits in potri (n 9)"}, gpu);
    EXPECT(NothingIsLeft());
    return "";
  });
}

// The process may be compiling or reading a file, and may join later.
TEST(AProcessThatIsInNoCallIsWaitedFor) {
  RunProcesses(3, [&](int process) {
    const auto all = SiteOfAll(3, "potrs (n 8)");
    const auto pair = SiteOn(2, {1, 2}, "potri (n 9)");
    for (const int run : {1, 3}) {
      if (process == 1) std::this_thread::sleep_for(kLate);
      if (process != 0) Runs(pair, run);
      Runs(all, run + 1, Two());
    }
    EXPECT(NothingIsLeft());
    return "";
  });
}

// Process 0 waits in the first call and process 1 in the second. Each joins the other call later.
void JoinsLate(int process, const std::shared_ptr<const SharedCallSite>& first,
               const std::shared_ptr<const SharedCallSite>& second, int64_t run, int64_t other_run,
               const Devices& devices, const Devices& others) {
  std::thread earlier([&] {
    if (process == 1) std::this_thread::sleep_for(kLate);
    Runs(first, run, devices);
  });
  if (process == 0) std::this_thread::sleep_for(kLate);
  Runs(second, other_run, others);
  earlier.join();
}

TEST(ConcurrentCallsAreWaitedFor) {
  RunProcesses(2, [&](int process) {
    const auto device = [](int64_t ordinal) {
      return Devices{NewSharingHostDevice, true, false, ordinal};
    };
    std::vector<std::thread> cases;
    int sites = 0;
    const auto join = [&](const std::vector<int>& processes, int64_t run, int64_t other_run,
                          const Devices& devices, const Devices& others) {
      const std::string n = std::to_string(++sites);
      const auto first = SiteOn(2, processes, "potrs (n " + n + ")");
      const auto second = SiteOn(2, processes, "potri (n " + n + ")");
      Runs(first, run, devices);
      Runs(second, run + 1, others);
      cases.emplace_back(
          [=] { JoinsLate(process, first, second, run + 2, other_run, devices, others); });
    };
    // Two meshes of the same processes, on different devices.
    join({0, 1}, 10, 13, device(0), device(1));
    // One program on CPU devices.
    join({0, 1}, 20, 22, device(2), device(2));
    // CPU devices of several groups: a program may be complete in one and wait in the other.
    join({0, 1, 0, 1}, 30, 33, device(3), device(3));
    // The device is unknown.
    join({0, 1}, 40, 43, device(-1), device(-1));
    for (std::thread& one : cases) one.join();
    EXPECT(NothingIsLeft());
    return "";
  });
}

// Two threads of a process start programs, which is discouraged. The hub has already seen the
// process run two programs at a time.
TEST(AProcessThatRunsProgramsConcurrentlyIsWaitedFor) {
  RunProcesses(2, [&](int process) {
    const auto first = SiteOn(2, {0, 1}, "potrs (n 8)"), second = SiteOn(2, {0, 1}, "potri (n 9)");
    if (process == 1) std::this_thread::sleep_for(milliseconds(300));
    std::thread other([&] { Runs(first, 1); });
    Runs(second, 2);
    other.join();
    JoinsLate(process, first, second, 3, 4, {}, {});
    EXPECT(NothingIsLeft());
    return "";
  });
}

}  // namespace
}  // namespace jaxmg
