#include "xla_ffi/engine/potrs.h"

#include <complex>

namespace jaxmg {

template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const InvertedDiagonals<T>& inverses, const RightHandSides<T>& x) {
  const Tiles& tiles = matrix.tiles;
  Device& device = context.device;
  Blas<T>& blas = device.blas<T>();
  const int64_t nrhs = x.count, ld = matrix.ld();
  if (nrhs == 0) return Status::Ok();
  auto block = [&](T* data, int64_t columns) { return Block(data, nrhs, nrhs, columns); };
  for (int64_t k = tiles.nonempty() - 1; k >= 0; --k) {
    const int64_t width = tiles.width(k), begin = tiles.offset(k);
    T* solved = x.column(begin);
    if (tiles.owner(k) == matrix.rank) {
      const int64_t slot = tiles.slot(k);
      const DiagonalTile<T> tile = {matrix.tile(k, begin), ld, width,
                                    inverses.block > 0 ? inverses.of_slot(tiles, slot) : nullptr,
                                    inverses.block};
      JAXMG_RETURN_IF_ERROR(
          SolveBackward(device, Stream::kMain, tile, nrhs, x.of_slot(tiles, slot), solved));
    }
    JAXMG_RETURN_IF_ERROR(
        Broadcast(context.comm, Stream::kMain, tiles.owner(k), block(solved, width)));
    auto subtract = [&](int64_t slot, const T* columns, int64_t count) {
      return blas.Gemm(Stream::kMain, Op::kNone, Op::kNone, nrhs, count, width, -1, solved, nrhs,
                       columns + begin, ld, 1, x.of_slot(tiles, slot), nrhs);
    };
    JAXMG_RETURN_IF_ERROR(matrix.ForRuns(0, tiles.slots_before(matrix.rank, k), subtract));
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

#define JAXMG_INSTANTIATE(T)                                             \
  template Status BackSubstitution(const RankContext&, const Matrix<T>&, \
                                   const InvertedDiagonals<T>&, const RightHandSides<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
