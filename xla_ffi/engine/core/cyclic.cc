#include "xla_ffi/engine/core/cyclic.h"

#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/redistribute.h"

namespace jaxmg {

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
  const Piece<T> staging = space.Reserve<T>(columns * tile);
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(space.Allocate(context.device));
    return CopyIfApart(context.device, source, a, block * columns);
  };
  auto work = [&]() -> Status {
    T* workspace = space.Get(staging);
    return inverse ? ToContiguous(context, matrix, Region::kFull, workspace)
                   : ToBlockCyclic(context, matrix, Region::kFull, workspace);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T) \
  template Status CyclicRoutine(const RankContext&, int64_t, int64_t, int64_t, bool, T*, const T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
