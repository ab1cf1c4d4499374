// The rank programs in several processes: the results equal those of one process bit for bit.
#include <complex>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/processes.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/test_channel.h"
#include "xla_ffi/comm/processes/links/nccl_channels.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;

const std::vector<std::vector<int>> kDeals = {
    {0, 0, 1, 1}, {0, 1, 2, 3}, {1, 0, 1, 0}, {0, 1, 1, 1}};

const Case kCases[] = {{1, 4, 0}, {30, 4, 4}, {37, 4, 3, 1}, {64, 4, 8}};

// Runs ranks in this process: either all ranks, or those that belong to this process.
using RunAll = std::function<void(int ranks, const testing::RankProgram&)>;

template <typename T>
bool SameBits(const std::vector<T>& one, const std::vector<T>& other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0);
}

// All results of this process's ranks.
template <typename T>
struct Results {
  std::vector<std::vector<T>> x, inverse, vectors;
  std::vector<std::vector<Real<T>>> w;
  std::vector<Real<T>> log_det;
  std::vector<int32_t> status;
};

template <typename T>
Results<T> Solve(const Case& c, bool definite, const RunAll& run) {
  Problem<T> problem(c, definite), to_invert(c, definite), to_diagonalize(c);
  std::mt19937_64 random(99);
  std::vector<T> b(c.n * 3);
  for (T& value : b) value = Random<T>(random);
  Results<T> all;
  all.x.assign(c.ranks, b);
  all.w.assign(c.ranks, std::vector<Real<T>>(c.n));
  all.log_det.assign(c.ranks, 0);
  all.status.assign(3 * c.ranks, -7);
  run(c.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    return PotrsRoutine<T>(context, problem.operand(rank, c.tile, &all.status[rank]),
                           {3, all.x[rank].data(), &all.log_det[rank]});
  });
  run(c.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    return PotriRoutine<T>(context, to_invert.operand(rank, c.tile, &all.status[c.ranks + rank]));
  });
  run(c.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    return SyevdRoutine<T>(context,
                           to_diagonalize.operand(rank, c.tile, &all.status[2 * c.ranks + rank]),
                           true, all.w[rank].data());
  });
  all.inverse = to_invert.blocks;
  all.vectors = to_diagonalize.blocks;
  return all;
}

// The devices of ranks, and the transport of blocks between the processes.
struct Setup {
  const char* name;
  Transport transport;
  bool on_host;
  bool streams;  // streams run concurrently, as on a GPU
};
const Setup kSetups[] = {
    {"memory", Transport::kAuto, true, false},
    {"sockets", Transport::kUnix, true, false},
    {"memory, streams", Transport::kAuto, false, true},
    {"copies through sockets, streams", Transport::kTcp, false, true},
    {"NCCL, streams", Transport::kNccl, false, true},
};

std::unique_ptr<Device> Across(const Setup& setup) {
  if (setup.transport != Transport::kNccl) return NewSharingHostDevice();
  NcclChannels::Instance().Use(TheTestChannels());
  return NewHostDevice();
}

std::unique_ptr<Device> OnStreams(std::unique_ptr<Device> device) {
  return NewAsyncDevice(std::move(device), LikeGpu());
}

template <typename T>
void Compare(const std::shared_ptr<const SharedCallSite>& site, int64_t* run, bool definite,
             const Setup& setup) {
  const DeviceMaker alone = [&](int rank) {
    return setup.streams ? OnStreams(OnHost(rank)) : OnHost(rank);
  };
  const Devices devices = {[&] { return setup.streams ? OnStreams(Across(setup)) : Across(setup); },
                           setup.on_host};
  const RunAll here = [&](int ranks, const testing::RankProgram& program) {
    for (const Status& status : RunRanks(ranks, program, kPatience, alone)) {
      EXPECT(status.ok()) << status.message();
    }
  };
  const RunAll across = [&](int, const testing::RankProgram& program) {
    for (const RankOutcome& one :
         RunRanksHere(site, ++*run, program, kPatience, "float64", devices)) {
      EXPECT(one.status.ok()) << one.status.message();
    }
  };
  for (const Case& c : kCases) {
    const std::string what =
        setup.name + (", n " + std::to_string(c.n)) + " tile " + std::to_string(c.tile);
    const Results<T> one = Solve<T>(c, definite, here), many = Solve<T>(c, definite, across);
    for (int rank = 0; rank < c.ranks; ++rank) {
      if (site->process_of(0, rank) != Hub::Instance().me()) continue;
      EXPECT(SameBits(one.x[rank], many.x[rank])) << what << ": potrs on rank " << rank;
      EXPECT(std::memcmp(&one.log_det[rank], &many.log_det[rank], sizeof(Real<T>)) == 0) << what;
      EXPECT(SameBits(one.inverse[rank], many.inverse[rank])) << what << ": potri on rank " << rank;
      EXPECT(SameBits(one.vectors[rank], many.vectors[rank])) << what << ": syevd on rank " << rank;
      EXPECT(SameBits(one.w[rank], many.w[rank])) << what << ": eigenvalues on rank " << rank;
      for (int i : {0, 1, 2}) {
        EXPECT(one.status[i * c.ranks + rank] == many.status[i * c.ranks + rank]) << what;
      }
    }
  }
}

TEST(ResultsEqualThoseOfOneProcess) {
  for (const Setup& setup : kSetups) {
    for (const auto& deal : kDeals) {
      int count = 0;
      for (const int process : deal) count = std::max(count, process + 1);
      JobOptions options;
      options.transport = setup.transport;
      RunProcesses(
          count,
          [&](int) {
            const auto site = SiteOn(4, deal);
            int64_t run = 0;
            Compare<double>(site, &run, true, setup);
            Compare<std::complex<float>>(site, &run, true, setup);
            Compare<double>(site, &run, false, setup);
            EXPECT(NothingIsLeft());
            return "";
          },
          options);
    }
  }
}

}  // namespace
}  // namespace jaxmg
