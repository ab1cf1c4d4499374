#include "xla_ffi/engine/core/transpose.h"

#include <complex>

#include "xla_ffi/engine/core/flow.h"

namespace jaxmg {

template <typename T>
Status TransposeUpper(const RankContext& context, const Matrix<T>& matrix, T* one_tile) {
  const Tiles& tiles = matrix.tiles;
  const int rank = matrix.rank;
  const int64_t ld = matrix.ld(), count = tiles.nonempty();
  auto source = [&](int64_t i, int64_t j) {
    return Block(matrix.tile(j, tiles.offset(i)), ld, tiles.width(i), tiles.width(j));
  };
  Flow flow(context);
  Step<T> on(flow, Stream::kMain);
  for (int64_t j = rank; j < count; j += tiles.ranks()) {
    for (int64_t i = 0; i < j; ++i) {
      if (tiles.owner(i) != rank) on.Send(tiles.owner(i), source(i, j));
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = rank; i <= j; i += tiles.ranks()) {
      const int64_t rows = tiles.width(i), columns = tiles.width(j);
      const Bytes2D tile = Block(one_tile, rows, rows, columns);
      if (tiles.owner(j) == rank) {
        on.Copy(tile, source(i, j));
      } else {
        on.Recv(tiles.owner(j), tile);
      }
      on.ConjTranspose(rows, columns, one_tile, rows, matrix.tile(i, tiles.offset(j)), ld);
    }
  }
  return flow.Finish();
}

#define JAXMG_INSTANTIATE(T) \
  template Status TransposeUpper(const RankContext&, const Matrix<T>&, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
