// Runs a rank program on several threads of one process, as the handlers do.
#ifndef JAXMG_TESTS_CC_SUPPORT_RANKS_H_
#define JAXMG_TESTS_CC_SUPPORT_RANKS_H_

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg::testing {

using RankProgram = std::function<Status(const RankContext&)>;
using DeviceMaker = std::function<std::unique_ptr<Device>(int rank)>;

inline std::unique_ptr<Device> OnHost(int) { return NewHostDevice(); }

// The time limit of a wait for another rank, in tests that don't test time limits.
constexpr std::chrono::seconds kPatience{30};

// Runs `program` on every rank. Returns each rank's Status, or the error of its enqueued work. If
// ranks exceed `limit`, the test program exits, because hundreds of later cases might also wait
// that long.
inline std::vector<Status> RunRanks(int ranks, const RankProgram& program,
                                    std::chrono::duration<double> limit = kPatience,
                                    const DeviceMaker& make = OnHost) {
  const auto begin = std::chrono::steady_clock::now();
  auto group = std::make_shared<InProcessGroup>(ranks);
  std::vector<Status> statuses(ranks);
  // Devices outlive the threads, because other ranks may read their memory until the end.
  std::vector<std::unique_ptr<Device>> devices(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      devices[rank] = make(rank);
      auto comm = NewInProcessCommunicator(group, rank, devices[rank].get(), {limit});
      statuses[rank] = program({*devices[rank], *comm});
      const Status done = devices[rank]->Synchronize();
      if (statuses[rank].ok()) statuses[rank] = done;
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A rank that missed a wake-up succeeds at its deadline, so this also checks the time.
  if (limit >= kPatience && std::chrono::steady_clock::now() - begin >= limit) {
    for (const Status& status : statuses) std::fprintf(stderr, "%s\n", status.message().c_str());
    std::fprintf(stderr, "FAILED: a rank waited until the time limit\n");
    std::_Exit(1);
  }
  return statuses;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_RANKS_H_
