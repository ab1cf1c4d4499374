#include "xla_ffi/engine/routines.h"

#include <algorithm>
#include <complex>
#include <functional>
#include <memory>

#include "xla_ffi/engine/potrf.h"
#include "xla_ffi/engine/potri.h"
#include "xla_ffi/engine/potrs.h"
#include "xla_ffi/engine/redistribute.h"
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

template <typename T>
Tiles TilesOf(const RankContext& context, const Operand<T>& operand) {
  const int ranks = context.comm.size();
  const int64_t width = operand.tile > 0
                            ? operand.tile
                            : DefaultTileWidth(operand.block, ranks, context.device.tuning());
  return Tiles(operand.n, operand.block, ranks, Tiles::EvenWidth(operand.block, width));
}

// What routines need on a distributed matrix: panels (or one tile column at least), the overflow
// tile, the infos of all ranks.
template <typename T>
class Problem {
 public:
  Problem(const RankContext& context, const Operand<T>& operand, bool factorized)
      : context_(context), operand_(operand), tiles_(TilesOf(context, operand)) {
    const int64_t tile_column = operand.n * tiles_.width();
    panels_ = space_.template Reserve<T>(
        factorized ? std::max(PotrfWorkspace(tiles_, operand.n, context.device.tuning()),
                              PotriWorkspace(tiles_, operand.n))
                   : tile_column);
    overflow_ = space_.template Reserve<T>(tiles_.has_overflow() ? tile_column : 0);
    infos_ = space_.template Reserve<int32_t>(1 + tiles_.ranks());
    log_dets_ = space_.template Reserve<Real<T>>(1 + tiles_.ranks());
  }

  Workspace& space() { return space_; }
  const Tiles& tiles() const { return tiles_; }
  T* panels() const { return space_.template Get<T>(panels_); }
  int32_t* info() const { return space_.template Get<int32_t>(infos_); }
  Real<T>* log_det() const { return space_.template Get<Real<T>>(log_dets_); }

  Status Prepare() {
    JAXMG_RETURN_IF_ERROR(space_.Allocate(context_.device));
    JAXMG_RETURN_IF_ERROR(context_.device.FillInt32(Stream::kMain, info(), 1, kNoInfo));
    return context_.device.template blas<Real<T>>().SetZero(Stream::kMain, 1, 1, log_det(), 1);
  }
  Status PrepareFactor() {
    JAXMG_RETURN_IF_ERROR(Prepare());
    return context_.device.template blas<T>().ReservePotrf(
        Stream::kPanel, std::min(tiles_.width(), operand_.n), operand_.a, operand_.n);
  }

  Matrix<T> matrix() const {
    return {tiles_, context_.comm.rank(), operand_.n, operand_.a,
            space_.template Get<T>(overflow_)};
  }

  // The ranks' infos become one status.
  Status SetStatus() {
    JAXMG_RETURN_IF_ERROR(AllGather(context_.comm, context_.device, Stream::kMain, info(),
                                    info() + 1, sizeof(int32_t)));
    return context_.device.ReduceInfo(Stream::kMain, info() + 1, tiles_.ranks(), operand_.status);
  }

  Status SumLogDets(Real<T>* sum) {
    JAXMG_RETURN_IF_ERROR(AllGather(context_.comm, context_.device, Stream::kMain, log_det(),
                                    log_det() + 1, sizeof(Real<T>)));
    return context_.device.SumReals(Stream::kMain, log_det() + 1, tiles_.ranks(), sum);
  }

  template <typename U>
  Status PoisonIfFailed(int64_t m, int64_t n, U* data) {
    return context_.device.template blas<U>().PoisonIf(Stream::kMain, operand_.status, m, n, data,
                                                       m);
  }

 private:
  const RankContext& context_;
  const Operand<T>& operand_;
  const Tiles tiles_;
  Workspace space_;
  size_t panels_, overflow_, infos_, log_dets_;
};

}  // namespace

int64_t DefaultTileWidth(int64_t block, int ranks, const Tuning& tuning) {
  if (ranks == 1) return tuning.usual_tile;  // nobody to share with, or to wait for
  return std::clamp<int64_t>(block / tuning.least_tiles, 32, tuning.usual_tile);
}

template <typename T>
Status PotrsRoutine(const RankContext& context, const Operand<T>& operand, int64_t nrhs, T* x,
                    Real<T>* log_det) {
  Problem<T> problem(context, operand, /*factorized=*/true);
  const size_t share =
      problem.space().template Reserve<T>(RightHandSidesShare(problem.tiles(), nrhs));
  auto work = [&]() -> Status {
    const Matrix<T> matrix = problem.matrix();
    const RightHandSides<T> b = {nrhs, x, problem.space().template Get<T>(share)};
    JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context, matrix, Region::kLower, problem.panels()));
    JAXMG_RETURN_IF_ERROR(Potrf(context, operand.precision, matrix, b, problem.panels(),
                                problem.info(), problem.log_det()));
    JAXMG_RETURN_IF_ERROR(BackSubstitution(context, matrix, b));
    JAXMG_RETURN_IF_ERROR(problem.SetStatus());
    JAXMG_RETURN_IF_ERROR(problem.SumLogDets(log_det));
    JAXMG_RETURN_IF_ERROR(problem.PoisonIfFailed(1, 1, log_det));
    return problem.PoisonIfFailed(nrhs, operand.n, x);
  };
  return RunOnAllRanks(context.comm, [&] { return problem.PrepareFactor(); }, work);
}

template <typename T>
Status PotriRoutine(const RankContext& context, const Operand<T>& operand) {
  Problem<T> problem(context, operand, /*factorized=*/true);
  auto work = [&]() -> Status {
    const Matrix<T> matrix = problem.matrix();
    JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context, matrix, Region::kLower, problem.panels()));
    JAXMG_RETURN_IF_ERROR(Potrf(context, operand.precision, matrix, RightHandSides<T>{},
                                problem.panels(), problem.info(), static_cast<Real<T>*>(nullptr)));
    JAXMG_RETURN_IF_ERROR(Potri(context, operand.precision, matrix, problem.panels()));
    JAXMG_RETURN_IF_ERROR(ToContiguous(context, matrix, Region::kLower, problem.panels()));
    JAXMG_RETURN_IF_ERROR(Symmetrize(context, matrix, problem.panels()));
    JAXMG_RETURN_IF_ERROR(problem.SetStatus());
    return problem.PoisonIfFailed(operand.n, operand.block, operand.a);
  };
  return RunOnAllRanks(context.comm, [&] { return problem.PrepareFactor(); }, work);
}

template <typename T>
Status SyevdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                    Real<T>* w) {
  Problem<T> problem(context, operand, /*factorized=*/false);
  const int64_t gathered_size = context.comm.rank() == 0 ? operand.n * operand.n : 0;
  const size_t gathered = problem.space().template Reserve<T>(gathered_size);
  auto work = [&]() -> Status {
    const Matrix<T> matrix = problem.matrix();
    JAXMG_RETURN_IF_ERROR(Syevd(context, matrix, vectors, problem.space().template Get<T>(gathered),
                                problem.panels(), w, problem.info()));
    JAXMG_RETURN_IF_ERROR(problem.SetStatus());
    JAXMG_RETURN_IF_ERROR(problem.PoisonIfFailed(operand.n, 1, w));
    return vectors ? problem.PoisonIfFailed(operand.n, operand.block, operand.a) : Status::Ok();
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(problem.Prepare());
    if (context.comm.rank() != 0) return Status::Ok();
    return context.device.blas<T>().ReserveSyevd(
        Stream::kMain, vectors, operand.n, problem.space().template Get<T>(gathered), operand.n, w);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status CyclicRoutine(const RankContext& context, int64_t block, int64_t columns, int64_t tile,
                     bool inverse, T* a) {
  const int ranks = context.comm.size();
  if (tile < 1 || block % tile != 0) {
    return Error(Code::kInvalidArgument, "cyclic_1d: tiles of ", tile, " rows do not divide the ",
                 block, " rows of each rank");
  }
  const Matrix<T> matrix = {Tiles(block * ranks, block, ranks, tile), context.comm.rank(), columns,
                            a, nullptr};
  Workspace space;
  const size_t staging = space.Reserve<T>(columns * tile);
  auto work = [&]() -> Status {
    T* workspace = space.Get<T>(staging);
    return inverse ? ToContiguous(context, matrix, Region::kFull, workspace)
                   : ToBlockCyclic(context, matrix, Region::kFull, workspace);
  };
  return RunOnAllRanks(context.comm, [&] { return space.Allocate(context.device); }, work);
}

#define JAXMG_INSTANTIATE(T)                                                                  \
  template Status PotrsRoutine(const RankContext&, const Operand<T>&, int64_t, T*, Real<T>*); \
  template Status PotriRoutine(const RankContext&, const Operand<T>&);                        \
  template Status SyevdRoutine(const RankContext&, const Operand<T>&, bool, Real<T>*);        \
  template Status CyclicRoutine(const RankContext&, int64_t, int64_t, int64_t, bool, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
