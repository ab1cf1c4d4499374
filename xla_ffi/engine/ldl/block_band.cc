#include "xla_ffi/engine/ldl/block_band.h"

#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace jaxmg {
namespace {

// A number of the same kind in double precision.
template <typename T>
using Wide = std::conditional_t<kIsComplex<T>, std::complex<double>, double>;

template <typename T>
Wide<T> Widened(const T& x) {
  if constexpr (kIsComplex<T>) {
    return {static_cast<double>(x.real()), static_cast<double>(x.imag())};
  } else {
    return static_cast<double>(x);
  }
}

// The rows of a Hermitian band matrix, with `reach` elements on each side of the diagonal.
template <typename T>
class Rows {
 public:
  explicit Rows(const BlockBand<T>& band)
      : band_(band), n_(band.tiles.columns()), reach_(band.tiles.width()) {}

  int64_t n() const { return n_; }
  int64_t reach() const { return reach_; }
  // Writes elements r - reach to r + reach of row r. Reads the upper triangle: a column of it, and
  // its mirror image below.
  void Get(int64_t r, Wide<T>* row) const {
    for (int64_t c = r - reach_; c <= r + reach_; ++c, ++row) {
      if (c < 0 || c >= n_) {
        *row = 0;
      } else {
        *row = c > r ? Widened(At(r, c)) : Conjugated(Widened(At(c, r)));
      }
    }
  }

 private:
  static double Conjugated(double x) { return x; }
  static std::complex<double> Conjugated(const std::complex<double>& x) { return std::conj(x); }
  T At(int64_t i, int64_t c) const {
    const int64_t b = band_.tiles.width(), k = c / b;
    return band_.tile(i / b, k)[c % b * band_.ld() + i % b];
  }

  const BlockBand<T>& band_;
  const int64_t n_, reach_;
};

// Returns the number of eigenvalues below -shift of a Hermitian band matrix: the changes of sign in
// the sequence of the leading minors of T + shift I. Elimination with interchanges, row by row,
// leaves each minor as a product of pivots (R. S. Martin, J. H. Wilkinson, "Solution of symmetric
// and unsymmetric band equations", Numer. Math. 9, 1967). A pivot that is zero is replaced by
// `least`.
template <typename T>
int64_t CountBelow(const Rows<T>& rows, double shift, double least) {
  using W = Wide<T>;
  const int64_t n = rows.n(), reach = rows.reach(), length = 2 * reach + 1;
  // Row i of U from its diagonal on is in place i % (reach + 1).
  std::vector<W> upper((reach + 1) * length), row(length + reach);
  const auto phase = [](const W& x) { return x / std::abs(x); };
  int64_t count = 0;
  for (int64_t r = 0; r < n; ++r) {
    // row[c - (r - reach)] is the element of column c, up to c = r + 2 reach.
    std::fill(row.begin(), row.end(), W(0));
    rows.Get(r, row.data());
    row[reach] += shift;
    W turned = 1;
    for (int64_t i = std::max<int64_t>(r - reach, 0); i < r; ++i) {
      W* const above = &upper[i % (reach + 1) * length];
      W* const mine = &row[i - (r - reach)];
      if (std::abs(mine[0]) > std::abs(above[0])) {
        turned *= -phase(mine[0]) / phase(above[0]);
        std::swap_ranges(above, above + length, mine);
      }
      const W factor = mine[0] / above[0];
      if (factor == W(0)) continue;
      for (int64_t c = 0; c < length; ++c) mine[c] -= factor * above[c];
    }
    W* const place = &upper[r % (reach + 1) * length];
    std::copy_n(&row[reach], length, place);
    if (place[0] == W(0)) place[0] = least;
    count += std::real(turned * phase(place[0])) < 0;
  }
  return count;
}

}  // namespace

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

template <typename T>
Inertia InertiaOf(const BlockBand<T>& band) {
  const Rows<T> rows(band);
  const int64_t n = rows.n();
  std::vector<Wide<T>> row(2 * rows.reach() + 1);
  double norm = 0;
  for (int64_t r = 0; r < n; ++r) {
    rows.Get(r, row.data());
    double sum = 0;
    for (const Wide<T>& x : row) sum += std::abs(x);
    if (!std::isfinite(sum)) return {-1, -1, -1};
    norm = std::max(norm, sum);
  }
  if (norm == 0) return {0, 0, n};
  const double eps = std::numeric_limits<Real<T>>::epsilon();
  const double shift = static_cast<double>(n) * eps * norm;
  const double least = std::numeric_limits<double>::epsilon() * norm;
  const int64_t negative = CountBelow(rows, shift, least);
  const int64_t others = CountBelow(rows, -shift, least);
  const int64_t positive = std::min(n - others, n - negative);
  return {positive, negative, n - positive - negative};
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template class BandLu<T>;                                                                        \
  template Status SolveBand(const RankContext&, const BlockBand<T>&, const int32_t*, int64_t, T*); \
  template Inertia InertiaOf(const BlockBand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
