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

// The Status that each rank returned.
inline std::vector<Status> RunRanks(
    int ranks, const std::function<Status(const RankContext&)>& program,
    std::chrono::duration<double> limit = std::chrono::seconds(60)) {
  auto group = NewInProcessGroup(ranks);
  std::vector<Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Device> device = NewHostDevice();
      auto comm = NewInProcessCommunicator(group, rank, device.get(), limit);
      statuses[rank] = program({*device, *comm});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_RANKS_H_
