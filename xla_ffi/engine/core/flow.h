// Flow: an algorithm as a sequence of steps. Each step is on one stream and declares what it reads
// and writes.
//
// The flow derives events, waits between streams, and the reuse of memory. It records the first
// failure, aborts the communicator at once, enqueues nothing afterwards, and returns the failure at
// the end.
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

// By stream: a position in its work, as the number of the flow's steps, waits and operations so
// far; 0: none.
using Progress = std::array<int32_t, kNumStreams>;

// A point in a stream's work. If it has no event, it is the end of a step. The first wait for it
// then records an event, which also covers everything enqueued on the stream since.
struct Mark {
  Stream stream = Stream::kMain;
  int32_t time = 0;  // 0: never recorded
  std::shared_ptr<Event> event;
  Progress before = {};  // the work that is complete at the event
};

// A datum that steps read and write: a panel, a tile column, right-hand sides.
class Data {
  friend class StepBase;
  Mark written_;
  Progress read_ = {};  // reads since that write
};

// Memory that holds different data one after the other.
class Room {
  friend class Flow;
  friend class StepBase;
  Mark free_;
  std::vector<int64_t>
      sent_;  // by rank: the number of blocks sent up to the last one from this room; empty: none
};

class Flow {
 public:
  // `precision` applies to Gemm, Herk, Split and GemmOfParts of Step.
  explicit Flow(const RankContext& context, Precision precision = Precision::kHighest)
      : device_(context.device),
        comm_(context.comm),
        tuning_(context.device.tuning()),
        precision_(precision) {
    for (int s = 0; s < kNumStreams; ++s) known_[s][s] = 1;  // work before the flow
  }
  Flow(const Flow&) = delete;

  // Makes later steps of other streams wait for the work enqueued on kMain so far.
  void Fork() { fork_ = Record(Stream::kMain); }
  // Makes kMain wait for all steps of all streams.
  void Join();
  // Ends the flow: makes kMain wait for all steps, and until all blocks that they sent have been
  // taken.
  Status Finish();

  const Status& status() const { return status_; }
  Device& device() { return device_; }
  Communicator& comm() { return comm_; }
  const Tuning& tuning() const { return tuning_; }
  Precision precision() const { return precision_; }

  // Calls `call` unless the flow or another rank has failed. If `call` fails, records the failure
  // and aborts on all ranks.
  template <typename Call>
  void Do(const Call& call) noexcept {
    if (!status_.ok()) return;
    if (comm_.failed()) {
      status_ = GivenUp(comm_.Failure());
      return;
    }
    status_ = Guarded(call);
    if (!status_.ok()) comm_.Abort(status_);
  }

  // Makes the next use of the room wait until the blocks sent so far have been taken.
  void NoteSent(Room& room);

 private:
  friend class StepBase;

  int32_t& now(Stream stream) { return known_[Index(stream)][Index(stream)]; }
  static int Index(Stream stream) { return static_cast<int>(stream); }

  // Returns a mark with an event after the work enqueued on the stream so far.
  const Mark& Record(Stream stream) noexcept;
  // Make `later` wait for a mark, or for the work of `earlier` up to a time.
  void Await(Stream later, const Mark& mark) noexcept;
  void Await(Stream later, Stream earlier, int32_t time) noexcept;
  void AwaitEvent(Stream later, const Mark& mark) noexcept;
  void AwaitSent(Stream stream, int peer, int64_t count) noexcept;

  Device& device_;
  Communicator& comm_;
  const Tuning tuning_;
  const Precision precision_;
  Status status_;
  Mark fork_;
  std::array<Mark, kNumStreams> last_;  // the last recorded mark of each stream
  std::array<Progress, kNumStreams> known_ =
      {};  // by stream: the work that precedes its next operation
};

// The accesses of a step. Steps that are open at the same time run concurrently: neither may access
// data that the other writes, unless it Follows the other's stream.
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

  // Makes the step wait for earlier writes.
  template <typename... D>
  StepBase& Reads(D&... data) {
    return (Access(Kind::kReads, &data, 1), ...), *this;
  }
  // Makes the step wait for earlier writes and reads.
  template <typename... D>
  StepBase& Writes(D&... data) {
    return (Access(Kind::kWrites, &data, 1), ...), *this;
  }
  // As Writes, and records an event at the end of the step, so that readers don't wait for later
  // work.
  template <typename... D>
  StepBase& Gives(D&... data) {
    return (Access(Kind::kGives, &data, 1), ...), *this;
  }
  // The same for elements [begin, end) of a vector.
  StepBase& Reads(std::vector<Data>& all, int64_t begin, int64_t end) {
    return Access(Kind::kReads, all.data() + begin, end - begin), *this;
  }
  StepBase& Writes(std::vector<Data>& all, int64_t begin, int64_t end) {
    return Access(Kind::kWrites, all.data() + begin, end - begin), *this;
  }
  StepBase& Gives(std::vector<Data>& all, int64_t begin, int64_t end) {
    return Access(Kind::kGives, all.data() + begin, end - begin), *this;
  }
  // Records the event of Gives now, before the end of the step.
  void GivesNow();
  // Makes the step wait for all work enqueued on another stream so far.
  StepBase& Follows(Stream earlier) {
    flow_.Await(stream_, earlier, flow_.now(earlier));
    return *this;
  }

  // Makes the step wait until neither this rank nor another one needs the previous content of a
  // room.
  StepBase& Takes(Room& room);
  // Declares that no step after this one needs the content of a room.
  StepBase& Frees(Room& room) {
    frees_ = &room;
    return *this;
  }
  // Makes the step wait until the blocks sent from a room have been taken.
  StepBase& AwaitsSent(Room& room) {
    for (size_t peer = 0; peer < room.sent_.size(); ++peer) AwaitsSent(peer, room.sent_[peer]);
    room.sent_.clear();
    return *this;
  }
  // Makes the step wait until `peer` has taken the first `count` blocks.
  void AwaitsSent(int peer, int64_t count) { flow_.AwaitSent(stream_, peer, count); }

 protected:
  // Adds an operation to the step.
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

  const char* const name_;  // of the step's range in a timeline; null: no range
  const int64_t index_;
  bool begun_ = false;
  int count_ = 0;
  std::array<Accessed, kMost> accesses_;
  Room* frees_ = nullptr;
};

// A step, open for the lifetime of the object. Its methods are the operations of Device,
// Communicator and Blas<T> on its stream.
template <typename T>
class Step : public StepBase {
 public:
  Step(Flow& flow, Stream stream, const char* name = nullptr, int64_t index = 0)
      : StepBase(flow, stream, name, index),
        blas_(flow.device().template blas<T>()),
        products_(flow.device().template blas<T>(flow.precision())),
        eigen_(flow.device().template eigen<T>()) {}

  // The operations of Blas<T>, Device and EigenKernels<T> of the same names, without the stream
  // argument. Gemm, Herk, Split and GemmOfParts use the flow's precision, all others the precision
  // of T.
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
  JAXMG_OPERATION(ExactGemmBatched, blas_, GemmBatched)
  JAXMG_OPERATION(Trsm, blas_, Trsm)
  JAXMG_OPERATION(Trmm, blas_, Trmm)
  JAXMG_OPERATION(SolveRight, blas_, SolveRight)
  JAXMG_OPERATION(Potrf, blas_, Potrf)
  JAXMG_OPERATION(PotrfOfWhole, blas_, PotrfOfWhole)
  JAXMG_OPERATION(Trtri, blas_, Trtri)
  JAXMG_OPERATION(ConjTranspose, blas_, ConjTranspose)
  JAXMG_OPERATION(Conjugate, blas_, Conjugate)
  JAXMG_OPERATION(MirrorLower, blas_, MirrorLower)
  JAXMG_OPERATION(SetZero, blas_, SetZero)
  JAXMG_OPERATION(SetIdentity, blas_, SetIdentity)
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
  JAXMG_OPERATION(Combine, flow_.device().template matrix<T>(), Combine)
  JAXMG_OPERATION(AddToDiagonal, flow_.device().template matrix<T>(), AddToDiagonal)
  JAXMG_OPERATION(ScaleRowsAndColumns, flow_.device().template matrix<T>(), ScaleRowsAndColumns)
  JAXMG_OPERATION(TimesPowerOfTwo, flow_.device().template matrix<T>(), TimesPowerOfTwo)
  JAXMG_OPERATION(MakeHermitian, flow_.device().template matrix<T>(), MakeHermitian)
  JAXMG_OPERATION(ClearTriangle, flow_.device().template matrix<T>(), ClearTriangle)
  JAXMG_OPERATION(SquareSums, flow_.device().template matrix<T>(), SquareSums)
  JAXMG_OPERATION(DivideByRoot, flow_.device().template matrix<T>(), DivideByRoot)
  JAXMG_OPERATION(LargestOfRows, flow_.device().template matrix<T>(), LargestOfRows)
  JAXMG_OPERATION(RootsOfDiagonal, flow_.device().template matrix<T>(), RootsOfDiagonal)
  JAXMG_OPERATION(SignsOfDiagonal, flow_.device().template matrix<T>(), SignsOfDiagonal)
  JAXMG_OPERATION(TakeRows, flow_.device().template matrix<T>(), TakeRows)
  JAXMG_OPERATION(AddNoise, flow_.device().template matrix<T>(), AddNoise)
  JAXMG_OPERATION(Convert, flow_.device().template matrix<T>(), Convert)
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
