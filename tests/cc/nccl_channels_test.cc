// Blocks over NCCL channels: their order, failures of a call and losses of a process at any point,
// and the path of blocks if processes can't make channels.
#include "xla_ffi/comm/processes/links/nccl_channels.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/processes.h"
#include "tests/cc/support/test_channel.h"
#include "xla_ffi/comm/staging.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/device/tunings.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::vector<std::vector<int>> kDeals = {
    {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}, {1, 0, 0, 1}};

// Returns AsyncDevices whose memory other processes don't map.
Devices Apart(bool many = false) {
  return {[] { return NewAsyncDevice(NewHostDevice(), HostTuning()); }, false, many};
}

std::vector<RankOutcome> RunOverChannels(const std::shared_ptr<const SharedCallSite>& site,
                                         int64_t run, const RankProgram& program,
                                         Seconds limit = kPatience,
                                         const Devices& devices = Apart()) {
  NcclChannels::Instance().Use(TheTestChannels());
  return RunRanksHere(site, run, program, limit, "float64", devices);
}

double ValueOf(int from, int to, int round, int64_t i) {
  return from * 1e6 + to * 1e4 + round * 1e2 + static_cast<double>(i % 97);
}

// Memory may be freed once no rank of this process reads it. As in the handlers, the ranks agree on
// that after a failure.
Status AgreeAndEnd(const RankContext& context, const Status& mine) {
  const Status outcome = context.comm.Agree(mine);
  if (!outcome.ok()) (void)context.comm.Agree(context.device.Synchronize());
  return outcome;
}

// Every rank sends to every other one: blocks of different shapes within a larger matrix, on all
// streams in turn.
Status ExchangeAll(const RankContext& context, int64_t rows) {
  Communicator& comm = context.comm;
  constexpr int kRounds = 4;
  const int64_t columns = 5;
  auto heights = [&](int round) { return round == 3 ? 0 : std::max<int64_t>(rows - round, 0); };
  // The first block is contiguous, the others are parts of a matrix.
  auto ld = [&](int round) { return heights(round) + (round == 0 ? 0 : 3); };
  auto stream = [](int round) { return kStreams[round % kNumStreams]; };
  std::vector<std::vector<double>> sent, got;
  auto exchange = [&]() -> Status {
    for (int round = 0; round < kRounds; ++round) {
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        sent.emplace_back(ld(round) * columns + 1);
        for (int64_t i = 0; i < ld(round) * columns; ++i) {
          sent.back()[i] = ValueOf(comm.rank(), peer, round, i);
        }
        JAXMG_RETURN_IF_ERROR(comm.Send(
            stream(round), peer, Block(sent.back().data(), ld(round), heights(round), columns)));
      }
    }
    for (int peer = 0; peer < comm.size(); ++peer) {
      if (peer == comm.rank()) continue;
      for (int round = 0; round < kRounds; ++round) {
        got.emplace_back(heights(round) * columns + 1);
        const Bytes2D block = Block(got.back().data(), heights(round), heights(round), columns);
        if (round != 1) {
          JAXMG_RETURN_IF_ERROR(comm.Recv(stream(round), peer, block));
          continue;
        }
        Bytes2D borrowed;
        JAXMG_RETURN_IF_ERROR(comm.Borrow(stream(round), peer, &borrowed));
        JAXMG_RETURN_IF_ERROR(context.device.Copy(stream(round), block, borrowed));
        JAXMG_RETURN_IF_ERROR(comm.Return(stream(round), peer));
      }
    }
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm, Stream::kMain));
    return context.device.Synchronize();
  };
  const Status outcome = AgreeAndEnd(context, exchange());
  if (!outcome.ok()) return outcome;
  size_t next = 0;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<double>& block = got[next++];
      int64_t wrong = 0;
      for (int64_t i = 0; i < heights(round) * columns; ++i) {
        const int64_t j = i / heights(round), at = j * ld(round) + i % heights(round);
        wrong += block[i] != ValueOf(peer, comm.rank(), round, at);
      }
      EXPECT(wrong == 0) << wrong << " wrong of block " << round << " from " << peer << " to "
                         << comm.rank();
    }
  }
  return Status::Ok();
}

void ExpectChannels(bool some) {
  for (const ConnectionInfo& info : Hub::Instance().Connections()) {
    EXPECT(Has(info.transport, ", sockets 1") == some) << info.transport;
  }
}

TEST(BlocksKeepTheirOrderAndShape) {
  for (const bool many : {false, true}) {
    for (const auto& deal : kDeals) {
      RunProcesses(*std::max_element(deal.begin(), deal.end()) + 1, [&](int process) {
        const auto site = SiteOn(static_cast<int>(deal.size()), deal);
        int64_t run = 0;
        int made = 0;
        for (const int64_t rows : {0, 1, 7, 3001, 50003, 7}) {
          AllOk(RunOverChannels(
              site, ++run, [&](const RankContext& c) { return ExchangeAll(c, rows); }, kPatience,
              Apart(many)));
          if (run == 1) made = TheTestChannels().made;
        }
        // One channel for each direction between two devices. All calls share it.
        const auto here = std::count(deal.begin(), deal.end(), process);
        const auto there = static_cast<long>(deal.size()) - here;
        EXPECT(made == (many ? 2 * here * there : made)) << made;
        EXPECT(TheTestChannels().made == made) << TheTestChannels().made << ", before " << made;
        ExpectChannels(true);
        EXPECT(NothingIsLeft());
        return "";
      });
    }
  }
}

// Several calls over the same channels. The processes begin them in different orders.
TEST(ConcurrentCallsShareChannels) {
  RunProcesses(2, [&](int process) {
    std::vector<std::shared_ptr<const SharedCallSite>> sites;
    for (int i = 0; i < 4; ++i) sites.push_back(SiteOn(4, {0, 0, 1, 1}));
    NcclChannels::Instance().Use(TheTestChannels());
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      const int call = process == 0 ? i : 7 - i;
      threads.emplace_back([&, call] {
        AllOk(RunOverChannels(sites[call % 4], 10 + call / 4, [&](const RankContext& context) {
          return ExchangeAll(context, 100 * (call + 1));
        }));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(NothingIsLeft());
    return "";
  });
}

// One rank fails at any point, with blocks in all states, or returns without a message. No block is
// read after the call, every posted receive has its send, and the next call can use the channels.
TEST(AFailedCallKeepsTheChannelsUsable) {
  const std::vector<int> deal = {0, 1, 1, 2};
  RunProcesses(3, [&](int) {
    const auto site = SiteOn(4, deal);
    int64_t run = 0;
    for (unsigned seed = 0; seed < 60; ++seed) {
      const int bad = static_cast<int>(seed % 4);
      // Freed after the call has failed: no rank may read it from then on.
      std::array<std::vector<double>, 4> all_mine, all_theirs;
      const auto outcomes = RunOverChannels(site, ++run, [&](const RankContext& context) {
        Communicator& comm = context.comm;
        std::minstd_rand random(seed);
        const int after = static_cast<int>(random() % 40);
        const int64_t rows = seed % 3 == 0 ? 40000 : 50;
        std::vector<double>& mine = all_mine[comm.rank()];
        std::vector<double>& theirs = all_theirs[comm.rank()];
        mine.assign(rows, 1.0);
        theirs.assign(rows * kNumStreams, 0.0);
        int done = 0;
        auto step = [&](Status status) {
          if (comm.rank() != bad || ++done != after) return status;
          if (seed % 8 < 4) throw std::runtime_error("a rank gives up and leaves");
          const Status failed = Error(Code::kInternal, "rank ", bad, " gives up");
          comm.Abort(failed);
          return failed;
        };
        auto exchange = [&]() -> Status {
          for (int round = 0; round < 20; ++round) {
            const int next = (comm.rank() + 1) % 4, last = (comm.rank() + 3) % 4;
            const Stream stream = kStreams[round % kNumStreams];
            const double* part = theirs.data() + round % kNumStreams * rows;
            for (int i = 0; i < 2; ++i) {
              JAXMG_RETURN_IF_ERROR(
                  step(comm.Send(stream, next, Block(mine.data(), rows, rows, 1))));
            }
            for (int i = 0; i < 2; ++i) {
              JAXMG_RETURN_IF_ERROR(step(comm.Recv(stream, last, Block(part, rows, rows, 1))));
            }
          }
          return step(Error(Code::kInternal, "rank ", bad, " gives up"));
        };
        return AgreeAndEnd(context, exchange());
      });
      for (const RankOutcome& one : outcomes) {
        EXPECT(Has(one.status.message(), "gives up")) << one.status.message();
      }
      if (seed % 10 == 9) {
        AllOk(
            RunOverChannels(site, ++run, [](const RankContext& c) { return ExchangeAll(c, 300); }));
      }
    }
    for (const ConnectionInfo& info : Hub::Instance().Connections()) {
      EXPECT(info.state == "connected") << info.state;
    }
    EXPECT(NothingIsLeft());
    return "";
  });
}

// A receive of a block that its sender has withdrawn must fail, because it would wait forever.
TEST(WithdrawnBlocksAreNotReceived) {
  RunProcesses(2, [](int process) {
    const auto site = SiteOn(2, {0, 1});
    const auto join = [&](int64_t run) {
      AllOk(RunOverChannels(site, run, [](const RankContext& c) { return ExchangeAll(c, 5); }));
    };
    constexpr int64_t kNumber = 1000;
    join(1);
    const auto connection = Hub::Instance().ConnectionTo(1 - process);
    if (process == 1) {
      OutFrame frame;
      frame.header.type = FrameType::kNcclWithdraw;
      frame.header.value = kNumber;
      frame.header.aux = 1;
      EXPECT(connection->Send(std::move(frame)).ok());
    }
    join(2);
    if (process == 0) {
      NcclChannels& channels = NcclChannels::Instance();
      std::shared_ptr<NcclPeer> partner;
      std::string why_not;
      EXPECT(channels.Negotiate(1, connection, Deadline(seconds(5)), &partner, &why_not).ok());
      double value = 0;
      const Status taken = channels.Receive(*channels.ChannelOf(*partner, false, 0, 0), kNumber,
                                            &value, sizeof(value));
      EXPECT(taken.code() == Code::kAborted) << taken.message();
    }
    join(3);
    return "";
  });
}

// Staging memory that is still being read is reused only if there would be too much of it
// otherwise; then its reads are waited for.
TEST(StagingMemoryIsReusedAfterItsLastRead) {
  const auto device = NewAsyncDevice(NewHostDevice(), HostTuning());
  std::vector<double> source(1 << 20, 1.0), target(1 << 20);
  const size_t bytes = source.size() * sizeof(double);
  const size_t most = 2 * bytes;
  Staging staging;
  std::set<void*> seen;
  for (int i = 0; i < 50; ++i) {
    std::shared_ptr<Staging::Copy> room;
    EXPECT(staging.Reserve(*device, bytes, most, &room).ok());
    auto* data = room->buffer->as<double>();
    seen.insert(data);
    std::fill(data, data + source.size(), i);  // a receive may do this from here on
    const Bytes2D block = {data, bytes, bytes, 1};
    EXPECT(device->Copy(Stream::kCopy, {target.data(), bytes, bytes, 1}, block).ok());
    EXPECT(device->FillInt32(Stream::kCopy, reinterpret_cast<int32_t*>(target.data()), 1, 7).ok());
    std::shared_ptr<Event> read;
    EXPECT(device->NewEvent(&read).ok() && device->Record(Stream::kCopy, read.get()).ok());
    room->taken.push_back(read);
  }
  EXPECT(device->Synchronize().ok());
  EXPECT(seen.size() <= 2) << seen.size();
  EXPECT(target.back() == 49) << target.back();
}

// One process kills or stops itself at some point in a sequence of calls.
void LoseOne(int signal, int victim, milliseconds after, double within) {
  JobOptions options;
  options.peer_timeout = signal == SIGSTOP ? milliseconds(1500) : milliseconds(20000);
  RunProcesses(3,
               [&](int process) {
                 const auto site = SiteOn(4, {0, 1, 1, 2});
                 int64_t run = 0;
                 AllOk(RunOverChannels(site, ++run,
                                       [](const RankContext& c) { return ExchangeAll(c, 10); }));
                 if (process == victim) {
                   std::thread([&] {
                     std::this_thread::sleep_for(after);
                     kill(getpid(), signal);
                   }).detach();
                 }
                 std::vector<RankOutcome> outcomes;
                 Clock::time_point begin;
                 do {
                   begin = Clock::now();
                   outcomes = RunOverChannels(
                       site, ++run, [](const RankContext& c) { return ExchangeAll(c, 20000); });
                 } while (outcomes[0].status.ok());
                 EXPECT(SecondsSince(begin) < within) << SecondsSince(begin) << " s";
                 const std::string who = "process " + std::to_string(victim) + " (host ";
                 for (const RankOutcome& one : outcomes) {
                   EXPECT(!one.status.ok() && Has(one.status.message(), who))
                       << one.status.message();
                 }
                 // The other processes continue without it.
                 std::vector<int> rest;
                 for (const int other : {0, 1, 2}) {
                   if (other != victim) rest.push_back(other);
                 }
                 AllOk(RunOverChannels(SiteOn(2, rest, "potri (n 9)"), 1,
                                       [](const RankContext& c) { return ExchangeAll(c, 100); }));
                 EXPECT(NothingIsLeft());
                 return "";
               },
               options, {victim});
}

TEST(AKilledProcessIsAnErrorOfTheOthers) {
  for (int i = 0; i < 12; ++i) LoseOne(SIGKILL, i % 3, milliseconds(3 + 11 * i), 5);
}

TEST(AStoppedProcessIsAnErrorOfTheOthers) {
  for (const int victim : {0, 2}) LoseOne(SIGSTOP, victim, milliseconds(5 + 13 * victim), 7);
}

TEST(AProcessThatMakesNoChannelIsAnErrorWithinTheLimit) {
  RunProcesses(2, [](int process) {
    TheTestChannels().hangs = process == 1;
    const auto begin = Clock::now();
    for (const RankOutcome& one : RunOverChannels(
             SiteOn(2, {0, 1}), 1, [](const RankContext& c) { return ExchangeAll(c, 5); },
             milliseconds(1500))) {
      EXPECT(Has(one.status.message(), "no connection by sockets 1 in time") &&
             Has(one.status.message(), "process ") && Has(one.status.message(), "pid "))
          << one.status.message();
    }
    EXPECT(SecondsSince(begin) < 10) << SecondsSince(begin) << " s";
    // The slow process has arrived by this time.
    TheTestChannels().hangs = false;
    AllOk(RunOverChannels(SiteOn(2, {0, 1}), 2,
                          [](const RankContext& c) { return ExchangeAll(c, 5); }));
    return "";
  });
}

// A process that can't make channels exchanges blocks through host memory and reports the reason.
TEST(WithoutChannelsBlocksAreCopiedThroughTheHost) {
  for (const std::string why : {"refused on purpose", "sockets 2", "has none"}) {
    RunProcesses(3, [&](int process) {
      const bool odd = process == 1;
      if (odd && why == "sockets 2") TheTestChannels().name = why;
      TheTestChannels().refuses = odd && why == "refused on purpose";
      if (odd && why == "has none") {
        AllOk(RunRanksHere(
            SiteOn(3, {0, 1, 2}), 1, [](const RankContext& c) { return ExchangeAll(c, 50); },
            kPatience, "float64", Apart()));
        return "";
      }
      for (const int64_t run : {1, 2, 3}) {
        AllOk(RunOverChannels(SiteOn(3, {0, 1, 2}), run,
                              [](const RankContext& c) { return ExchangeAll(c, 50); }));
        if (why == "has none") break;
      }
      for (const ConnectionInfo& info : Hub::Instance().Connections()) {
        const bool apart = odd || info.process == 1;
        EXPECT(Has(info.transport, "copies in the host's memory") == apart) << info.transport;
      }
      return "";
    });
  }
}

TEST(RequestedChannelsAreUsedOrAnError) {
  JobOptions options;
  options.transport = Transport::kNccl;
  RunProcesses(
      2,
      [](int process) {
        NcclChannels::Instance().Use(TheTestChannels());
        TheTestChannels().refuses = process == 1;
        for (const RankOutcome& one : RunOverChannels(
                 SiteOn(2, {0, 1}), 1, [](const RankContext& c) { return ExchangeAll(c, 5); })) {
          EXPECT(Has(one.status.message(), "JAXMG_TRANSPORT requests NCCL"))
              << one.status.message();
          EXPECT(Has(one.status.message(), "refused on purpose")) << one.status.message();
        }
        return "";
      },
      options);
  RunProcesses(
      2,
      [](int) {
        // Channels are used although both processes could map the memory.
        AllOk(RunOverChannels(SiteOn(2, {0, 1}), 1,
                              [](const RankContext& c) { return ExchangeAll(c, 5); }));
        ExpectChannels(true);
        return "";
      },
      options);
}

TEST(CallsFreeTheirMemory) {
  RunProcesses(2, [&](int) {
    const auto site = SiteOn(2, {0, 1});
    int files = 0, threads = 0;
    int64_t run = 0;
    for (int i = 0; i < 300; ++i) {
      if (i == 50) {
        files = OpenFiles();
        threads = Threads();
      }
      AllOk(RunOverChannels(site, ++run, [&](const RankContext& c) { return ExchangeAll(c, 20); }));
    }
    EXPECT(NothingIsLeft());
    EXPECT(OpenFiles() == files) << OpenFiles() << " files, before " << files;
    EXPECT(Threads() <= threads) << Threads() << " threads, before " << threads;
    return "";
  });
}

}  // namespace
}  // namespace jaxmg
