// Flow: the dependencies between steps, and the effects of a failure.
#include "xla_ffi/engine/core/flow.h"

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

// A single rank whose steps copy numbers within its own memory.
struct Solo {
  // Enqueues an operation and returns its index.
  int Work(Step<double>& on) {
    const int index = static_cast<int>(recording.operations().size());
    const double* source = &numbers[2 * index];
    on.Copy(Block(source + 1, 1, 1, 1), Block(source, 1, 1, 1));
    return index;
  }
  int Work(Flow& flow, Stream stream) {
    Step<double> on(flow, stream);
    return Work(on);
  }
  bool Before(int a, int b) const {
    const auto& all = recording.operations();
    return all[b].before[all[a].lane] >= all[a].before[all[a].lane];
  }

  Recording recording{1};
  std::unique_ptr<RecordingDevice> device =
      NewRecordingDevice(NewHostDevice(), Tuning(), recording, 0);
  SoloCommunicator comm;
  RankContext context{*device, comm};
  std::vector<double> numbers = std::vector<double>(100);
};

TEST(AStepWaitsForTheDataThatItReadsAlone) {
  Solo solo;
  Flow flow(solo.context);
  Data panel, other;
  int writes, reads;
  {
    Step<double> on(flow, Stream::kPanel);
    on.Gives(panel);
    writes = solo.Work(on);
  }
  const int later = solo.Work(flow, Stream::kPanel);
  const int concurrent = solo.Work(flow, Stream::kNext);
  {
    Step<double> on(flow, Stream::kMain);
    on.Reads(panel, other);
    reads = solo.Work(on);
  }
  EXPECT(solo.Before(writes, reads));
  EXPECT(!solo.Before(later, reads)) << "Gives is waited for as Writes is";
  EXPECT(!solo.Before(concurrent, reads));
  EXPECT(flow.Finish().ok());
}

TEST(AWaitForAWriterCoversTheStepsSince) {
  Solo solo;
  Flow flow(solo.context);
  Data panel, earlier;
  {
    Step<double> on(flow, Stream::kPanel);
    on.Gives(earlier);
    solo.Work(on);
  }
  {
    Step<double> on(flow, Stream::kPanel);
    on.Writes(panel);
    solo.Work(on);
  }
  const int64_t events = solo.device->events();
  const int later = solo.Work(flow, Stream::kPanel);
  EXPECT(solo.device->events() == events);
  Step<double> on(flow, Stream::kMain);
  on.Reads(panel);
  EXPECT(solo.Before(later, solo.Work(on)));
}

TEST(AWriterWaitsForAllReaders) {
  Solo solo;
  Flow flow(solo.context);
  Data panel;
  std::vector<int> readers;
  for (Stream stream : {Stream::kPanel, Stream::kNext, Stream::kSide}) {
    Step<double> on(flow, stream);
    on.Reads(panel);
    readers.push_back(solo.Work(on));
  }
  Step<double> on(flow, Stream::kCopy);
  on.Writes(panel);
  const int writes = solo.Work(on);
  for (int reader : readers) EXPECT(solo.Before(reader, writes)) << reader;
}

TEST(NoWaitIsRepeated) {
  Solo solo;
  Flow flow(solo.context);
  Data panel, column;
  {
    Step<double> on(flow, Stream::kPanel);
    on.Gives(panel, column);
    solo.Work(on);
  }
  const int64_t given = solo.device->events();
  EXPECT(given == 2) << "one event for both, made and recorded, not " << given;
  {
    Step<double> on(flow, Stream::kPanel);
    on.Reads(panel).Writes(column);  // `column` is from the same stream
    solo.Work(on);
  }
  EXPECT(solo.device->events() == given);
  for (int i = 0; i < 3; ++i) {
    Step<double> on(flow, Stream::kNext);
    on.Reads(panel);
    solo.Work(on);
  }
  EXPECT(solo.device->events() == given + 1);
  {
    Step<double> on(flow, Stream::kMain);
    on.Follows(Stream::kNext);
    solo.Work(on);
  }
  EXPECT(solo.device->events() == given + 4);
  Step<double> on(flow, Stream::kMain);
  on.Reads(panel);  // kMain follows kNext, which has already waited for it
  EXPECT(solo.device->events() == given + 4);
}

TEST(ARoomIsReusedOnceItIsFree) {
  Solo solo;
  Flow flow(solo.context);
  Room room;
  int last;
  {
    Step<double> on(flow, Stream::kCopy);
    on.Takes(room);  // the first use
  }
  EXPECT(solo.device->events() == 0);
  {
    Step<double> on(flow, Stream::kMain);
    on.Frees(room);
    last = solo.Work(on);
  }
  const int later = solo.Work(flow, Stream::kMain);
  Step<double> on(flow, Stream::kCopy);
  on.Takes(room);
  const int takes = solo.Work(on);
  EXPECT(solo.Before(last, takes));
  EXPECT(!solo.Before(later, takes));
}

TEST(StreamsForkAndJoin) {
  Solo solo;
  Flow flow(solo.context);
  const int before = solo.Work(flow, Stream::kMain);
  flow.Fork();
  const int concurrent = solo.Work(flow, Stream::kMain);
  const int forked = solo.Work(flow, Stream::kSide);
  EXPECT(solo.Before(before, forked));
  EXPECT(!solo.Before(concurrent, forked));
  const int64_t events = solo.device->events();
  EXPECT(flow.Finish().ok());
  EXPECT(solo.device->events() == events + 3) << "streams without work were joined";
  EXPECT(solo.Before(forked, solo.Work(flow, Stream::kMain)));
}

TEST(NothingIsEnqueuedAfterAFailure) {
  Solo solo;
  Flow flow(solo.context);
  Data panel;
  {
    Step<double> on(flow, Stream::kPanel);
    on.Gives(panel);
    on.Recv(1, Block(solo.numbers.data(), 1, 1, 1));  // rank 1 doesn't exist
    EXPECT(!flow.status().ok());
    solo.Work(on);
  }
  {
    Step<double> on(flow, Stream::kMain);
    on.Reads(panel).Follows(Stream::kPanel);
    solo.Work(on);
  }
  const Status status = flow.Finish();
  EXPECT(solo.recording.operations().empty() && solo.device->events() == 0);
  EXPECT(status.message() == "a single rank has no peers") << status.message();
}

TEST(AStepEndsTheFlowOnceAnotherRankHasFailed) {
  RunRanks(1, [](const RankContext& context) -> Status {
    // `alone` is the communicator of the root of a gathered matrix: it has no other ranks.
    SoloCommunicator alone(&context.comm);
    Communicator* const both[] = {&context.comm, &alone};
    double numbers[3] = {1, 2, 3};
    for (Communicator* comm : both) {
      Flow flow({context.device, *comm});
      Step<double> on(flow, Stream::kMain);
      on.Copy(Block(&numbers[0], 1, 1, 1), Block(&numbers[1], 1, 1, 1));
      EXPECT(numbers[0] == 2 && flow.status().ok());
    }
    std::vector<std::unique_ptr<Flow>> flows;
    for (Communicator* comm : both) {
      flows.push_back(std::make_unique<Flow>(RankContext{context.device, *comm}));
    }
    context.comm.Abort(Status::Fixed(Code::kCancelled, "interrupted"));
    for (const auto& flow : flows) {
      Step<double> on(*flow, Stream::kMain);
      on.Copy(Block(&numbers[1], 1, 1, 1), Block(&numbers[2], 1, 1, 1));
      EXPECT(numbers[1] == 2);
      EXPECT(flow->Finish().message() == "interrupted") << flow->status().message();
    }
    return Status::Ok();
  });
}

// A device whose copies fail.
class NoCopies : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Copy(Stream, const Bytes2D&, const Bytes2D&) override { throw std::bad_alloc(); }
};

TEST(AFailureReleasesOtherRanksBeforeTheAlgorithmEnds) {
  double numbers[2] = {};
  const Bytes2D number = Block(&numbers[0], 1, 1, 1), target = Block(&numbers[1], 1, 1, 1);
  const auto outcomes = RunRanks(2, [&](const RankContext& context) -> Status {
    NoCopies poor(context.device);
    const int rank = context.comm.rank();
    Flow flow({rank == 1 ? poor : context.device, context.comm});
    Step<double> on(flow, Stream::kMain);
    if (rank == 1) on.Copy(target, number);
    // Rank 0 waits for a message that is never sent; both ranks return.
    on.Recv(1 - rank, target);
    return flow.Finish();
  });
  EXPECT(outcomes[0].code() == Code::kAborted) << outcomes[0].message();
  EXPECT(outcomes[1].code() == Code::kResourceExhausted) << outcomes[1].message();
}

}  // namespace
}  // namespace jaxmg
