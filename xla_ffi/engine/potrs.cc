#include "xla_ffi/engine/potrs.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "xla_ffi/engine/flow.h"

namespace jaxmg {

template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const RightHandSides<T>& x) {
  const Tiles& tiles = matrix.tiles;
  const int64_t nrhs = x.count, ld = matrix.ld();
  if (nrhs == 0) return Status::Ok();
  auto mine = [&](int64_t k) { return tiles.owner(k) == matrix.rank; };
  // The `count` columns of L from `columns` on, of this rank's slots from `slot` on, by rows k.
  auto subtract = [&](Step<T>& on, int64_t k, int64_t slot, const T* columns, int64_t count) {
    on.Gemm(Op::kNone, Op::kNone, nrhs, count, tiles.width(k), -1, x.column(tiles.offset(k)), nrhs,
            columns + tiles.offset(k), ld, 1, x.of_slot(tiles, slot), nrhs);
  };
  // By tile, what is solved; by slot, what it is solved from.
  std::vector<Data> solved(tiles.nonempty()), share(tiles.slots());
  Flow flow(context);
  flow.Fork();
  for (int64_t k = tiles.nonempty() - 1; k >= 0; --k) {
    T* column = x.column(tiles.offset(k));
    if (mine(k)) {
      const int64_t slot = tiles.slot(k);
      Step<T> on(flow, Stream::kPanel, "solve tile", k);
      on.Writes(share[slot]).Gives(solved[k]);
      SolveBackward(on, DiagonalOf(matrix, k), nrhs, x.of_slot(tiles, slot), column);
      on.Broadcast(matrix.rank, Block(column, nrhs, nrhs, tiles.width(k)));
    } else {
      Step<T> on(flow, Stream::kCopy);
      on.Gives(solved[k]);
      on.Broadcast(tiles.owner(k), Block(column, nrhs, nrhs, tiles.width(k)));
    }
    // What is solved next comes first, the rest beside it.
    if (k > 0 && mine(k - 1)) {
      const int64_t slot = tiles.slot(k - 1);
      Step<T> on(flow, Stream::kPanel);
      on.Reads(solved[k]).Writes(share[slot]);
      subtract(on, k, slot, matrix.slot(slot), tiles.width(k - 1));
    }
    const int64_t rest = tiles.slots_before(matrix.rank, std::max<int64_t>(k - 1, 0));
    Step<T> on(flow, Stream::kMain, "substitute", k);
    on.Reads(solved[k]).Gives(share, 0, rest);
    matrix.ForRuns(0, rest, [&](int64_t slot, const T* columns, int64_t count) {
      subtract(on, k, slot, columns, count);
    });
  }
  return flow.Finish();
}

#define JAXMG_INSTANTIATE(T) \
  template Status BackSubstitution(const RankContext&, const Matrix<T>&, const RightHandSides<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
