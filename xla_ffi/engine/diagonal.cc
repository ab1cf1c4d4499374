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

// solved := x op(L_cc)^-1 for the diagonal block from column `begin` on, by its inverse, and once
// more for what that leaves of x: the residual of a product with an inverse grows with the
// condition of L_cc.
template <typename T>
Status SolveBlock(Device& device, Stream stream, Op op, const DiagonalTile<T>& tile, int64_t begin,
                  int64_t count, T* x, T* solved) {
  Blas<T>& blas = device.blas<T>();
  const int64_t columns = std::min(tile.block, tile.n - begin);
  const T* inverse = tile.inverses + begin * tile.block;
  auto multiply = [&](Real<T> alpha, const T* a, const T* b, int64_t ldb, Real<T> beta, T* c) {
    return blas.Gemm(stream, Op::kNone, op, count, columns, columns, alpha, a, count, b, ldb, beta,
                     c, count);
  };
  JAXMG_RETURN_IF_ERROR(multiply(1, x, inverse, tile.block, 0, solved));
  JAXMG_RETURN_IF_ERROR(multiply(-1, solved, tile.l + begin * tile.ld + begin, tile.ld, 1, x));
  return multiply(1, x, inverse, tile.block, 1, solved);
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
    JAXMG_RETURN_IF_ERROR(SolveBlock(device, stream, Op::kConjTrans, tile, begin, count, piece,
                                     solved + begin * count));
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
    JAXMG_RETURN_IF_ERROR(
        SolveBlock(device, stream, Op::kNone, tile, begin, count, piece, solved + begin * count));
  }
  return Status::Ok();
}

#define JAXMG_INSTANTIATE(T)                                                              \
  template Status SolveForward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*); \
  template Status SolveBackward(Device&, Stream, const DiagonalTile<T>&, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
