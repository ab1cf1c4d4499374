#include "xla_ffi/engine/ldl/block_band.h"

#include <complex>

namespace jaxmg {
template <typename T>
BandLu<T>::BandLu(const BlockBand<T>& band, const BlockBand<T>& lu, int32_t* pivots, int32_t* info,
                  const Determinant<T>& determinant)
    : band_(band), lu_(lu), pivots_(pivots), info_(info), determinant_(determinant) {}

template <typename T>
void BandLu<T>::Take(Step<T>& on, int64_t k) const {
  const int64_t width = lu_.tiles.width(k), b = lu_.tiles.width(), ld = lu_.ld();
  on.SetZero(b, width, lu_.tile(k - 2, k), ld);
  on.Copy(Block(lu_.tile(k - 1, k), ld, band_.ld(), width),
          Block(band_.tile(k - 1, k), band_.ld(), band_.ld(), width));
  if (k >= kAhead) Factor(on, k - kAhead);
  if (k + 1 < lu_.tiles.nonempty()) return;
  for (int64_t i = std::max<int64_t>(k + 1 - kAhead, 0); i <= k; ++i) Factor(on, i);
}

template <typename T>
void BandLu<T>::Factor(Step<T>& on, int64_t k) const {
  const Tiles& tiles = lu_.tiles;
  const int64_t width = tiles.width(k), begin = tiles.offset(k), below = tiles.width(k + 1);
  const int64_t ld = lu_.ld();
  T* const panel = lu_.tile(k, k);
  int32_t* const pivots = pivots_ + begin;
  on.FactorPanel(width + below, width, panel, ld, begin, pivots, info_);
  if (determinant_.sign != nullptr) {
    on.AddDeterminant(width, panel, ld, begin, pivots, determinant_.log_abs, determinant_.sign);
  }
  // Rows of U, and the next panel's rows. The rows of tile k + 1 in tile column k + 2 are T's, or
  // zero before the interchanges.
  for (int64_t next = k + 1; next < std::min(k + 3, tiles.nonempty()); ++next) {
    T* const top = lu_.tile(k, next);
    const int64_t columns = tiles.width(next);
    on.SwapRows(Order::kForward, columns, top, ld, begin, width, pivots);
    on.Trsm(Side::kLeft, Op::kNone, width, columns, panel, ld, top, ld, kUnitLower);
    on.ExactGemm(Op::kNone, Op::kNone, below, columns, width, -1, panel + width, ld, top, ld, 1,
                 top + width, ld);
  }
}

template <typename T>
Status SolveBand(const RankContext& context, const BlockBand<T>& lu, const int32_t* pivots,
                 int64_t columns, T* z) {
  const Tiles& tiles = lu.tiles;
  const int64_t n = tiles.columns(), ld = lu.ld(), count = tiles.nonempty();
  if (columns == 0) return Status::Ok();
  Flow flow(context);
  Step<T> on(flow, Stream::kMain, "solve with the band");
  for (int64_t k = 0; k < count; ++k) {
    const int64_t width = tiles.width(k), begin = tiles.offset(k), below = tiles.width(k + 1);
    const T* const panel = lu.tile(k, k);
    T* const top = z + begin;
    on.SwapRows(Order::kForward, columns, top, n, begin, width, pivots + begin);
    on.Trsm(Side::kLeft, Op::kNone, width, columns, panel, ld, top, n, kUnitLower);
    if (below == 0) continue;
    on.ExactGemm(Op::kNone, Op::kNone, below, columns, width, -1, panel + width, ld, top, n, 1,
                 top + width, n);
  }
  for (int64_t k = count - 1; k >= 0; --k) {
    const int64_t width = tiles.width(k), begin = tiles.offset(k);
    const int64_t first = lu.first(k), others = begin - tiles.offset(first);
    T* const solved = z + begin;
    on.Trsm(Side::kLeft, Op::kNone, width, columns, lu.tile(k, k), ld, solved, n, kUpper);
    if (others == 0) continue;
    on.ExactGemm(Op::kNone, Op::kNone, others, columns, width, -1, lu.tile(first, k), ld, solved, n,
                 1, z + tiles.offset(first), n);
  }
  return flow.status();
}

#define JAXMG_INSTANTIATE(T) \
  template class BandLu<T>;  \
  template Status SolveBand(const RankContext&, const BlockBand<T>&, const int32_t*, int64_t, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
