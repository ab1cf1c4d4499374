// Memory shared between processes: allocation, mappings in other processes, and the loss of a
// process.
#include "xla_ffi/comm/processes/links/segments.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/support/processes.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/comm/communicator.h"
#include "xla_ffi/comm/processes/process_group.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {
namespace {

using testing::AllOk;
using testing::NothingIsLeft;
using testing::RunProcesses;
using testing::RunRanksHere;
using testing::SiteOn;

constexpr size_t kMiB = size_t{1} << 20;

// Counts this process's mappings of shared memory.
int Mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:jaxmg") != std::string::npos;
  }
  return count;
}

// Waits up to ten seconds for `condition`, and returns whether it holds.
template <typename Condition>
bool Soon(Condition condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

TEST(BlocksOfSegmentsDoNotOverlap) {
  Segments& segments = Segments::Instance();
  segments.Use(HostMemorySource());
  std::mt19937 random(1);
  struct Block {
    char* data;
    size_t bytes;
    char mark;
  };
  std::vector<Block> blocks;
  for (int step = 0; step < 2000; ++step) {
    if (blocks.size() < 20 || (random() % 2 != 0u && blocks.size() < 60)) {
      const size_t bytes = 1 + random() % (step % 10 == 0 ? 3 * kMiB : 5000);
      void* data = nullptr;
      EXPECT(segments.Allocate(0, bytes, &data).ok());
      EXPECT(reinterpret_cast<uintptr_t>(data) % 512 == 0);
      EXPECT(segments.Contains(data) && segments.Contains(static_cast<char*>(data) + bytes - 1));
      const char mark = static_cast<char>(random());
      std::memset(data, mark, bytes);
      blocks.push_back({static_cast<char*>(data), bytes, mark});
      continue;
    }
    std::swap(blocks[random() % blocks.size()], blocks.back());
    const Block last = blocks.back();
    blocks.pop_back();
    bool whole = true;
    for (size_t i = 0; i < last.bytes; ++i) whole = whole && last.data[i] == last.mark;
    EXPECT(whole) << "block of " << last.bytes << " bytes in step " << step;
    segments.Free(last.data);
  }
  for (const Block& block : blocks) segments.Free(block.data);
}

TEST(FreeMemoryIsReusedAndSegmentsThatAreTooSmallAreFreed) {
  Segments& segments = Segments::Instance();
  segments.Use(HostMemorySource());
  auto take = [&](size_t bytes) {
    void* data = nullptr;
    EXPECT(segments.Allocate(0, bytes, &data).ok());
    return data;
  };
  void* first = take(100 * kMiB);
  const size_t before = segments.bytes();
  segments.Free(first);
  for (int i = 0; i < 10; ++i) {
    void* one = take(60 * kMiB);
    void* other = take(40 * kMiB);
    EXPECT(segments.bytes() == before) << segments.bytes() - before;
    segments.Free(one);
    segments.Free(other);
  }
  // One block stays allocated, because an unused segment whose gaps are too small would be
  // replaced.
  void* stays = take(20 * kMiB);
  std::vector<int> order = {0, 1, 2};
  do {
    void* blocks[] = {take(30 * kMiB), take(20 * kMiB), take(30 * kMiB)};
    for (const int i : order) segments.Free(blocks[i]);
    void* all = take(80 * kMiB);
    EXPECT(segments.bytes() == before)
        << segments.bytes() - before << " after blocks freed in the order " << order[0] << ' '
        << order[1] << ' ' << order[2];
    segments.Free(all);
  } while (std::next_permutation(order.begin(), order.end()));
  segments.Free(stays);
  void* larger = take(200 * kMiB);
  EXPECT(segments.bytes() < before + 200 * kMiB);
  segments.Free(larger);
  EXPECT(!segments.Contains(&segments));
}

TEST(RunningOutOfMemoryIsAnError) {
  Segments& segments = Segments::Instance();
  segments.Use(HostMemorySource());
  void* data = nullptr;
  const Status none = segments.Allocate(0, size_t{1} << 50, &data);
  EXPECT(none.code() == Code::kResourceExhausted) << none.message();
  EXPECT(none.message().find("bytes of shared memory") != std::string::npos) << none.message();
}

// Other processes read blocks of a rank's workspace in place. Blocks of other memory are copied
// first.
TEST(ABlockOfTheWorkspaceIsNotCopied) {
  RunProcesses(2, [](int) {
    AllOk(RunRanksHere(SiteOn(2, {0, 1}), 1, [](const RankContext& context) -> Status {
      Communicator& comm = context.comm;
      std::unique_ptr<Buffer> workspace;
      JAXMG_RETURN_IF_ERROR(context.device.Allocate(kMiB, &workspace));
      std::vector<char> elsewhere(kMiB, 'a');
      char* mine = workspace->as<char>();
      std::memset(mine, 'a', kMiB);
      const bool sends = comm.rank() == 0;
      for (char* data : {mine, elsewhere.data()}) {
        Bytes2D block = {};
        if (sends) {
          JAXMG_RETURN_IF_ERROR(comm.Send(Stream::kMain, 1, {data, kMiB, kMiB, 1}));
          data[0] = 'b';
        }
        JAXMG_RETURN_IF_ERROR(comm.Agree(Status::Ok()));  // the receiver reads after this agreement
        if (sends) continue;
        JAXMG_RETURN_IF_ERROR(comm.Borrow(Stream::kMain, 0, &block));
        const char first = static_cast<const char*>(block.data)[0];
        EXPECT(first == (data == mine ? 'b' : 'a')) << first;
        EXPECT(static_cast<const char*>(block.data)[kMiB - 1] == 'a');
        JAXMG_RETURN_IF_ERROR(comm.Return(Stream::kMain, 0));
      }
      JAXMG_RETURN_IF_ERROR(WaitAllSent(comm, Stream::kMain));
      return comm.Agree(Status::Ok());
    }));
    return "";
  });
}

// There are at most as many copies as blocks that the receiver hasn't taken.
TEST(CopiesAreReusedOnceTheyAreTaken) {
  RunProcesses(3, [](int) {
    AllOk(RunRanksHere(SiteOn(3, {0, 1, 2}), 1, [](const RankContext& context) -> Status {
      Communicator& comm = context.comm;
      std::vector<char> data(4 * kMiB), got(4 * kMiB);
      for (int round = 0; round < 50; ++round) {
        const int root = round % 3;
        const Bytes2D block = {data.data(), kMiB, kMiB - 7, 4};
        if (comm.rank() == root) {
          std::memset(data.data(), round, data.size());
          JAXMG_RETURN_IF_ERROR(comm.SendToAll(Stream::kMain, block));
          JAXMG_RETURN_IF_ERROR(WaitAllSent(comm, Stream::kMain));
          continue;
        }
        JAXMG_RETURN_IF_ERROR(comm.Recv(Stream::kMain, root, {got.data(), kMiB - 7, kMiB - 7, 4}));
        EXPECT(got[0] == round && got[4 * (kMiB - 7) - 1] == round);
      }
      EXPECT(Segments::Instance().bytes() <= 16 * kMiB) << Segments::Instance().bytes();
      return comm.Agree(Status::Ok());
    }));
    return "";
  });
}

TEST(FreedSegmentsAreUnmappedByOthers) {
  RunProcesses(2, [](int) {
    const auto site = SiteOn(2, {0, 1});
    int64_t run = 0;
    // Each call needs more memory than the segments of earlier calls have.
    auto exchange = [&](size_t bytes) {
      AllOk(RunRanksHere(site, ++run, [&](const RankContext& context) -> Status {
        std::unique_ptr<Buffer> mine, theirs;
        JAXMG_RETURN_IF_ERROR(context.device.Allocate(bytes, &mine));
        JAXMG_RETURN_IF_ERROR(context.device.Allocate(bytes, &theirs));
        const int peer = 1 - context.comm.rank();
        JAXMG_RETURN_IF_ERROR(
            context.comm.Send(Stream::kMain, peer, {mine->data(), bytes, bytes, 1}));
        JAXMG_RETURN_IF_ERROR(
            context.comm.Recv(Stream::kMain, peer, {theirs->data(), bytes, bytes, 1}));
        JAXMG_RETURN_IF_ERROR(WaitAllSent(context.comm, Stream::kMain));
        return context.comm.Agree(Status::Ok());
      }));
    };
    for (size_t bytes = kMiB; bytes <= 128 * kMiB; bytes += 9 * kMiB) exchange(bytes);
    exchange(kMiB);
    exchange(kMiB);
    // The words of both processes, this process's two segments, and at most two of the other
    // process.
    EXPECT(Soon([] { return Mappings() <= 6; })) << Mappings() << " mappings";
    EXPECT(NothingIsLeft());
    return "";
  });
}

// A lost process never signals the event that a rank waits for.
TEST(WaitsForALostProcessEnd) {
  RunProcesses(
      2,
      [](int process) {
        std::shared_ptr<Event> event;
        const SharedEvent* shared = nullptr;
        AllOk(RunRanksHere(SiteOn(2, {0, 1}), 1, [&](const RankContext& context) -> Status {
          std::shared_ptr<MemoryPeer> other;
          JAXMG_RETURN_IF_ERROR(
              Segments::Instance().Connect(1 - process, Hub::Instance().ConnectionTo(1 - process),
                                           Deadline(std::chrono::seconds(20)), &other));
          event = other->PeerEvent({123, 7});  // never signaled
          shared = event->shared();
          EXPECT(other->PeerEvent({uint32_t{1} << 30, 7}) == nullptr);
          return context.comm.Agree(Status::Ok());
        }));
        if (process == 1) {
          raise(SIGKILL);
        }
        auto come = [&] {
          const uint32_t now = __atomic_load_n(shared->word(), __ATOMIC_ACQUIRE);
          return static_cast<int32_t>(now - shared->count()) >= 0;
        };
        EXPECT(Soon(come));
        // Work that the lost process's GPU had started may still write the word.
        __atomic_store_n(shared->word(), 3, __ATOMIC_RELEASE);
        EXPECT(Soon(come));
        return "";
      },
      {}, {1});
}

TEST(TooManyConcurrentCallsAreAnError) {
  RunProcesses(2, [](int process) {
    AllOk(RunRanksHere(SiteOn(2, {0, 1}), 1, [&](const RankContext& context) -> Status {
      std::shared_ptr<MemoryPeer> other;
      JAXMG_RETURN_IF_ERROR(
          Segments::Instance().Connect(1 - process, Hub::Instance().ConnectionTo(1 - process),
                                       Deadline(std::chrono::seconds(20)), &other));
      std::vector<uint32_t> taken;
      Status last;
      while (last.ok()) {
        uint32_t first = 0;
        last = other->AcquireWords(40, &first);
        if (last.ok()) taken.push_back(first);
        EXPECT(taken.size() < 1 << 20);
      }
      EXPECT(last.code() == Code::kResourceExhausted && taken.size() > 1000) << taken.size();
      const SharedEvent one = other->NextEvent(taken[5]);
      EXPECT(other->NextEvent(taken[5]).count() == one.count() + 1);
      for (const uint32_t first : taken) other->ReleaseWords(first, 40);
      uint32_t again = 0;
      EXPECT(other->AcquireWords(40, &again).ok());
      other->ReleaseWords(again, 40);
      return context.comm.Agree(Status::Ok());
    }));
    return "";
  });
}

}  // namespace
}  // namespace jaxmg
