#include "xla_ffi/engine/core/symmetrize.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/flow.h"

namespace jaxmg {

template <typename T>
Status Symmetrize(const RankContext& context, const Matrix<T>& matrix, T* workspace) {
  const Tiles& tiles = matrix.tiles;
  const int64_t ld = matrix.ld(), n = tiles.columns();
  auto begin = [&](int rank) { return std::min(rank * tiles.block(), n); };
  const int rank = matrix.rank, ranks = tiles.ranks();
  const int64_t first = begin(rank), width = begin(rank + 1) - first;
  // Calls f for runs of columns of a rank whose blocks fit into the workspace of any receiver.
  auto for_pieces = [&](int source, auto&& f) {
    for (int64_t column = begin(source); column < begin(source + 1); column += tiles.width()) {
      f(column, std::min(tiles.width(), begin(source + 1) - column));
    }
  };
  Flow flow(context);
  Step<T> on(flow, Stream::kMain);
  for (int peer = rank + 1; peer < ranks; ++peer) {
    const int64_t rows = begin(peer + 1) - begin(peer);
    if (rows == 0) continue;
    for_pieces(rank, [&](int64_t column, int64_t columns) {
      on.Send(peer, Block(matrix.data + (column - first) * ld + begin(peer), ld, rows, columns));
    });
  }
  on.MirrorLower(width, matrix.data + first, ld);
  for (int peer = rank - 1; peer >= 0 && width > 0; --peer) {
    for_pieces(peer, [&](int64_t column, int64_t columns) {
      on.Recv(peer, Block(workspace, width, width, columns));
      on.ConjTranspose(width, columns, workspace, width, matrix.data + column, ld);
    });
  }
  return flow.Finish();
}

#define JAXMG_INSTANTIATE(T) template Status Symmetrize(const RankContext&, const Matrix<T>&, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
