#include "xla_ffi/engine/diagonal.h"

#include <algorithm>
#include <complex>

namespace jaxmg {
namespace {

// Columns that are solved for at once: all of them for a single row, which is one call then.
template <typename T>
int64_t BlockOf(const Tuning& tuning, const DiagonalTile<T>& tile, int64_t count) {
  const int64_t block = tuning.panel_block;
  return block == 0 || count == 1 ? std::max<int64_t>(tile.n, 1) : block;
}

}  // namespace

template <typename T>
void SolveForward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved) {
  const int64_t block = BlockOf(on.tuning(), tile, count);
  for (int64_t begin = 0; begin < tile.n; begin += block) {
    const int64_t columns = std::min(block, tile.n - begin);
    T* piece = x + begin * count;
    if (begin > 0) {
      on.ExactGemm(Op::kNone, Op::kConjTrans, count, columns, begin, -1, solved, count,
                   tile.l + begin, tile.ld, 1, piece, count);
    }
    on.SolveRight(Op::kConjTrans, count, columns, tile.l + begin * tile.ld + begin, tile.ld, piece,
                  count, solved + begin * count, count);
  }
}

template <typename T>
void SolveBackward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved) {
  const int64_t block = BlockOf(on.tuning(), tile, count);
  for (int64_t begin = (tile.n - 1) / block * block; begin >= 0; begin -= block) {
    const int64_t end = std::min(begin + block, tile.n);
    T* piece = x + begin * count;
    if (end < tile.n) {
      on.ExactGemm(Op::kNone, Op::kNone, count, end - begin, tile.n - end, -1, solved + end * count,
                   count, tile.l + begin * tile.ld + end, tile.ld, 1, piece, count);
    }
    on.SolveRight(Op::kNone, count, end - begin, tile.l + begin * tile.ld + begin, tile.ld, piece,
                  count, solved + begin * count, count);
  }
}

#define JAXMG_INSTANTIATE(T)                                                     \
  template void SolveForward(Step<T>&, const DiagonalTile<T>&, int64_t, T*, T*); \
  template void SolveBackward(Step<T>&, const DiagonalTile<T>&, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
