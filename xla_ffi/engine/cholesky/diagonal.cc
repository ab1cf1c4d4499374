#include "xla_ffi/engine/cholesky/diagonal.h"

#include <complex>

namespace jaxmg {
namespace {

// Returns the number of columns to solve at once: for a single right-hand side all, in one call.
template <typename T>
int64_t BlockOf(const Tuning& tuning, const DiagonalTile<T>& tile, int64_t count) {
  const int64_t block = tuning.cholesky.panel_block;
  return block == 0 || count == 1 ? std::max<int64_t>(tile.n, 1) : block;
}

// Returns a `solve` of SolveForward or SolveBackward that solves with a block by substitution.
template <typename T>
auto Substitute(Step<T>& on, Op op, int64_t count) {
  return [&on, op, count](const DiagonalTile<T>& block, const T* x, T* solved) {
    on.SolveRight(op, count, block.n, block.l, block.ld, x, count, solved, count);
  };
}

}  // namespace

template <typename T>
void SolveForward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved) {
  SolveForward(on, tile, BlockOf(on.tuning(), tile, count), count, x, solved,
               Substitute(on, Op::kConjTrans, count));
}

template <typename T>
void SolveBackward(Step<T>& on, const DiagonalTile<T>& tile, int64_t count, T* x, T* solved) {
  SolveBackward(on, tile, BlockOf(on.tuning(), tile, count), count, x, solved,
                Substitute(on, Op::kNone, count));
}

#define JAXMG_INSTANTIATE(T)                                                     \
  template void SolveForward(Step<T>&, const DiagonalTile<T>&, int64_t, T*, T*); \
  template void SolveBackward(Step<T>&, const DiagonalTile<T>&, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
