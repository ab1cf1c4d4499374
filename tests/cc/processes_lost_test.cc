// Processes that are killed or stopped during a call: within the limit, all others get an error
// that names the process and the reason. A slow process doesn't count as lost.
#include <algorithm>
#include <csignal>

#include "tests/cc/support/processes.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Transport kTransports[] = {Transport::kUnix, Transport::kTcp};

// Sends process `to` a frame of a call.
void SendOneOf(const CallId& call, int to) {
  OutFrame frame;
  frame.header.type = FrameType::kData;
  frame.header.lead = call.first;
  frame.header.call = call.second;
  if (const auto connection = Hub::Instance().ConnectionTo(to)) {
    EXPECT(connection->Send(std::move(frame)).ok());
  }
}

// One process kills or stops itself during a call, between its first agreement and its last.
void LoseOne(int signal, int victim, Transport transport, Seconds limit, double within) {
  const std::vector<int> deal = {0, 1, 1, 2};
  RunProcesses(
      3,
      [&](int process) {
        const auto site = SiteOn(4, deal);
        const auto begin = Clock::now();
        const auto outcomes = RunRanksHere(site, 1, [&](const RankContext& context) -> Status {
          JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
          if (process == victim) {
            std::this_thread::sleep_for(milliseconds(100));  // until the others wait
            kill(getpid(), signal);
            std::this_thread::sleep_for(seconds(60));
          }
          int value = 0;
          const int peer =
              static_cast<int>(std::find(deal.begin(), deal.end(), victim) - deal.begin());
          const Status told = context.comm.Recv(Stream::kMain, peer, Block(&value, 1, 1, 1));
          return context.comm.Agree(told);
        });
        const double took = SecondsSince(begin);
        const std::string who = "process " + std::to_string(victim) + " (host ";
        const std::string ranks = victim == 0   ? "rank(s) 0:"
                                  : victim == 1 ? "rank(s) 1, 2:"
                                                : "rank(s) 3:";
        for (const RankOutcome& one : outcomes) {
          EXPECT(one.status.code() == Code::kUnavailable) << one.status.message();
          for (const std::string& part : {std::string("potrs has lost"), ranks, who}) {
            EXPECT(Has(one.status.message(), part)) << one.status.message();
          }
        }
        EXPECT(took < within) << took << " s";
        // The process is lost permanently: a call with it fails at once, and a call without it
        // succeeds.
        const auto again = Clock::now();
        for (const RankOutcome& one : RunRanksHere(site, 2, [](const RankContext& context) {
               return context.comm.Agree(Status::Ok());
             })) {
          EXPECT(!one.status.ok() && Has(one.status.message(), who)) << one.status.message();
        }
        EXPECT(SecondsSince(again) < 1);
        if (process == 2) SendOneOf({victim, 1000}, 1);
        std::vector<int> rest;
        for (const int other : {0, 1, 2}) {
          if (other != victim) rest.push_back(other);
        }
        for (const RankOutcome& one : RunRanksHere(
                 SiteOn(2, rest, "potri (n 9)"), 3,
                 [](const RankContext& context) { return context.comm.Agree(Status::Ok()); })) {
          EXPECT(one.status.ok()) << one.status.message();
        }
        EXPECT(NothingIsLeft());  // including frames that wait for a call of the lost process
        return "";
      },
      Over(transport, limit), {victim});
}

TEST(AProcessThatIsKilledIsAnErrorAtOnce) {
  for (const Transport transport : kTransports) {
    for (const int victim : {0, 1, 2}) LoseOne(SIGKILL, victim, transport, seconds(20), 5);
  }
}

TEST(AProcessThatIsStoppedIsAnErrorWithinTheLimit) {
  for (const int victim : {0, 1}) {
    LoseOne(SIGSTOP, victim, Transport::kAuto, milliseconds(1000), 6);
  }
}

// After a stop shorter than the limit, neither side treats the other as lost.
TEST(AShortStopLosesNoProcess) {
  RunProcesses(
      2,
      [&](int process) {
        const auto site = SiteOn(2, {0, 1});
        for (const RankOutcome& one :
             RunRanksHere(site, 1, [&](const RankContext& context) -> Status {
               JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
               if (process == 1) {
                 const pid_t me = getpid();
                 if (fork() == 0) {
                   usleep(700 * 1000);
                   kill(me, SIGCONT);
                   std::_Exit(0);
                 }
                 kill(me, SIGSTOP);
               }
               return context.comm.Agree(Status::Ok());
             })) {
          EXPECT(one.status.ok()) << one.status.message();
        }
        return "";
      },
      Over(Transport::kAuto, milliseconds(2000)));
}

// The other processes sent frames while this process was stopped for longer than the limit.
TEST(AProcessThatResumesDoesNotLoseTheOthers) {
  RunProcesses(
      2,
      [&](int process) {
        // Process 0 has a longer limit.
        if (process == 0) Hub::Instance().set_peer_timeout(seconds(30));
        const auto site = SiteOn(2, {0, 1});
        const auto outcomes = RunRanksHere(site, 1, [&](const RankContext& context) -> Status {
          JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
          if (process == 1) {
            const pid_t me = getpid();
            if (fork() == 0) {
              usleep(1800 * 1000);
              kill(me, SIGCONT);
              std::_Exit(0);
            }
            kill(me, SIGSTOP);
            std::this_thread::sleep_for(milliseconds(300));
          }
          return context.comm.Agree(Status::Ok());
        });
        for (const RankOutcome& one : outcomes) EXPECT(one.status.ok()) << one.status.message();
        return "";
      },
      Over(Transport::kAuto, milliseconds(1000)));
}

// A rank may compute for much longer than the limit of silence, because the hub answers meanwhile.
TEST(AComputingProcessIsNotLost) {
  RunProcesses(
      2,
      [&](int process) {
        for (const RankOutcome& one :
             RunRanksHere(SiteOn(2, {0, 1}), 1, [&](const RankContext& context) -> Status {
               if (process == 1) std::this_thread::sleep_for(milliseconds(1800));
               return context.comm.Agree(Status::Ok());
             })) {
          EXPECT(one.status.ok()) << one.status.message();
        }
        return "";
      },
      Over(Transport::kAuto, milliseconds(800)));
}

}  // namespace
}  // namespace jaxmg
