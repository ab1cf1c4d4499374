// Flow: an algorithm as steps, each on a stream, that say what they read and write.
//
// From that follow the events, the waits between streams, and when memory may be used again. A
// failure is noted once: nothing is enqueued after it, the other ranks hear of it at once, and the
// algorithm returns it in the end.
//
//   Data panel, column;
//   {
//     Step<T> on(flow, Stream::kPanel, "panel", k);
//     on.Reads(column);
//     on.Gives(panel);
//     on.SolveRight(...);
//   }
//   Step<T> on(flow, Stream::kMain, "update", k);
//   on.Reads(panel);   // kMain waits for kPanel's step
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_FLOW_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_FLOW_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// By stream, how much of its work: steps, waits and operations of a flow are counted. 0: nothing.
using Progress = std::array<int64_t, kNumStreams>;

// A point in a stream's work. Without an event it is the end of a step, and who waits for it waits
// for more: for all that the stream was given until somebody waited first.
struct Mark {
  Stream stream = Stream::kMain;
  int64_t time = 0;  // 0: never came
  std::shared_ptr<Event> event;
  Progress before = {};  // what is done where the event is
};

// What steps read and write: a panel, a tile column, right-hand sides.
class Data {
  friend class StepBase;
  Mark written_;
  Progress read_ = {};  // since then
};

// Memory in which one thing comes after another.
class Room {
  friend class Flow;
  friend class StepBase;
  Mark free_;
  std::vector<int64_t> sent_;  // blocks sent to each rank from here and before; empty: none
};

class Flow {
 public:
  // `precision` is that of Step::Gemm and Step::Herk.
  explicit Flow(const RankContext& context, Precision precision = Precision::kHighest)
      : device_(context.device),
        comm_(context.comm),
        tuning_(context.device.tuning()),
        precision_(precision) {
    for (int s = 0; s < kNumStreams; ++s) known_[s][s] = 1;  // what came before the flow
  }
  Flow(const Flow&) = delete;

  // Other streams' steps come after what kMain was given so far.
  void Fork() { fork_ = Record(Stream::kMain); }
  // kMain goes on after all streams' steps.
  void Join();
  // The end: kMain goes on after all steps, and what they sent has been taken.
  Status Finish();

  const Status& status() const { return status_; }
  Device& device() { return device_; }
  Communicator& comm() { return comm_; }
  const Tuning& tuning() const { return tuning_; }
  Precision precision() const { return precision_; }

  // Does nothing after a failure; one of its own is noted, and told to all ranks.
  template <typename Call>
  void Do(const Call& call) noexcept {
    if (!status_.ok()) return;
    status_ = Guarded(call);
    if (!status_.ok()) comm_.Abort(status_);
  }

  // What was sent so far has to be taken before the room is.
  void NoteSent(Room& room);

 private:
  friend class StepBase;

  int64_t& now(Stream stream) { return known_[Index(stream)][Index(stream)]; }
  static int Index(Stream stream) { return static_cast<int>(stream); }

  // A mark with an event, behind what the stream was given so far.
  const Mark& Record(Stream stream) noexcept;
  // `later` goes on after a mark, or after what `earlier` was given until a time.
  void Await(Stream later, const Mark& mark) noexcept;
  void Await(Stream later, Stream earlier, int64_t time) noexcept;
  void AwaitEvent(Stream later, const Mark& mark) noexcept;
  void AwaitSent(Stream stream, int peer, int64_t count) noexcept;

  Device& device_;
  Communicator& comm_;
  const Tuning tuning_;
  const Precision precision_;
  Status status_;
  Mark fork_;
  std::array<Mark, kNumStreams> last_;            // recorded, by stream
  std::array<Progress, kNumStreams> known_ = {};  // by stream, what its next operation comes after
};

// The accesses of a step. Steps that are open at the same time run beside each other: what one
// writes, the other may not touch, unless it Follows it.
class StepBase {
 public:
  StepBase(Flow& flow, Stream stream, const char* name, int64_t index)
      : flow_(flow), stream_(stream), name_(name), index_(index) {
    flow_.Await(stream_, flow_.fork_);
  }
  ~StepBase();
  StepBase(const StepBase&) = delete;

  Stream stream() const { return stream_; }
  const Tuning& tuning() const { return flow_.tuning(); }

  // The step comes after what was written.
  template <typename... D>
  StepBase& Reads(D&... data) {
    return (Access(Kind::kReads, &data, 1), ...), *this;
  }
  // After what was written and read.
  template <typename... D>
  StepBase& Writes(D&... data) {
    return (Access(Kind::kWrites, &data, 1), ...), *this;
  }
  // Writes, and whoever waits for it waits for no more than this step. Costs an event.
  template <typename... D>
  StepBase& Gives(D&... data) {
    return (Access(Kind::kGives, &data, 1), ...), *this;
  }
  // The same of all in [begin, end).
  StepBase& Reads(std::vector<Data>& all, int64_t begin, int64_t end) {
    return Access(Kind::kReads, all.data() + begin, end - begin), *this;
  }
  StepBase& Writes(std::vector<Data>& all, int64_t begin, int64_t end) {
    return Access(Kind::kWrites, all.data() + begin, end - begin), *this;
  }
  StepBase& Gives(std::vector<Data>& all, int64_t begin, int64_t end) {
    return Access(Kind::kGives, all.data() + begin, end - begin), *this;
  }
  // What it gives is there already; the step goes on.
  void GivesNow();
  // After all that another stream was given so far.
  StepBase& Follows(Stream earlier) {
    flow_.Await(stream_, earlier, flow_.now(earlier));
    return *this;
  }

  // Puts something into a room: what was there is not needed any more, here or by other ranks.
  StepBase& Takes(Room& room);
  // What is in a room is not needed after this step.
  StepBase& Frees(Room& room) {
    frees_ = &room;
    return *this;
  }
  // After what was sent from a room has been taken.
  StepBase& AwaitsSent(Room& room) {
    for (size_t peer = 0; peer < room.sent_.size(); ++peer) AwaitsSent(peer, room.sent_[peer]);
    room.sent_.clear();
    return *this;
  }
  // After the first `count` blocks sent to `peer` have been.
  void AwaitsSent(int peer, int64_t count) { flow_.AwaitSent(stream_, peer, count); }

 protected:
  // Adds to the step's work.
  template <typename Call>
  void Do(const Call& call) noexcept {
    flow_.Do([&]() -> Status {
      BeginRange();
      return call();
    });
    ++flow_.now(stream_);
  }

  Flow& flow_;
  const Stream stream_;

 private:
  enum class Kind { kReads, kWrites, kGives };
  struct Accessed {
    Kind kind;
    Data* data;
    int64_t count;
  };
  static constexpr int kMost = 8;

  void Access(Kind kind, Data* data, int64_t count) noexcept;
  void BeginRange() {
    if (name_ != nullptr && !begun_) flow_.device_.BeginRange(stream_, name_, index_);
    begun_ = name_ != nullptr;
  }

  const char* const name_;  // of its range in timelines; null: none
  const int64_t index_;
  bool begun_ = false;
  int count_ = 0;
  std::array<Accessed, kMost> accesses_;
  Room* frees_ = nullptr;
};

// A step, from its beginning to the end of its life: the operations of Device, Communicator and
// Blas<T> on its stream.
template <typename T>
class Step : public StepBase {
 public:
  Step(Flow& flow, Stream stream, const char* name = nullptr, int64_t index = 0)
      : StepBase(flow, stream, name, index),
        blas_(flow.device().template blas<T>()),
        products_(flow.device().template blas<T>(flow.precision())),
        eigen_(flow.device().template eigen<T>()) {}

  // What Blas<T>, Device and EigenKernels<T> have under these names, with the arguments behind the
  // stream: Gemm and Herk in the flow's precision, all others in T's own.
#define JAXMG_OPERATION(Name, operations, Operation)           \
  template <typename... A>                                     \
  void Name(A... a) {                                          \
    Do([&] { return (operations).Operation(stream_, a...); }); \
  }
  JAXMG_OPERATION(Gemm, products_, Gemm)
  JAXMG_OPERATION(Herk, products_, Herk)
  JAXMG_OPERATION(Split, products_, Split)
  JAXMG_OPERATION(GemmOfParts, products_, GemmOfParts)
  JAXMG_OPERATION(ExactGemm, blas_, Gemm)
  JAXMG_OPERATION(Trsm, blas_, Trsm)
  JAXMG_OPERATION(Trmm, blas_, Trmm)
  JAXMG_OPERATION(SolveRight, blas_, SolveRight)
  JAXMG_OPERATION(Potrf, blas_, Potrf)
  JAXMG_OPERATION(Trtri, blas_, Trtri)
  JAXMG_OPERATION(ConjTranspose, blas_, ConjTranspose)
  JAXMG_OPERATION(MirrorLower, blas_, MirrorLower)
  JAXMG_OPERATION(SetZero, blas_, SetZero)
  JAXMG_OPERATION(Add, blas_, Add)
  JAXMG_OPERATION(AddLogDet, blas_, AddLogDet)
  JAXMG_OPERATION(StoreInverse, blas_, StoreInverse)
  JAXMG_OPERATION(LoadInverse, blas_, LoadInverse)
  JAXMG_OPERATION(Copy, flow_.device(), Copy)
  JAXMG_OPERATION(CopyWithin, flow_.device(), CopyWithin)
  JAXMG_OPERATION(FactorPanel, flow_.device().template lu<T>(), FactorPanel)
  JAXMG_OPERATION(SwapRows, flow_.device().template lu<T>(), SwapRows)
  JAXMG_OPERATION(SwapColumns, flow_.device().template lu<T>(), SwapColumns)
  JAXMG_OPERATION(AddDeterminant, flow_.device().template lu<T>(), AddDeterminant)
  JAXMG_OPERATION(QrPanel, *eigen_.panel, QrPanel)
  JAXMG_OPERATION(UnpackReflectors, *eigen_.panel, UnpackReflectors)
  JAXMG_OPERATION(PackBand, *eigen_.panel, PackBand)
  JAXMG_OPERATION(FromReal, *eigen_.panel, FromReal)
  JAXMG_OPERATION(Chase, *eigen_.chase, Chase)
  JAXMG_OPERATION(TakeTridiagonal, *eigen_.chase, TakeTridiagonal)
  JAXMG_OPERATION(ApplyGroups, *eigen_.chase, ApplyGroups)
  JAXMG_OPERATION(ExpandReflectors, *eigen_.chase, ExpandReflectors)
#undef JAXMG_OPERATION

  void Send(int peer, const Bytes2D& block) {
    Do([&] { return flow_.comm().Send(stream_, peer, block); });
  }
  void Recv(int peer, const Bytes2D& block) {
    Do([&] { return flow_.comm().Recv(stream_, peer, block); });
  }
  void Broadcast(int root, const Bytes2D& block) {
    Do([&] { return jaxmg::Broadcast(flow_.comm(), stream_, root, block); });
  }
  Bytes2D Borrow(int peer) {
    Bytes2D block = {};
    Do([&] { return flow_.comm().Borrow(stream_, peer, &block); });
    return block;
  }
  void Return(int peer) {
    Do([&] { return flow_.comm().Return(stream_, peer); });
  }
  void WaitAllSent() {
    Do([&] { return jaxmg::WaitAllSent(flow_.comm(), stream_); });
  }

 private:
  Blas<T>& blas_;
  Blas<T>& products_;
  const EigenKernels<T>& eigen_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_FLOW_H_
