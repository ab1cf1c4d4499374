// Invalid frames from a process of the job: sizes whose product overflows 64 bits, places outside
// of shared memory, replies to blocks that were not sent, and more frames than a process keeps. The
// receiver gets an error or treats the sender as lost, and is not otherwise affected.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cc/support/processes.h"
#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {
namespace {

using namespace testing;
using std::chrono::seconds;

Status Agrees(const RankContext& context) { return context.comm.Agree(Status::Ok()); }

// Returns a frame for rank 1 in a call. Process 0 leads all calls and numbers them from 1.
OutFrame ToRank1(FrameType type, int64_t call, int64_t height, int32_t columns) {
  OutFrame frame = CallFrame({0, call}, type, 0, 1);
  frame.header.value = height;
  frame.header.aux = columns;
  return frame;
}

// Rank 0 sends the frame that `wrong` returns in the first call, and rank 1 receives it as a block.
// The second call must succeed.
void SendsInACall(Transport transport,
                  const std::function<OutFrame(const RankContext& context)>& wrong,
                  const char* message) {
  JobOptions options;
  options.transport = transport;
  RunProcesses(
      2,
      [&](int process) {
        const auto site = SiteOn(2, {0, 1});
        for (const RankOutcome& one :
             RunRanksHere(site, 1, [&](const RankContext& context) -> Status {
               if (process == 0) {
                 EXPECT(Hub::Instance().ConnectionTo(1)->Send(wrong(context)).ok());
                 return context.comm.Agree(Status::Ok());
               }
               Bytes2D block = {};
               const Status borrowed = context.comm.Borrow(Stream::kMain, 0, &block);
               EXPECT(!borrowed.ok()) << block.height << " x " << block.columns;
               return context.comm.Agree(borrowed);
             })) {
          EXPECT(one.status.message().find(message) != std::string::npos) << one.status.message();
        }
        AllOk(RunRanksHere(site, 2, Agrees));
        EXPECT(NothingIsLeft());
        return "";
      },
      options);
}

TEST(BlocksOfInvalidSizesAreRefused) {
  for (const int64_t height : {int64_t{1} << 62, int64_t{-8}, int64_t{8}}) {
    SendsInACall(
        Transport::kUnix,
        [&](const RankContext&) { return ToRank1(FrameType::kData, 1, height, 4); },
        height == 8 ? "a block of another size than announced" : "a block of an impossible size");
  }
  SendsInACall(
      Transport::kUnix, [&](const RankContext&) { return ToRank1(FrameType::kData, 1, 8, -4); },
      "a block of an impossible size");
}

TEST(PlacesBeyondASegmentAreRefused) {
  const struct {
    int64_t offset, pitch;
  } places[] = {{0, int64_t{1} << 62}, {0, INT64_MAX}, {0, -8}, {-8, 8}, {int64_t{1} << 40, 8}};
  for (const auto& one : places) {
    SendsInACall(
        Transport::kAuto,
        [&](const RankContext& context) {
          std::unique_ptr<Buffer> workspace;
          EXPECT(context.device.Allocate(1 << 20, &workspace).ok());
          std::shared_ptr<MemoryPeer> other;
          EXPECT(Segments::Instance()
                     .Connect(1, Hub::Instance().ConnectionTo(1), Deadline(seconds(20)), &other)
                     .ok());
          BlockLocation place = {};
          EXPECT(other->Locate({workspace->data(), 8, 8, 5}, &place).ok());
          place.offset = one.offset;
          place.pitch = one.pitch;
          OutFrame frame = ToRank1(FrameType::kLocation, 1, 8, 5);
          frame.body.assign(reinterpret_cast<const char*>(&place), sizeof(place));
          return frame;
        },
        "outside of its segment");
  }
}

// The frame waits until rank 1's process has joined the call, which has no link before.
TEST(TakenFramesWithoutASendAreRefused) {
  for (const Transport transport : {Transport::kAuto, Transport::kUnix}) {
    JobOptions options;
    options.transport = transport;
    RunProcesses(
        2,
        [&](int process) {
          const auto site = SiteOn(2, {0, 1});
          AllOk(RunRanksHere(site, 1, Agrees));
          if (process == 0) {
            OutFrame frame = CallFrame({0, 2}, FrameType::kTaken, 1, 0);
            frame.header.aux = 1;
            EXPECT(Hub::Instance().ConnectionTo(1)->Send(std::move(frame)).ok());
          }
          for (const RankOutcome& one :
               RunRanksHere(site, 2, [&](const RankContext& context) -> Status {
                 char byte;
                 return context.comm.Agree(
                     process == 0 ? Status::Ok()
                                  : context.comm.Recv(Stream::kMain, 0, {&byte, 1, 1, 1}));
               })) {
            EXPECT(one.status.message().find("named an unknown event") != std::string::npos)
                << one.status.message();
          }
          AllOk(RunRanksHere(site, 3, Agrees));
          return "";
        },
        options);
  }
}

TEST(ASenderOfFramesForCallsThatNeverBeginIsLost) {
  RunProcesses(2, [](int process) {
    const auto site = SiteOn(2, {0, 1});
    AllOk(RunRanksHere(site, 1, Agrees));
    if (process == 0) {
      for (int i = 0; i < 70000; ++i) {
        const OutFrame frame = CallFrame({0, 1000000 + i % 10}, FrameType::kVote, 0);
        // Null once the other process has closed the connection.
        const auto connection = Hub::Instance().ConnectionTo(1);
        EXPECT(connection == nullptr || connection->Send(frame).ok());
      }
    }
    const int other = 1 - process;
    EXPECT(Soon([&] { return !Hub::Instance().LossOf(other).ok(); }));
    EXPECT(process == 0 || Soon([] { return Hub::Instance().calls() == 0; }))
        << Hub::Instance().calls();
    return "";
  });
}

// Frames of NCCL channels that name devices that do not exist.
TEST(ASenderThatNamesUnknownDevicesIsLost) {
  for (const int device : {-1, 1 << 20}) {
    RunProcesses(2, [&](int process) {
      AllOk(RunRanksHere(SiteOn(2, {0, 1}), 1, Agrees));
      if (process == 0) {
        OutFrame frame;
        frame.header.type = FrameType::kNcclWithdraw;
        frame.header.from = device;
        EXPECT(Hub::Instance().ConnectionTo(1)->Send(std::move(frame)).ok());
      }
      EXPECT(Soon([&] { return !Hub::Instance().LossOf(1 - process).ok(); }));
      return "";
    });
  }
}

// SIGBUS kills a process that reads mapped memory after the owner has truncated it.
TEST(MemoryThatMayShrinkIsRefused) {
  constexpr size_t kBytes = 1 << 20;
  void* data = nullptr;
  int file = -1;
  EXPECT(MakeHostSegment(kBytes, &data, &file).ok());
  EXPECT(ftruncate(file, 4096) != 0 && ftruncate(file, 2 * kBytes) != 0);
  void* again = nullptr;
  EXPECT(MapHostSegment(file, kBytes, &again).ok());
  EXPECT(!MapHostSegment(file, 2 * kBytes, &again).ok());
  close(file);
  for (const unsigned flags : {0u, unsigned{MFD_ALLOW_SEALING}}) {
    const int open = memfd_create("jaxmg-test", MFD_CLOEXEC | flags);
    EXPECT(ftruncate(open, kBytes) == 0);
    EXPECT(flags == 0 || fcntl(open, F_ADD_SEALS, F_SEAL_GROW) == 0);
    const Status mapped = MapHostSegment(open, kBytes, &again);
    EXPECT(mapped.message().find("is not sealed") != std::string::npos) << mapped.message();
    close(open);
  }
}

}  // namespace
}  // namespace jaxmg
