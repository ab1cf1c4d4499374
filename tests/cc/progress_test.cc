// Progress: what a watcher sees of a call whose device is behind the host, and of stages.
#include "xla_ffi/device/progress.h"

#include <memory>
#include <new>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

using namespace testing;

constexpr double kClose = 1e-12;

// Reaches marks only when it is told to.
class LateDevice : public ForwardingDevice {
 public:
  LateDevice() : LateDevice(NewHostDevice()) {}
  Status RecordShared(Stream, const SharedEvent& event) override {
    pending_.push_back(event);
    return Status::Ok();
  }
  void Reach(size_t count) {
    for (size_t i = 0; i < count; ++i, ++reached_) {
      (void)real_->RecordShared(Stream::kMain, pending_[reached_]);
    }
  }
  void ReachAll() { Reach(pending_.size() - reached_); }

 private:
  explicit LateDevice(std::unique_ptr<Device> real)
      : ForwardingDevice(*real), real_(std::move(real)) {}
  const std::unique_ptr<Device> real_;
  std::vector<SharedEvent> pending_;
  size_t reached_ = 0;
};

// Watches for the lifetime of the object.
struct Watched {
  Watched() { SetProgressWanted(true); }
  ~Watched() { SetProgressWanted(false); }
};

ProgressSnapshot One() {
  const std::vector<ProgressSnapshot> all = TakeProgress();
  EXPECT(all.size() == 1);
  return all.empty() ? ProgressSnapshot{} : all[0];
}

bool Near(double a, double b) { return a - b < kClose && b - a < kClose; }

TEST(NothingIsRecordedUnlessItIsWanted) {
  LateDevice device;
  ReportedCall call(&device, {"routine", 8, 2}, true);
  EXPECT(device.progress() == nullptr);
  Stage(device, "stage", 1, 1).Done(Stream::kMain, 1);
  call.End(Status::Ok());
  EXPECT(TakeProgress().empty());
}

TEST(OnlyTheReportingRankRecords) {
  const Watched watched;
  LateDevice device;
  ReportedCall call(&device, {"routine", 8, 2}, false);
  EXPECT(device.progress() == nullptr && TakeProgress().empty());
  call.End(Status::Ok());
}

TEST(AStepIsDoneWhenTheDeviceHasReachedIt) {
  const Watched watched;
  LateDevice device;
  ReportedCall call(&device, {"routine", 8, 2}, true);
  AnnounceWork(device, 100);
  {
    Stage stage(device, "factor", 2, 80, kShrinks);
    stage.Done(Stream::kMain, 1);
    stage.Done(Stream::kMain, 2);
  }
  {
    Stage stage(device, "substitute", 4, 20);
    stage.Done(Stream::kMain, 1);
  }
  call.End(Status::Ok());
  ProgressSnapshot now = One();  // the host is done, the device hasn't begun
  EXPECT(!now.ended && now.of.n == 8 && now.of.ranks == 2 && now.stage[0] == '\0');
  device.Reach(2);  // the beginning, and a step
  now = One();
  EXPECT(std::string(now.stage) == "factor" && now.step == 1 && now.steps == 2);
  EXPECT(Near(now.fraction, 0.8 * (1 - 0.125)) && !now.ended);
  device.Reach(1);
  EXPECT(Near(One().fraction, 0.8));
  device.Reach(1);
  now = One();
  EXPECT(std::string(now.stage) == "substitute" && Near(now.fraction, 0.85) && now.seconds >= 0);
  device.ReachAll();
  now = One();
  EXPECT(now.ended && now.ok && now.fraction == 1);
  EXPECT(TakeProgress().empty());
}

TEST(StagesWithinStagesAndUnannouncedWork) {
  const Watched watched;
  LateDevice device;
  ReportedCall call(&device, {"routine", 8, 1}, true);
  {
    Stage outer(device, "outer", 2, 10);
    {
      Stage inner(device, "inner", 5, 1000);
      AnnounceWork(device, 5000);
      inner.Done(Stream::kMain, 5);
    }
    outer.Done(Stream::kMain, 1);
  }
  device.ReachAll();
  const ProgressSnapshot now = One();
  EXPECT(std::string(now.stage) == "outer" && now.step == 1 && Near(now.fraction, 0.5));
  call.End(Status::Ok());
  device.ReachAll();
  EXPECT(One().ended);
}

TEST(MoreWorkThanAnnounced) {
  const Watched watched;
  LateDevice device;
  ReportedCall call(&device, {"routine", 8, 1}, true);
  AnnounceWork(device, 10);
  Stage(device, "a", 1, 10).Done(Stream::kMain, 1);
  Stage(device, "b", 1, 10).Done(Stream::kMain, 1);
  device.ReachAll();
  EXPECT(Near(One().fraction, 0.99));
  call.End(Status::Ok());
  device.ReachAll();
  EXPECT(One().fraction == 1);
}

TEST(ACallThatFails) {
  const Watched watched;
  LateDevice device;
  ReportedCall call(&device, {"routine", 8, 1}, true);
  Stage(device, "a", 1, 10).Done(Stream::kMain, 1);
  (void)One();
  call.End(Error(Code::kInternal, "no"));
  const ProgressSnapshot now = One();
  EXPECT(now.ended && !now.ok && TakeProgress().empty());
}

TEST(ACallThatAnExceptionLeaves) {
  const Watched watched;
  LateDevice device;
  try {
    ReportedCall call(&device, {"routine", 8, 1}, true);
    (void)One();
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
  }
  EXPECT(device.progress() == nullptr);
  const ProgressSnapshot now = One();
  EXPECT(now.ended && !now.ok && TakeProgress().empty());
}

TEST(ACallThatNobodySawIsForgotten) {
  const Watched watched;
  LateDevice device;
  ReportedCall call(&device, {"routine", 8, 1}, true);
  call.End(Status::Ok());
  device.ReachAll();
  EXPECT(TakeProgress().empty());
}

TEST(WordsAreReusedWhenTheDeviceIsDoneWithThem) {
  for (int i = 0; i < 5000; ++i) {
    const Watched watched;
    LateDevice device;
    ReportedCall first(&device, {"first", i, 1}, true);
    first.End(Status::Ok());
    LateDevice other;
    ReportedCall second(&other, {"second", i, 1}, true);
    device.ReachAll();  // after the second has begun
    Stage(other, "a", 2, 10).Done(Stream::kMain, 1);
    other.ReachAll();
    const ProgressSnapshot now = One();
    const bool right = std::string(now.of.routine) == "second" && now.step == 1;
    EXPECT(right) << i;
    second.End(Status::Ok());
    other.ReachAll();
  }
}

}  // namespace
}  // namespace jaxmg
