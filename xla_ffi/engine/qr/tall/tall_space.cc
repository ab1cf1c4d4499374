#include "xla_ffi/engine/qr/tall/tall_space.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/qr/tall/tall_products.h"
#include "xla_ffi/engine/qr/tall/tsqr.h"

namespace jaxmg {

template <typename T>
TallQrSpace<T>::TallQrSpace(const TallSizes& s, const Ranks& ranks) {
  const int64_t n = s.n, columns = s.with_b ? s.nrhs : 0;
  const bool works = !ranks.tuning.qr.small_on_one || ranks.rank == kFirstRank;
  const bool seminormal = s.with_b && !s.with_q;
  const int64_t stack_rows = StackRows(n, s.block, s.further, ranks.size);
  gram = Reserve<T>(n * n);
  inverse = Reserve<T>(n * n);
  received = Reserve<T>(ranks.size > 1 ? std::max(n * n, columns * (n + 1)) : 0);
  lengths = Reserve<Real<T>>(n);
  numbers = Reserve<double>(NumberElements<T>(n, columns));
  info = Reserve<int32_t>(1);
  const int64_t all = s.with_b ? n + columns : 0;
  largest = Reserve<Real<T>>(all * (1 + ranks.size));
  factors_b = Reserve<Real<T>>(columns);
  right = Reserve<T>(columns * (n + 1));
  x = Reserve<T>(columns * n);
  change = Reserve<T>(seminormal ? columns * n : 0);
  y = Reserve<T>(seminormal ? columns * s.further : 0);
  squares = Reserve<T>(seminormal ? kRowsOfSquares * kRowsOfSquares : 0);
  work = Reserve<T>(s.block * std::max(n, seminormal ? columns : 0));
  below = Reserve<T>(s.further * n);
  scaled_a = Reserve<T>(s.with_b ? s.block * n : 0);
  scaled_b = Reserve<T>(s.block * columns);
  scaled_below = Reserve<T>(s.with_b ? s.further * n : 0);
  this->stack = Reserve<T>(works ? stack_rows * n : 0);
  triangle = Reserve<T>(n * n);
  reflectors = Reserve<T>(kPanelColumns * n);
  panels = Reserve<T>(PanelElements(n, works ? std::max(stack_rows, s.block) : s.block));
  host_bytes = static_cast<int64_t>(sizeof(double)) * NumberElements<T>(n, columns) +
               static_cast<int64_t>(sizeof(Real<T>)) * (all * ranks.size + 2 * columns);
}

#define JAXMG_INSTANTIATE(T) template struct TallQrSpace<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
