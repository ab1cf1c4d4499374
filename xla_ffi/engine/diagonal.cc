#include "xla_ffi/engine/diagonal.h"

#include <algorithm>
#include <complex>

namespace jaxmg {
namespace {

// Columns that are solved for at once: all of them for a single row, which is one call then.
template <typename T>
int64_t BlockOf(const Device& device, const DiagonalTile<T>& tile, int64_t count) {
  const int64_t block = device.tuning().panel_block;
  return block == 0 || count == 1 ? std::max<int64_t>(tile.n, 1) : block;
}

}  // namespace

template <typename T>
Status SolveForward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count, T* x,
                    T* solved) {
  Blas<T>& blas = device.blas<T>();
  const int64_t block = BlockOf(device, tile, count);
  for (int64_t begin = 0; begin < tile.n; begin += block) {
    const int64_t columns = std::min(block, tile.n - begin);
    T* piece = x + begin * count;
    if (begin > 0) {
      JAXMG_RETURN_IF_ERROR(blas.Gemm(stream, Op::kNone, Op::kConjTrans, count, columns, begin, -1,
                                      solved, count, tile.l + begin, tile.ld, 1, piece, count));
    }
    JAXMG_RETURN_IF_ERROR(blas.SolveRight(stream, Op::kConjTrans, count, columns,
                                          tile.l + begin * tile.ld + begin, tile.ld, piece, count,
                                          solved + begin * count, count));
  }
  return Status::Ok();
}

template <typename T>
Status SolveBackward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count,
                     T* x, T* solved) {
  Blas<T>& blas = device.blas<T>();
  const int64_t block = BlockOf(device, tile, count);
  for (int64_t begin = (tile.n - 1) / block * block; begin >= 0; begin -= block) {
    const int64_t end = std::min(begin + block, tile.n);
    T* piece = x + begin * count;
    if (end < tile.n) {
      JAXMG_RETURN_IF_ERROR(blas.Gemm(stream, Op::kNone, Op::kNone, count, end - begin,
                                      tile.n - end, -1, solved + end * count, count,
                                      tile.l + begin * tile.ld + end, tile.ld, 1, piece, count));
    }
    JAXMG_RETURN_IF_ERROR(blas.SolveRight(stream, Op::kNone, count, end - begin,
                                          tile.l + begin * tile.ld + begin, tile.ld, piece, count,
                                          solved + begin * count, count));
  }
  return Status::Ok();
}

#define JAXMG_INSTANTIATE(T)                                                              \
  template Status SolveForward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*); \
  template Status SolveBackward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
