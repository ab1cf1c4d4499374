#include "xla_ffi/engine/offload/host_plan.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/offload/host_getrf.h"
#include "xla_ffi/engine/offload/host_getrs.h"
#include "xla_ffi/engine/offload/host_potrf.h"
#include "xla_ffi/engine/offload/host_potri.h"
#include "xla_ffi/engine/offload/host_solve.h"

namespace jaxmg {
namespace {

// Tiles are not narrower than kLeastTile, unless the matrix is. Where memory is short they become
// narrower until each rank has kWantedSlots of them in a block column.
constexpr int64_t kLeastTile = 16;
constexpr int64_t kWantedSlots = 4;

HostShape WithSlots(HostShape shape, int64_t slots) {
  shape.width = std::min(slots * shape.tile * shape.ranks, shape.n);
  return shape;
}

}  // namespace

template <typename T>
int64_t HostBytes(const HostShape& shape, Precision products, const Tuning& tuning) {
  const Ranks ranks{shape.ranks, 0, tuning};
  const int64_t buffers = 2 * shape.rank_columns() * shape.ld() * static_cast<int64_t>(sizeof(T));
  const int64_t x = shape.n * shape.nrhs * static_cast<int64_t>(sizeof(T));
  if (shape.whole) {
    const HostGetrfSpace<T> getrf(shape, products, ranks);
    const HostGetrsSpace<T> getrs(shape);
    const int64_t workspace = static_cast<int64_t>(getrf.pieces.bytes()) + getrf.split_bytes;
    const int64_t pivots = shape.n * static_cast<int64_t>(sizeof(int32_t));
    return std::max(buffers + workspace, static_cast<int64_t>(getrs.pieces.bytes())) + x + pivots;
  }
  const HostPotrfSpace<T> potrf(shape, products, ranks);
  const HostPotriSpace<T> potri(shape, ranks);
  const HostSolveSpace<T> solve(shape);
  const int64_t workspace = std::max(static_cast<int64_t>(potrf.pieces.bytes()) + potrf.split_bytes,
                                     static_cast<int64_t>(potri.pieces.bytes()));
  return std::max(buffers + workspace, static_cast<int64_t>(solve.pieces.bytes())) + x;
}

template <typename T>
Status PlanHostMatrix(int64_t budget, Precision products, const Tuning& tuning, HostShape* shape) {
  auto fits = [&](int64_t slots) {
    return HostBytes<T>(WithSlots(*shape, slots), products, tuning) <= budget;
  };
  const int64_t per_rank = (shape->n + shape->ranks - 1) / shape->ranks;
  shape->tile = std::min(tuning.usual_tile, per_rank);
  for (;;) {
    const int64_t all = (shape->n + shape->tile * shape->ranks - 1) / (shape->tile * shape->ranks);
    int64_t most = all;
    if (!fits(all)) {
      if (tuning.offload.columns > 0) {
        most = std::clamp<int64_t>(tuning.offload.columns / shape->tile, 1, all);
      }
      int64_t least = 0;  // fits, or is 0
      for (int64_t end = most + 1; end - least > 1;) {
        const int64_t middle = (least + end) / 2;
        (fits(middle) ? least : end) = middle;
      }
      most = least;
    }
    const bool narrowest = shape->tile <= kLeastTile;
    if (most >= std::min(kWantedSlots, all) || (narrowest && most > 0)) {
      *shape = WithSlots(*shape, most);
      return Status::Ok();
    }
    if (narrowest) break;
    shape->tile = std::max(shape->tile / 2, kLeastTile);
  }
  return Error(Code::kInvalidArgument, "a matrix of order ", shape->n,
               " in host memory needs at least ",
               HostBytes<T>(WithSlots(*shape, 1), products, tuning),
               " bytes of device memory on each device; ", budget, " are available");
}

#define JAXMG_INSTANTIATE(T)                                                 \
  template int64_t HostBytes<T>(const HostShape&, Precision, const Tuning&); \
  template Status PlanHostMatrix<T>(int64_t, Precision, const Tuning&, HostShape*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
