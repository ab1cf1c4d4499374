// Runs a rank program on several threads of one process, as the handlers do.
#ifndef JAXMG_TESTS_CC_RANKS_H_
#define JAXMG_TESTS_CC_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "xla_ffi/comm/in_process.h"
#include "xla_ffi/device/host.h"
#include "xla_ffi/engine/matrix.h"

namespace jaxmg::testing {

using RankProgram = std::function<Status(const RankContext&)>;
using DeviceMaker = std::function<std::unique_ptr<Device>(int rank)>;

inline std::unique_ptr<Device> OnHost(int) { return NewHostDevice(); }

// The Status that each rank returned, or the error of what it had enqueued.
inline std::vector<Status> RunRanks(int ranks, const RankProgram& program,
                                    std::chrono::duration<double> limit = std::chrono::seconds(60),
                                    const DeviceMaker& make = OnHost) {
  auto group = std::make_shared<InProcessGroup>(ranks);
  std::vector<Status> statuses(ranks);
  std::vector<std::unique_ptr<Device>> devices(
      ranks);  // others may read a rank's memory to the end
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
  return statuses;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_RANKS_H_
