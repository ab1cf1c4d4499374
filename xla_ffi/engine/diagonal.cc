#include "xla_ffi/engine/diagonal.h"

#include <complex>

namespace jaxmg {
namespace {

// Columns that are solved for at once: all of them for a single row, which is one call then.
template <typename T>
int64_t BlockOf(const Device& device, const DiagonalTile<T>& tile, int64_t count) {
  const int64_t block = device.tuning().panel_block;
  return block == 0 || count == 1 ? std::max<int64_t>(tile.n, 1) : block;
}

// One block by substitution.
template <typename T>
auto Substitute(Blas<T>& blas, Stream stream, Op op, int64_t count) {
  return [&blas, stream, op, count](const DiagonalTile<T>& block, const T* x, T* solved) {
    return blas.SolveRight(stream, op, count, block.n, block.l, block.ld, x, count, solved, count);
  };
}

}  // namespace

template <typename T>
Status SolveForward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count, T* x,
                    T* solved) {
  Blas<T>& blas = device.blas<T>();
  return SolveForward(blas, stream, tile, BlockOf(device, tile, count), count, x, solved,
                      Substitute(blas, stream, Op::kConjTrans, count));
}

template <typename T>
Status SolveBackward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count,
                     T* x, T* solved) {
  Blas<T>& blas = device.blas<T>();
  return SolveBackward(blas, stream, tile, BlockOf(device, tile, count), count, x, solved,
                       Substitute(blas, stream, Op::kNone, count));
}

#define JAXMG_INSTANTIATE(T)                                                              \
  template Status SolveForward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*); \
  template Status SolveBackward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
