// Ranks in several processes: messages, agreements, and their failures.
#include "tests/cc/support/processes.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <mutex>
#include <stdexcept>

#include "tests/cc/support/living_objects.h"
#include "xla_ffi/comm/communicator.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Transport kTransports[] = {Transport::kAuto, Transport::kUnix, Transport::kTcp};
const Transport kSockets[] = {Transport::kUnix, Transport::kTcp};

// Consecutive ranks in a process, and ranks assigned to the processes in turn.
const std::vector<std::vector<int>> kDeals = {
    {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}, {1, 0, 0, 1}};

int Processes(const std::vector<int>& deal) {
  return *std::max_element(deal.begin(), deal.end()) + 1;
}

// AddressSanitizer keeps 256 MB of freed memory, to detect later accesses.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kQuarantined = (256 << 20) / 4096;
#else
constexpr int64_t kQuarantined = 0;
#endif

int64_t ResidentPages() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident;
}

// Every rank sends to every other one: blocks of a larger matrix, with sizes that have no common
// divisor.
Status ExchangeAll(const RankContext& context, int64_t rows) {
  Communicator& comm = context.comm;
  const int64_t ld = rows + 3, columns = 5;
  auto value = [](int from, int to, int round, int64_t i) {
    return from * 1e6 + to * 1e4 + round * 1e2 + static_cast<double>(i % 97);
  };
  std::vector<std::vector<double>> sent;
  for (int round = 0; round < 3; ++round) {
    for (int peer = 0; peer < comm.size(); ++peer) {
      if (peer == comm.rank()) continue;
      sent.emplace_back(ld * columns);
      for (int64_t i = 0; i < ld * columns; ++i)
        sent.back()[i] = value(comm.rank(), peer, round, i);
      JAXMG_RETURN_IF_ERROR(
          comm.Send(Stream::kMain, peer, Block(sent.back().data(), ld, rows, columns)));
    }
  }
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    for (int round = 0; round < 3; ++round) {
      std::vector<double> got(rows * columns);
      const double* data = got.data();
      int64_t got_ld = rows;
      if (round == 1) {
        Bytes2D block;
        JAXMG_RETURN_IF_ERROR(comm.Borrow(Stream::kMain, peer, &block));
        data = static_cast<const double*>(block.data);
        got_ld = static_cast<int64_t>(block.pitch / sizeof(double));
      } else {
        JAXMG_RETURN_IF_ERROR(
            comm.Recv(Stream::kMain, peer, Block(got.data(), rows, rows, columns)));
      }
      int64_t wrong = 0;
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t i = 0; i < rows; ++i) {
          wrong += data[j * got_ld + i] != value(peer, comm.rank(), round, j * ld + i);
        }
      }
      EXPECT(wrong == 0) << wrong << " wrong from " << peer << " to " << comm.rank();
      if (round == 1) JAXMG_RETURN_IF_ERROR(comm.Return(Stream::kMain, peer));
    }
  }
  JAXMG_RETURN_IF_ERROR(WaitAllSent(comm, Stream::kMain));
  return comm.Agree(Status::Ok());
}

TEST(BlocksKeepTheirOrderAndShape) {
  for (const Transport transport : kTransports) {
    for (const auto& deal : kDeals) {
      JobOptions options;
      options.transport = transport;
      RunProcesses(
          Processes(deal),
          [&](int) {
            const auto site = SiteOn(static_cast<int>(deal.size()), deal);
            int64_t run = 0;
            for (const int64_t rows : {1, 7, 3001, 100003}) {
              AllOk(RunRanksHere(site, ++run, [&](const RankContext& context) {
                return ExchangeAll(context, rows);
              }));
            }
            EXPECT(NothingIsLeft());
            const std::string name = transport == Transport::kTcp ? "tcp" : "unix";
            for (const ConnectionInfo& info : Hub::Instance().Connections()) {
              EXPECT(info.state == "connected" && Has(info.transport, name))
                  << info.state << " " << info.transport;
              EXPECT(Has(info.transport, "shared memory") == (transport == Transport::kAuto))
                  << info.transport;
            }
            return "";
          },
          options);
    }
  }
}

TEST(AProcessThatSharesNoMemoryIsReachedBySockets) {
  JobOptions options;
  options.change = [](int process, JobOptions* mine) {
    if (process == 1) mine->transport = Transport::kUnix;
  };
  RunProcesses(
      3,
      [](int process) {
        const auto site = SiteOn(4, {0, 1, 2, 0});
        for (int64_t run = 1; run <= 3; ++run) {
          AllOk(RunRanksHere(site, run, [](const RankContext& c) { return ExchangeAll(c, 100); }));
        }
        for (const ConnectionInfo& info : Hub::Instance().Connections()) {
          const bool shares = process != 1 && info.process != 1;
          EXPECT(Has(info.transport, "shared memory") == shares)
              << process << " and " << info.process << ": " << info.transport;
        }
        EXPECT(NothingIsLeft());
        return "";
      },
      options);
}

TEST(SharedValuesReachEveryRank) {
  for (const auto& deal : kDeals) {
    RunProcesses(Processes(deal), [&](int) {
      const int size = static_cast<int>(deal.size());
      AllOk(RunRanksHere(SiteOn(size, deal), 1, [&](const RankContext& context) -> Status {
        for (int round = 0; round < 200; ++round) {
          std::vector<int64_t> all;
          JAXMG_RETURN_IF_ERROR(context.comm.Share(10 * round + context.comm.rank(), &all));
          for (int rank = 0; rank < size; ++rank) EXPECT(all[rank] == 10 * round + rank) << round;
          JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
        }
        return Status::Ok();
      }));
      return "";
    });
  }
}

// As in one process, all ranks return the first cause, from the lowest rank, whichever process has
// it.
TEST(AgreementIsTheFirstCause) {
  for (const auto& deal : kDeals) {
    for (int bad = 0; bad < 4; ++bad) {
      RunProcesses(Processes(deal), [&](int) {
        const auto outcomes = RunRanksHere(SiteOn(4, deal), 1, [&](const RankContext& context) {
          if (context.comm.rank() == bad) {
            const Status mine = Error(Code::kResourceExhausted, "no memory on rank ", bad);
            context.comm.Abort(mine);
            return context.comm.Agree(mine);
          }
          int value = 0;  // rank `bad` will never send
          const Status told = context.comm.Recv(Stream::kMain, bad, Block(&value, 1, 1, 1));
          EXPECT(told.code() == Code::kAborted) << told.message();
          return context.comm.Agree(told);
        });
        for (const RankOutcome& one : outcomes) {
          EXPECT(one.status.code() == Code::kResourceExhausted) << one.status.message();
          EXPECT(one.status.message() == "no memory on rank " + std::to_string(bad));
        }
        EXPECT(NothingIsLeft());
        return "";
      });
    }
  }
}

TEST(AnExceptionOfARankIsAnErrorOfAll) {
  for (const auto& deal : kDeals) {
    for (const int bad : {0, 3}) {
      for (const int rounds : {0, 1}) {
        RunProcesses(Processes(deal), [&](int) {
          const auto outcomes =
              RunRanksHere(SiteOn(4, deal), 1, [&](const RankContext& context) -> Status {
                for (int i = 0; i < rounds; ++i) {
                  JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
                }
                if (context.comm.rank() == bad) throw std::runtime_error("thrown on purpose");
                return context.comm.Agree(Status::Ok());
              });
          for (const RankOutcome& one : outcomes) {
            EXPECT(one.status.message() == "thrown on purpose") << one.status.message();
          }
          EXPECT(NothingIsLeft());
          return "";
        });
      }
    }
  }
}

// Blocks that a rank sends must not be read after the call has failed, because their memory is
// freed. (-fsanitize=address would report a read.)
TEST(SentBlocksAreNotReadAfterAFailure) {
  for (const Transport transport : kSockets) {
    JobOptions options;
    options.transport = transport;
    RunProcesses(
        2,
        [&](int process) {
          const auto site = SiteOn(2, {0, 1});
          for (int64_t run = 1; run <= 6; ++run) {
            const Devices devices = {NewSharingHostDevice, run % 2 == 0};
            const auto outcomes = RunRanksHere(
                site, run,
                [&](const RankContext& context) -> Status {
                  JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
                  std::vector<char> data(size_t{64} << 20, static_cast<char>(process));
                  Status mine;
                  if (process == 0) {
                    for (int i = 0; i < 3; ++i) {
                      mine = context.comm.Send(Stream::kMain, 1,
                                               Block(data.data(), 1 << 16, 1 << 15, 1000));
                    }
                  } else {
                    mine = Error(Code::kInternal, "rank 1 gives up");
                    context.comm.Abort(mine);
                  }
                  return context.comm.Agree(mine);
                },
                kPatience, "float64", devices);
            for (const RankOutcome& one : outcomes) {
              EXPECT(one.status.message() == "rank 1 gives up") << one.status.message();
            }
          }
          AllOk(RunRanksHere(site, 7, [&](const RankContext& c) { return ExchangeAll(c, 5); }));
          return "";
        },
        options);
  }
}

// Mesh axes that don't shard A define groups, whichever processes their ranks belong to.
TEST(GroupsOfAMeshHaveSeparateRendezvous) {
  const std::vector<int> deal = {0, 1, 0, 1, 1, 1};  // three groups of two ranks
  RunProcesses(2, [&](int) {
    const auto site = SiteOn(2, deal);
    for (int64_t run = 1; run <= 20; ++run) {
      AllOk(RunRanksHere(site, run, [&](const RankContext& c) { return ExchangeAll(c, 10); }));
    }
    EXPECT(NothingIsLeft());
    return "";
  });
}

// A borrowed block, such as a panel, is unchanged while other blocks are received and released.
TEST(BorrowedBlocksAreUnchanged) {
  RunProcesses(2, [&](int) {
    AllOk(RunRanksHere(SiteOn(2, {0, 1}), 1, [&](const RankContext& context) -> Status {
      Communicator& comm = context.comm;
      const size_t kBytes = size_t{1} << 20;
      std::vector<char> panel(kBytes, 'p'), other(kBytes, 'o');
      if (comm.rank() == 0) {
        for (const auto* data : {&panel, &other, &other}) {
          JAXMG_RETURN_IF_ERROR(
              comm.Send(Stream::kMain, 1, Block(data->data(), kBytes, kBytes, 1)));
        }
      } else {
        Bytes2D borrowed;
        JAXMG_RETURN_IF_ERROR(comm.Borrow(Stream::kMain, 0, &borrowed));
        for (int i = 0; i < 2; ++i) {
          std::vector<char> got(kBytes);
          JAXMG_RETURN_IF_ERROR(comm.Recv(Stream::kMain, 0, Block(got.data(), kBytes, kBytes, 1)));
          EXPECT(got == other);
        }
        EXPECT(std::memcmp(borrowed.data, panel.data(), kBytes) == 0);
        JAXMG_RETURN_IF_ERROR(comm.Return(Stream::kMain, 0));
      }
      JAXMG_RETURN_IF_ERROR(WaitAllSent(comm, Stream::kMain));
      return comm.Agree(Status::Ok());
    }));
    return "";
  });
}

class Recorder : public FrameSink {
 public:
  void OnFrame(int, const FrameHeader& header, Payload) noexcept override {
    std::lock_guard<std::mutex> lock(mutex);
    seen.push_back(header.value);
  }
  void OnLost(int, const Status&) noexcept override {}
  std::mutex mutex;
  std::vector<int64_t> seen;
};

// A frame may arrive before its process has joined the call, or after the call has ended. A
// rendezvous completes only after all frames sent before it have arrived.
TEST(FramesAreKeptForTheirCallAlone) {
  RunProcesses(2, [&](int process) {
    Hub& hub = Hub::Instance();
    EXPECT(hub.Await(1 - process, Deadline(seconds(20))).ok());
    const auto connection = hub.ConnectionTo(1 - process);
    auto send = [&](int64_t call, int64_t value) {
      if (process == 0) return;
      OutFrame frame;
      frame.header.type = FrameType::kData;
      frame.header.lead = 1;
      frame.header.call = call;
      frame.header.value = value;
      EXPECT(connection->Send(std::move(frame)).ok());
    };
    int64_t run = 0;
    auto all_join = [&] {
      AllOk(RunRanksHere(SiteOn(2, {0, 1}), ++run,
                         [](const RankContext& c) { return ExchangeAll(c, 1); }));
    };
    const auto call = std::make_shared<Recorder>();
    for (const int64_t value : {1, 2, 3}) send(5, value);
    send(4, 8);  // an earlier call of the lead, which process 0 never joins
    all_join();
    if (process == 0) {
      EXPECT(hub.calls() >= 2) << hub.calls();
      hub.Enter({1, 5}, call);
    }
    send(5, 4);
    all_join();
    if (process == 0) {
      {
        std::lock_guard<std::mutex> lock(call->mutex);
        EXPECT((call->seen == std::vector<int64_t>{1, 2, 3, 4})) << call->seen.size();
      }
      hub.Leave({1, 5});
      EXPECT(NoCallIsLeft());  // the frame of the earlier call is not kept
    }
    all_join();
    for (const int64_t over : {4, 5}) send(over, 9);
    all_join();
    EXPECT(NoCallIsLeft());
    if (process == 0) hub.Skip({1, 7});
    all_join();
    for (const int64_t over : {6, 7}) send(over, 9);
    all_join();
    EXPECT(NoCallIsLeft());
    return "";
  });
}

// Several call sites and executions at a time. The processes begin them in different orders.
TEST(ConcurrentCallsAreSeparate) {
  RunProcesses(2, [&](int process) {
    std::vector<std::shared_ptr<const SharedCallSite>> sites;
    for (int i = 0; i < 4; ++i) sites.push_back(SiteOn(4, {0, 0, 1, 1}));
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      const int call = process == 0 ? i : 7 - i;
      threads.emplace_back([&, call] {
        AllOk(
            RunRanksHere(sites[call % 4], 10 + call / 4, [&](const RankContext& context) -> Status {
              std::vector<int64_t> all(4);
              const int64_t mine = call;
              JAXMG_RETURN_IF_ERROR(AllGather(context.comm, context.device, Stream::kMain, &mine,
                                              all.data(), sizeof(mine)));
              for (const int64_t other : all)
                EXPECT(other == call) << other << " received for " << call;
              return context.comm.Agree(Status::Ok());
            }));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(NothingIsLeft());
    return "";
  });
}

TEST(AThousandRendezvousFreeTheirMemory) {
  RunProcesses(2, [&](int) {
    const auto site = SiteOn(2, {0, 1});
    int files = 0, threads = 0;
    int64_t objects = 0, pages = 0, run = 0;
    for (int i = 0; i < 1000; ++i) {
      if (i == 200) {
        files = OpenFiles();
        threads = Threads();
        objects = alive;
        pages = ResidentPages();
      }
      AllOk(RunRanksHere(site, ++run, [&](const RankContext& c) { return ExchangeAll(c, 2000); }));
    }
    EXPECT(NothingIsLeft());
    EXPECT(OpenFiles() == files) << OpenFiles() << " files, before " << files;
    EXPECT(Threads() <= threads) << Threads() << " threads, before " << threads;
    // A few buffers are kept for reuse.
    EXPECT(alive < objects + 20) << alive - objects << " more objects";
    // Each of these calls receives three blocks of 80 KB.
    EXPECT(ResidentPages() < pages + 5000 + kQuarantined)
        << ResidentPages() - pages << " more pages";
    return "";
  });
}

}  // namespace
}  // namespace jaxmg
