#include "xla_ffi/engine/cholesky/equilibrate.h"

#include <complex>

namespace jaxmg {

template <typename T>
Status Equilibration<T>::FindForMatrix() {
  Blas<R>& blas = context_.device.template blas<R>();
  const int64_t n = tiles_.columns(), width = tiles_.width(), slots = tiles_.slots();
  if (n == 0) return Status::Ok();
  // scratch_ has `width` elements for each tile, even for a narrow one. So the elements of a rank's
  // tiles form a block with a constant stride, which is broadcast at once.
  JAXMG_RETURN_IF_ERROR(
      blas.SetZero(Stream::kMain, tiles_.count() * width, 1, scratch_, tiles_.count() * width));
  for (int64_t k = matrix_.rank; k < tiles_.nonempty(); k += tiles_.ranks()) {
    // The real part is the first word of an element.
    const Bytes2D diagonal = {matrix_.tile(k, tiles_.offset(k)), (matrix_.ld() + 1) * sizeof(T),
                              sizeof(R), static_cast<size_t>(tiles_.width(k))};
    const Bytes2D target = Block(scratch_ + k * width, 1, 1, tiles_.width(k));
    JAXMG_RETURN_IF_ERROR(context_.device.Copy(Stream::kMain, target, diagonal));
  }
  for (int rank = 0; rank < tiles_.ranks() && tiles_.ranks() > 1; ++rank) {
    const Bytes2D of_rank = Block(scratch_ + rank * width, tiles_.ranks() * width, width, slots);
    JAXMG_RETURN_IF_ERROR(Broadcast(context_.comm, Stream::kMain, rank, of_rank));
  }
  // Only the last tile of each block of columns may be narrow, so a block is contiguous.
  for (int64_t begin = 0, place = 0; begin < n; begin += tiles_.block(), place += slots * width) {
    const int64_t count = std::min(tiles_.block(), n - begin);
    JAXMG_RETURN_IF_ERROR(context_.device.Copy(Stream::kMain,
                                               Block(roots_ + begin, count, count, 1),
                                               Block(scratch_ + place, count, count, 1)));
  }
  return blas.PowersOfTwo(Stream::kMain, true, n, roots_);
}

template <typename T>
Status Equilibration<T>::FindForFactor() {
  Blas<R>& blas = context_.device.template blas<R>();
  const int64_t n = tiles_.columns();
  if (n == 0) return Status::Ok();
  R* const mine = tiles_.ranks() > 1 ? scratch_ : roots_;
  R* const received = scratch_ + n;
  JAXMG_RETURN_IF_ERROR(blas.SetZero(Stream::kMain, n, 1, mine, n));
  for (int64_t k = matrix_.rank; k < tiles_.nonempty(); k += tiles_.ranks()) {
    const int64_t begin = tiles_.offset(k);
    JAXMG_RETURN_IF_ERROR(context_.device.template blas<T>().RowLargest(
        Stream::kMain, n - begin, tiles_.width(k), matrix_.tile(k, begin), matrix_.ld(),
        mine + begin));
  }
  if (tiles_.ranks() > 1) {
    JAXMG_RETURN_IF_ERROR(blas.SetZero(Stream::kMain, n, 1, roots_, n));
    for (int rank = 0; rank < tiles_.ranks(); ++rank) {
      R* const each = rank == matrix_.rank ? mine : received;
      JAXMG_RETURN_IF_ERROR(Broadcast(context_.comm, Stream::kMain, rank, Block(each, n, n, 1)));
      JAXMG_RETURN_IF_ERROR(blas.RowLargest(Stream::kMain, n, 1, each, n, roots_));
    }
  }
  return blas.PowersOfTwo(Stream::kMain, false, n, roots_);
}

template <typename T>
Status Equilibration<T>::Scale(bool divide, bool left, bool right) const {
  Blas<T>& blas = context_.device.template blas<T>();
  for (int64_t k = matrix_.rank; k < tiles_.nonempty(); k += tiles_.ranks()) {
    const int64_t begin = tiles_.offset(k);
    const R* const roots = roots_ + begin;
    JAXMG_RETURN_IF_ERROR(blas.Scale(
        Stream::kMain, true, divide, tiles_.columns() - begin, tiles_.width(k),
        left ? roots : nullptr, right ? roots : nullptr, matrix_.tile(k, begin), matrix_.ld()));
  }
  return Status::Ok();
}

template <typename T>
Status Equilibration<T>::ScaleMatrix(bool back) const {
  return Scale(!back, true, true);
}

template <typename T>
Status Equilibration<T>::ScaleFactor(bool back) const {
  return Scale(!back, true, false);
}

template <typename T>
Status Equilibration<T>::ScaleRightHandSides(int64_t count, T* x) const {
  return context_.device.template blas<T>().Scale(Stream::kMain, false, true, count,
                                                  tiles_.columns(), nullptr, roots_, x, count);
}

template <typename T>
Status Equilibration<T>::AddLogDet(R* sum) const {
  if (sum == nullptr || matrix_.rank != 0) return Status::Ok();
  return context_.device.template blas<R>().AddLogDet(Stream::kMain, tiles_.columns(), roots_, 0,
                                                      sum);
}

#define JAXMG_INSTANTIATE(T) template class Equilibration<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
