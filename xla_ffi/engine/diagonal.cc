#include "xla_ffi/engine/diagonal.h"

#include <complex>

namespace jaxmg {
namespace {

template <typename T>
Status SolveDirectly(Device& device, Stream stream, Op op, const DiagonalTile<T>& tile,
                     int64_t count, const T* x, T* solved) {
  JAXMG_RETURN_IF_ERROR(
      device.Copy(stream, Block(solved, count, count, tile.n), Block(x, count, count, tile.n)));
  return device.blas<T>().Trsm(stream, Side::kRight, op, count, tile.n, tile.l, tile.ld, solved,
                               count);
}

}  // namespace

template <typename T>
Status SolveForward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count, T* x,
                    T* solved) {
  if (tile.inverses == nullptr) {
    return SolveDirectly(device, stream, Op::kConjTrans, tile, count, x, solved);
  }
  Blas<T>& blas = device.blas<T>();
  for (int64_t begin = 0; begin < tile.n; begin += tile.block) {
    const int64_t columns = std::min(tile.block, tile.n - begin);
    T* piece = x + begin * count;
    if (begin > 0) {
      JAXMG_RETURN_IF_ERROR(blas.Gemm(stream, Op::kNone, Op::kConjTrans, count, columns, begin, -1,
                                      solved, count, tile.l + begin, tile.ld, 1, piece, count));
    }
    JAXMG_RETURN_IF_ERROR(blas.Gemm(stream, Op::kNone, Op::kConjTrans, count, columns, columns, 1,
                                    piece, count, tile.inverses + begin * tile.block, tile.block, 0,
                                    solved + begin * count, count));
  }
  return Status::Ok();
}

template <typename T>
Status SolveBackward(Device& device, Stream stream, const DiagonalTile<T>& tile, int64_t count,
                     T* x, T* solved) {
  if (tile.inverses == nullptr) {
    return SolveDirectly(device, stream, Op::kNone, tile, count, x, solved);
  }
  Blas<T>& blas = device.blas<T>();
  for (int64_t begin = (tile.n - 1) / tile.block * tile.block; begin >= 0; begin -= tile.block) {
    const int64_t end = std::min(begin + tile.block, tile.n);
    T* piece = x + begin * count;
    if (end < tile.n) {
      JAXMG_RETURN_IF_ERROR(blas.Gemm(stream, Op::kNone, Op::kNone, count, end - begin,
                                      tile.n - end, -1, solved + end * count, count,
                                      tile.l + begin * tile.ld + end, tile.ld, 1, piece, count));
    }
    JAXMG_RETURN_IF_ERROR(blas.Gemm(stream, Op::kNone, Op::kNone, count, end - begin, end - begin,
                                    1, piece, count, tile.inverses + begin * tile.block, tile.block,
                                    0, solved + begin * count, count));
  }
  return Status::Ok();
}

#define JAXMG_INSTANTIATE(T)                                                              \
  template Status SolveForward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*); \
  template Status SolveBackward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
