#include "xla_ffi/engine/eigen/syevd.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/gather.h"

namespace jaxmg {

template <typename T>
Status Syevd(const RankContext& context, const Matrix<T>& matrix, bool vectors, T* gathered,
             T* staging, Real<T>* w, int32_t* info) {
  const Tiles& tiles = matrix.tiles;
  const int64_t n = tiles.columns(), ld = matrix.ld();
  const int rank = matrix.rank, ranks = tiles.ranks();
  Device& device = context.device;
  Blas<T>& blas = device.blas<T>();
  const Blocks<T> blocks = {n, n, tiles.block(), matrix.data};
  auto begin = [&](int r) { return blocks.begin(r); };
  auto width = [&](int r) { return blocks.width(r); };

  JAXMG_RETURN_IF_ERROR(GatherBlocks(context, blocks, Region::kLower, gathered));
  if (rank == kRoot) {
    const Range range(device, Stream::kMain, "syevd", 0);
    JAXMG_RETURN_IF_ERROR(
        device.solver<T>().Syevd(Stream::kMain, vectors, n, gathered, n, w, info));
  }
  JAXMG_RETURN_IF_ERROR(WaitAllSent(context.comm, Stream::kMain));
  JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, kRoot, Block(w, n, n, 1)));
  if (vectors) {
    // Sends the rows of U that belong to a rank in pieces, which are conjugated and transposed on
    // arrival. A piece has as many columns as fit into the staging tile.
    const int64_t step = n * tiles.width() / std::max<int64_t>(width(0), 1);
    for (int64_t column = 0; column < n; column += step) {
      const int64_t columns = std::min(step, n - column);
      auto piece = [&](int r) {
        return Block(gathered + column * n + begin(r), n, width(r), columns);
      };
      if (rank == kRoot) {
        for (int r = 1; r < ranks && width(r) > 0; ++r) {
          JAXMG_RETURN_IF_ERROR(context.comm.Send(Stream::kMain, r, piece(r)));
        }
        JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, width(kRoot), columns,
                                                 gathered + column * n, n, matrix.data + column,
                                                 ld));
      } else if (width(rank) > 0) {
        JAXMG_RETURN_IF_ERROR(context.comm.Recv(Stream::kMain, kRoot,
                                                Block(staging, width(rank), width(rank), columns)));
        JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, width(rank), columns, staging,
                                                 width(rank), matrix.data + column, ld));
      }
    }
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

#define JAXMG_INSTANTIATE(T) \
  template Status Syevd(const RankContext&, const Matrix<T>&, bool, T*, T*, Real<T>*, int32_t*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
