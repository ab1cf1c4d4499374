#include "xla_ffi/engine/svd/gesvd.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/eigen/band.h"
#include "xla_ffi/engine/eigen/eigen.h"
#include "xla_ffi/engine/svd/bidiagonal_band.h"

namespace jaxmg {
namespace {

constexpr char kName[] = "gesvd";

template <typename T>
Tiles TilesOfBand(const Sizes& sizes, const Ranks& ranks) {
  return {sizes.m, sizes.block, ranks.size, BandWidth<T>(sizes.block, sizes.tile, ranks.tuning)};
}

// Return the order of the Hermitian band, and a rank's number of rows in divide and conquer.
int64_t OrderOfBand(const Tiles& tiles) { return 2 * tiles.columns(); }
int64_t BlockOfBand(const Tiles& tiles) { return 2 * tiles.block(); }

}  // namespace

template <typename T>
GesvdSpace<T>::GesvdSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOfBand<T>(sizes, ranks)) {
  const Tiles& tiles = this->tiles;
  const int64_t order = OrderOfBand(tiles);
  const ChaseShape chase = ChaseOf(order, tiles, ranks.tuning);
  const DivideBytes divide = DivideWorkspace<Real<T>>(order, BlockOfBand(tiles), false);
  const int64_t size = sizeof(T);
  this->ReservePanels();
  band = this->Reserve(ranks.rank == kRoot ? BandRows(tiles) * order : 0);
  tridiagonal = this->Reserve(2 * order);
  stage = this->Reserve(
      std::max({ReduceToBidiagonalBandWorkspace(tiles), ChaseWorkspace(chase, ranks.rank, false),
                (divide.device + size - 1) / size}));
  this->host_bytes = HostBytesOfBand<T>(order, divide.host);
}

template <typename T>
Status CheckGesvd(const Sizes& sizes, const Ranks& ranks) {
  const int64_t width = TilesOfBand<T>(sizes, ranks).width();
  if (sizes.m == sizes.n && sizes.n == sizes.block * ranks.size && sizes.block % width == 0) {
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument, kName,
               ": needs a square matrix without padding, and a tile width that divides the rows of "
               "a rank; got ",
               sizes.m, " x ", sizes.n, ", tile width ", width, ", and ", sizes.block,
               " rows on each of ", ranks.size, " ranks");
}

template <typename T>
Status GesvdRoutine(const RankContext& context, const Operand<T>& operand, Real<T>* w) {
  const GesvdSpace<T> space(operand.sizes(), RanksOf(context));
  Frame<T> frame(context, operand, space);
  Device& device = context.device;
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    const int64_t n = operand.n;
    const Tiles& tiles = frame.tiles();
    const ChaseShape chase = ChaseOf(OrderOfBand(tiles), tiles, device.tuning());
    AnnounceWork(device, 2 * BandWork(n) + ChaseWork(chase.n, chase.b, chase.ranks) +
                             DivideWork(chase.n, false));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    T* band = frame.at(space.band);
    T* stage = frame.at(space.stage);
    JAXMG_RETURN_IF_ERROR(ReduceToBidiagonalBand(context, frame.matrix(), band, stage));
    const BandSpace<T> of_band = {band,    BandRows(tiles), frame.at(space.tridiagonal),
                                  nullptr, stage,           frame.host()};
    JAXMG_RETURN_IF_ERROR(
        DiagonalizeBand<T>(context, chase, BlockOfBand(tiles), of_band, nullptr, outcome));
    const auto* positive = static_cast<const Real<T>*>(frame.host()) + n;
    JAXMG_RETURN_IF_ERROR(device.Copy(Stream::kMain, Block(w, n, n, 1), Block(positive, n, n, 1)));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(n, 1, w));
    // Waits for the copy from host memory, which is released afterwards.
    return device.Synchronize();
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    return device.ReserveHandles();
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                 \
  template struct GesvdSpace<T>;                             \
  template Status CheckGesvd<T>(const Sizes&, const Ranks&); \
  template Status GesvdRoutine(const RankContext&, const Operand<T>&, Real<T>*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
