#include "xla_ffi/engine/routines.h"

#include <algorithm>
#include <complex>
#include <functional>
#include <memory>

#include "xla_ffi/engine/gather.h"
#include "xla_ffi/engine/potrf.h"
#include "xla_ffi/engine/potri.h"
#include "xla_ffi/engine/potrs.h"
#include "xla_ffi/engine/redistribute.h"
#include "xla_ffi/engine/symmetrize.h"
#include "xla_ffi/engine/syevd.h"

namespace jaxmg {
namespace {

// One allocation, handed out in aligned pieces: first all sizes, then all pointers.
class Workspace {
 public:
  template <typename T>
  size_t Reserve(int64_t elements) {
    constexpr size_t kAlignment = 256;
    const size_t offset = size_;
    size_ +=
        (std::max<int64_t>(elements, 0) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  Status Allocate(Device& device) { return device.Allocate(size_, &buffer_); }
  template <typename T>
  T* Get(size_t offset) const {
    return reinterpret_cast<T*>(buffer_->as<char>() + offset);
  }

 private:
  size_t size_ = 0;
  std::unique_ptr<Buffer> buffer_;
};

// Runs `work` on every rank if all could `prepare`, and returns the same Status everywhere. The
// second agreement also keeps every rank's memory in place until no other rank reads it.
Status RunOnAllRanks(Communicator& comm, const std::function<Status()>& prepare,
                     const std::function<Status()>& work) {
  JAXMG_RETURN_IF_ERROR(comm.Agree(Guarded(prepare)));
  const Status status = Guarded(work);
  if (!status.ok()) comm.Abort(status);
  return comm.Agree(status);
}

// `target` becomes `source`, where that is given and XLA has not given both the same memory.
template <typename T>
Status CopyIfApart(Device& device, const T* source, T* target, int64_t count) {
  if (source == nullptr || source == target || count == 0) return Status::Ok();
  return device.Copy(Stream::kMain, Block(target, count, count, 1), Block(source, count, count, 1));
}

// What a routine makes of a matrix, and so what it needs.
enum class Purpose { kSolve, kInvert, kDiagonalise };

// An order of Tuning, for T.
template <typename T>
int64_t OrderOf(int64_t real) {
  return kIsComplex<T> ? real * 3 / 5 : real;
}

template <typename T>
Tiles TilesOf(const RankContext& context, const Operand<T>& operand, Purpose purpose) {
  const int ranks = context.comm.size();
  const Tuning tuning = context.device.tuning();
  int64_t width = operand.tile;
  if (width == 0) {
    const bool whole =
        ranks == 1 && purpose == Purpose::kSolve && operand.n <= OrderOf<T>(tuning.whole_order);
    width = whole ? operand.n : DefaultTileWidth(operand.block, ranks, tuning);
  }
  return Tiles(operand.n, operand.block, ranks, Tiles::EvenWidth(operand.block, width));
}

// Whether one rank does it all: exchanges, and the steps that wait for them, take longer than they
// save.
template <typename T>
bool Gathers(const RankContext& context, const Operand<T>& operand, Purpose purpose) {
  if (operand.tile > 0 || context.comm.size() == 1) return false;
  const Tuning tuning = context.device.tuning();
  if (purpose == Purpose::kSolve) return operand.n <= OrderOf<T>(tuning.gather_to_solve);
  return purpose == Purpose::kInvert && operand.n <= tuning.gather_to_invert;
}

// What routines need on a distributed matrix: panels (or one tile column at least), the overflow
// tile, a record of each rank; and the matrix itself on the root, where it is gathered there.
template <typename T>
class Problem {
 public:
  Problem(const RankContext& context, const Operand<T>& operand, Purpose purpose)
      : outer_(context),
        operand_(operand),
        gathers_(Gathers(context, operand, purpose)),
        alone_({context.device, solo_}),
        whole_({operand.n, operand.n, operand.tile, nullptr, nullptr}),
        tiles_(gathers_ ? TilesOf(alone_, whole_, purpose) : TilesOf(context, operand, purpose)) {
    const Tuning tuning = context.device.tuning();
    const int64_t n = operand.n, tile_column = n * tiles_.width();
    int64_t panels = tiles_.ranks() > 1 ? tile_column : 0;
    if (purpose != Purpose::kDiagonalise) {
      panels = std::max(panels, PotrfWorkspace(tiles_, n, tuning));
    }
    if (purpose == Purpose::kInvert) panels = std::max(panels, PotriWorkspace(tiles_, n));
    panels_ = space_.template Reserve<T>(works() ? panels : 0);
    overflow_ = space_.template Reserve<T>(works() && tiles_.has_overflow() ? tile_column : 0);
    const bool gathered = gathers_ || purpose == Purpose::kDiagonalise;
    gathered_ = space_.template Reserve<T>(gathered && outer_.comm.rank() == kRoot ? n * n : 0);
    records_ = space_.template Reserve<char>(kRecord * (1 + outer_.comm.size()));
  }

  Workspace& space() { return space_; }
  const Tiles& tiles() const { return tiles_; }
  T* panels() const { return space_.template Get<T>(panels_); }
  T* gathered() const { return space_.template Get<T>(gathered_); }

  // What this rank has to say of the outcome.
  int32_t* info() const { return space_.template Get<int32_t>(records_); }
  int32_t* digest() const { return info() + 1; }
  Real<T>* log_det() const { return space_.template Get<Real<T>>(records_ + kLogDet); }

  // Whether this rank has a part in the work on the matrix, and with whom.
  bool works() const { return !gathers_ || outer_.comm.rank() == kRoot; }
  const RankContext& context() const { return gathers_ ? alone_ : outer_; }
  int64_t columns() const { return tiles_.block(); }
  Matrix<T> matrix() const {
    return {tiles_, context().comm.rank(), operand_.n, gathers_ ? gathered() : operand_.a,
            space_.template Get<T>(overflow_)};
  }

  Status Prepare() {
    JAXMG_RETURN_IF_ERROR(space_.Allocate(device()));
    JAXMG_RETURN_IF_ERROR(
        CopyIfApart(device(), operand_.source, operand_.a, operand_.block * operand_.n));
    JAXMG_RETURN_IF_ERROR(device().InitInfo(Stream::kMain, info()));
    JAXMG_RETURN_IF_ERROR(device().FillInt32(Stream::kMain, digest(), 1, 0));
    return device().template blas<Real<T>>().SetZero(Stream::kMain, 1, 1, log_det(), 1);
  }
  Status PrepareFactor() {
    JAXMG_RETURN_IF_ERROR(Prepare());
    if (!works()) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(device().ReserveHandles());
    return device().template blas<T>().ReservePotrf(
        Stream::kPanel, std::min(tiles_.width(), operand_.n), matrix().data, operand_.n);
  }
  // The ranks' rows to the tiles that are worked on, and the columns of those back to rows.
  Status Take() {
    if (!gathers_) return ToBlockCyclic(outer_, matrix(), Region::kLower, panels());
    JAXMG_RETURN_IF_ERROR(GatherRecords());
    return GatherLower(outer_, blocks(), gathered());
  }
  Status Untile() {
    if (!works()) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(ToContiguous(context(), matrix(), Region::kLower, panels()));
    return Symmetrize(context(), matrix(), panels());
  }
  Status Return() { return gathers_ ? Scatter(outer_, gathered(), blocks()) : Status::Ok(); }
  // What the root has computed for all, if it was the root alone.
  template <typename U>
  Status Spread(U* data, int64_t count) {
    if (!gathers_ || count == 0) return Status::Ok();
    return Broadcast(outer_.comm, Stream::kMain, kRoot, Block(data, count, count, 1));
  }

  // The ranks' records become one status, and one logarithm of the determinant.
  Status SetStatus(Real<T>* log_det = nullptr) {
    const int ranks = outer_.comm.size();
    if (works()) {
      JAXMG_RETURN_IF_ERROR(gathers_ ? device().Copy(Stream::kMain, RecordOf(kRoot), mine())
                                     : AllGather(outer_.comm, device(), Stream::kMain, mine().data,
                                                 RecordOf(0).data, kRecord));
      JAXMG_RETURN_IF_ERROR(device().ReduceInfo(Stream::kMain,
                                                static_cast<int32_t*>(RecordOf(0).data),
                                                kRecord / sizeof(int32_t), ranks, operand_.status));
    }
    JAXMG_RETURN_IF_ERROR(Spread(operand_.status, 1));
    if (log_det == nullptr) return Status::Ok();
    if (works()) {
      const char* terms = static_cast<char*>(RecordOf(0).data) + kLogDet;
      JAXMG_RETURN_IF_ERROR(device().SumReals(Stream::kMain,
                                              reinterpret_cast<const Real<T>*>(terms),
                                              kRecord / sizeof(Real<T>), ranks, log_det));
      JAXMG_RETURN_IF_ERROR(PoisonIfFailed(1, 1, log_det));
    }
    return Spread(log_det, 1);
  }

  // Results that this rank has computed.
  template <typename U>
  Status PoisonIfFailed(int64_t m, int64_t n, U* data) {
    if (!works()) return Status::Ok();
    return device().template blas<U>().PoisonIf(Stream::kMain, operand_.status, m, n, data, m);
  }

 private:
  // Bytes: an info, a digest, and a real number from kLogDet on.
  static constexpr int64_t kRecord = 16, kLogDet = 8;

  Bytes2D mine() const { return Block(space_.template Get<char>(records_), kRecord, kRecord, 1); }
  Bytes2D RecordOf(int rank) const {
    return Block(static_cast<char*>(mine().data) + (1 + rank) * kRecord, kRecord, kRecord, 1);
  }
  // Those of ranks that leave the work to the root, which adds its own in the end.
  Status GatherRecords() {
    if (!works()) return outer_.comm.Send(Stream::kMain, kRoot, mine());
    for (int rank = 1; rank < outer_.comm.size(); ++rank) {
      JAXMG_RETURN_IF_ERROR(outer_.comm.Recv(Stream::kMain, rank, RecordOf(rank)));
    }
    return Status::Ok();
  }

  Device& device() const { return outer_.device; }
  Blocks<T> blocks() const { return {operand_.n, operand_.block, operand_.a}; }

  const RankContext& outer_;
  const Operand<T>& operand_;
  const bool gathers_;
  SoloCommunicator solo_;
  const RankContext alone_;  // the root's, where it has all
  const Operand<T> whole_;
  const Tiles tiles_;
  Workspace space_;
  size_t panels_, overflow_, gathered_, records_;
};

}  // namespace

int64_t DefaultTileWidth(int64_t block, int ranks, const Tuning& tuning) {
  if (ranks == 1) return tuning.usual_tile;  // nobody to share with, or to wait for
  return std::clamp<int64_t>(block / tuning.least_tiles, 32, tuning.usual_tile);
}

template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand,
                    const Solution<T>& solution) {
  Problem<T> problem(context, operand, Purpose::kSolve);
  const int64_t count = solution.nrhs * operand.n;
  const size_t share = problem.space().template Reserve<T>(
      problem.works() ? RightHandSidesShare(problem.tiles(), solution.nrhs) : 0);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(problem.PrepareFactor());
    return CopyIfApart(context.device, solution.b, solution.x, count);
  };
  auto work = [&]() -> Status {
    if (solution.check_b) {
      JAXMG_RETURN_IF_ERROR(context.device.Digest(
          Stream::kMain, solution.x, count * sizeof(T) / sizeof(int32_t), problem.digest()));
    }
    JAXMG_RETURN_IF_ERROR(problem.Take());
    if (problem.works()) {
      const Matrix<T> matrix = problem.matrix();
      const RightHandSides<T> b = {solution.nrhs, solution.x,
                                   problem.space().template Get<T>(share)};
      JAXMG_RETURN_IF_ERROR(Potrf(problem.context(), operand.precision, matrix, b, problem.panels(),
                                  problem.info(), problem.log_det()));
      JAXMG_RETURN_IF_ERROR(BackSubstitution(problem.context(), matrix, b));
    }
    JAXMG_RETURN_IF_ERROR(problem.SetStatus(solution.log_det));
    JAXMG_RETURN_IF_ERROR(problem.PoisonIfFailed(solution.nrhs, operand.n, solution.x));
    JAXMG_RETURN_IF_ERROR(problem.Spread(solution.x, count));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status PotriRoutine(const RankContext& context, const Operand<T>& operand) {
  Problem<T> problem(context, operand, Purpose::kInvert);
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(problem.Take());
    if (problem.works()) {
      const Matrix<T> matrix = problem.matrix();
      JAXMG_RETURN_IF_ERROR(Potrf(problem.context(), operand.precision, matrix, RightHandSides<T>{},
                                  problem.panels(), problem.info(),
                                  static_cast<Real<T>*>(nullptr)));
      JAXMG_RETURN_IF_ERROR(Potri(problem.context(), operand.precision, matrix, problem.panels()));
    }
    JAXMG_RETURN_IF_ERROR(problem.Untile());
    JAXMG_RETURN_IF_ERROR(problem.SetStatus());
    JAXMG_RETURN_IF_ERROR(
        problem.PoisonIfFailed(operand.n, problem.columns(), problem.matrix().data));
    JAXMG_RETURN_IF_ERROR(problem.Return());
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, [&] { return problem.PrepareFactor(); }, work);
}

template <typename T>
Status SyevdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                    Real<T>* w) {
  Problem<T> problem(context, operand, Purpose::kDiagonalise);
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(Syevd(context, problem.matrix(), vectors, problem.gathered(),
                                problem.panels(), w, problem.info()));
    JAXMG_RETURN_IF_ERROR(problem.SetStatus());
    JAXMG_RETURN_IF_ERROR(problem.PoisonIfFailed(operand.n, 1, w));
    return vectors ? problem.PoisonIfFailed(operand.n, operand.block, operand.a) : Status::Ok();
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(problem.Prepare());
    if (context.comm.rank() != kRoot) return Status::Ok();
    return context.device.blas<T>().ReserveSyevd(Stream::kMain, vectors, operand.n,
                                                 problem.gathered(), operand.n, w);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status CyclicRoutine(const RankContext& context, int64_t block, int64_t columns, int64_t tile,
                     bool inverse, T* a, const T* source) {
  const int ranks = context.comm.size();
  if (tile < 1 || block % tile != 0) {
    return Error(Code::kInvalidArgument, "cyclic_1d: tiles of ", tile, " rows do not divide the ",
                 block, " rows of each rank");
  }
  const Matrix<T> matrix = {Tiles(block * ranks, block, ranks, tile), context.comm.rank(), columns,
                            a, nullptr};
  Workspace space;
  const size_t staging = space.Reserve<T>(columns * tile);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(space.Allocate(context.device));
    return CopyIfApart(context.device, source, a, block * columns);
  };
  auto work = [&]() -> Status {
    T* workspace = space.Get<T>(staging);
    return inverse ? ToContiguous(context, matrix, Region::kFull, workspace)
                   : ToBlockCyclic(context, matrix, Region::kFull, workspace);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                                               \
  template Status PotrsRoutine(const RankContext&, const Operand<T>&, const Solution<T>&); \
  template Status PotriRoutine(const RankContext&, const Operand<T>&);                     \
  template Status SyevdRoutine(const RankContext&, const Operand<T>&, bool, Real<T>*);     \
  template Status CyclicRoutine(const RankContext&, int64_t, int64_t, int64_t, bool, T*, const T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
