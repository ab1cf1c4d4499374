// InertiaOf (block_band.h).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <exception>
#include <limits>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "xla_ffi/base/floating_point.h"
#include "xla_ffi/engine/ldl/block_band.h"

namespace jaxmg {
namespace {

// A number of the same kind in double precision.
template <typename T>
using Wide = std::conditional_t<kIsComplex<T>, std::complex<double>, double>;

double Widened(double x) { return x; }
std::complex<double> Widened(const std::complex<float>& x) { return {x.real(), x.imag()}; }
std::complex<double> Widened(const std::complex<double>& x) { return x; }
double Conjugated(double x) { return x; }
std::complex<double> Conjugated(const std::complex<double>& x) { return std::conj(x); }

// The rows of a Hermitian band matrix, one after the other: of row r the elements r - reach to
// r + reach.
template <typename W>
struct BandRows {
  int64_t n, reach;
  std::vector<W> data;

  int64_t length() const { return 2 * reach + 1; }
  W* row(int64_t r) { return &data[r * length()]; }
  const W* row(int64_t r) const { return &data[r * length()]; }
};

// Reads the upper triangle.
template <typename T>
BandRows<Wide<T>> RowsOf(const BlockBand<T>& band) {
  const Tiles& tiles = band.tiles;
  const int64_t n = tiles.columns(), reach = tiles.width();
  BandRows<Wide<T>> rows = {n, reach, {}};
  rows.data.resize(n * rows.length());
  for (int64_t k = 0; k < tiles.nonempty(); ++k) {
    for (int64_t c = tiles.offset(k); c < tiles.offset(k) + tiles.width(k); ++c) {
      const int64_t first = std::max<int64_t>(c - reach, 0), top = tiles.offset(band.first(k));
      const T* const column = band.tile(band.first(k), k) + (c - tiles.offset(k)) * band.ld() - top;
      for (int64_t i = first; i <= c; ++i) {
        const Wide<T> x = Widened(column[i]);
        rows.row(i)[c - i + reach] = x;
        if (i < c) rows.row(c)[i - c + reach] = Conjugated(x);
      }
    }
  }
  return rows;
}

double Times(double x, double y) { return x * y; }
// Without the checks for NaN of C++'s product.
std::complex<double> Times(const std::complex<double>& x, const std::complex<double>& y) {
  return {x.real() * y.real() - x.imag() * y.imag(), x.real() * y.imag() + x.imag() * y.real()};
}

// The number of rows that pass each row of U together.
constexpr int64_t kRows = 4;

// One row of U and the rows that it eliminates, one after the other, in `count` columns. Bit q of
// kSwaps: the row of U and row q are interchanged before.
template <int kSwaps, typename W>
void Eliminate(int64_t count, const W* factors, W* __restrict upper, W* __restrict row0,
               W* __restrict row1, W* __restrict row2, W* __restrict row3) {
  const W factor0 = factors[0], factor1 = factors[1], factor2 = factors[2], factor3 = factors[3];
  for (int64_t c = 0; c < count; ++c) {
    W above = upper[c], mine0 = row0[c], mine1 = row1[c], mine2 = row2[c], mine3 = row3[c];
    if ((kSwaps & 1) != 0) std::swap(above, mine0);
    row0[c] = mine0 - Times(factor0, above);
    if ((kSwaps & 2) != 0) std::swap(above, mine1);
    row1[c] = mine1 - Times(factor1, above);
    if ((kSwaps & 4) != 0) std::swap(above, mine2);
    row2[c] = mine2 - Times(factor2, above);
    if ((kSwaps & 8) != 0) std::swap(above, mine3);
    row3[c] = mine3 - Times(factor3, above);
    if (kSwaps != 0) upper[c] = above;
  }
}

template <typename W, int... kSwaps>
void EliminateBy(std::integer_sequence<int, kSwaps...>, int swaps, int64_t count, const W* factors,
                 W* upper, W* const* rows) {
  using Function = void (*)(int64_t, const W*, W*, W*, W*, W*, W*);
  static constexpr Function kFunctions[] = {&Eliminate<kSwaps, W>...};
  kFunctions[swaps](count, factors, upper, rows[0], rows[1], rows[2], rows[3]);
}

// Counts the eigenvalues below -shift of a Hermitian band matrix: the changes of sign in the
// sequence of the leading minors of T + shift I. Elimination with interchanges, row by row, leaves
// each minor as a product of pivots (R. S. Martin, J. H. Wilkinson, "Solution of symmetric and
// unsymmetric band equations", Numer. Math. 9, 1967). A pivot that is zero is replaced by `least`.
//
// A panel of rows passes each row of U, which is then in the processor's first cache. Panels on
// several threads follow each other: each passes rows of U that the one before has passed.
template <typename W>
class Counter {
 public:
  Counter(const BandRows<W>& band, double shift, double least, int threads)
      : band_(band),
        length_(band.length() + kRows),
        places_(band.reach + (threads + 1) * kRows),
        shift_(shift),
        least_(least),
        upper_(places_ * length_),
        passed_((band.n + kRows - 1) / kRows) {}

  int64_t panels() const { return static_cast<int64_t>(passed_.size()); }
  int64_t count() const { return count_; }

  // The number of elements of `space` in Take.
  int64_t space() const { return kRows * length_; }

  // Takes panel p. All panels before must have been taken, by this thread or another one.
  void Take(int64_t p, W* space) {
    const int64_t reach = band_.reach, begin = p * kRows, count = std::min(kRows, band_.n - begin);
    // From column begin - reach on.
    std::fill_n(space, kRows * length_, W(0));
    W* rows[kRows];
    W turned[kRows];
    for (int64_t q = 0; q < kRows; ++q) {
      rows[q] = space + q * length_;
      turned[q] = 1;
      if (q >= count) continue;
      std::copy_n(band_.row(begin + q), band_.length(), rows[q] + q);
      rows[q][reach + q] += shift_;
    }
    int64_t i = std::max<int64_t>(begin - reach, 0);
    while (i < begin) {
      const int64_t end = std::min(i + kAhead, begin);
      if (p > 0) Wait(passed_[p - 1], end);
      for (; i < end; ++i) Pass(begin, i, 0, rows, turned);
      passed_[p].store(i, std::memory_order_release);
    }
    for (; i < begin + count; ++i) {
      const int64_t q = i - begin;
      W* const row = rows[q] + reach + q;
      W* const upper = Upper(i);
      std::fill(std::copy(row, rows[q] + length_, upper), upper + length_, W(0));
      if (upper[0] == W(0)) upper[0] = least_;
      if (std::real(turned[q] * Phase(upper[0])) < 0) count_.fetch_add(1);
      Pass(begin, i, q + 1, rows, turned);
    }
    passed_[p].store(i, std::memory_order_release);
  }

 private:
  static constexpr int64_t kAhead = 32;  // rows of U between two looks at the panel before

  static W Phase(const W& x) { return x / std::abs(x); }
  static void Wait(const std::atomic<int64_t>& passed, int64_t end) {
    while (passed.load(std::memory_order_acquire) < end) std::this_thread::yield();
  }
  // Row i of U, from its diagonal on.
  W* Upper(int64_t i) { return &upper_[i % places_ * length_]; }

  // Eliminates elements (begin + q, i) of a panel, q >= first, by row i of U. Of each two rows that
  // with the larger element becomes the row of U.
  void Pass(int64_t begin, int64_t i, int64_t first, W* const* panel, W* turned) {
    const int64_t column = i - (begin - band_.reach);
    W* const upper = Upper(i);
    W factors[kRows], above = upper[0];
    W* rows[kRows];
    int swaps = 0;
    bool any = false;
    for (int64_t q = 0; q < kRows; ++q) {
      rows[q] = panel[q] + column;
      factors[q] = 0;
      W mine = rows[q][0];
      if (q < first || mine == W(0)) continue;
      if (std::abs(mine) > std::abs(above)) {
        turned[q] *= -Phase(mine) / Phase(above);
        swaps |= 1 << q;
        std::swap(mine, above);
      }
      factors[q] = mine / above;
      any = true;
    }
    if (!any) return;
    // The last row of the panel ends here, and no row of U above it ends later.
    const int64_t count = begin + kRows + band_.reach - i;
    EliminateBy(std::make_integer_sequence<int, 1 << kRows>(), swaps, count, factors, upper, rows);
  }

  const BandRows<W>& band_;
  const int64_t length_, places_;
  const double shift_, least_;
  std::vector<W> upper_;
  std::vector<std::atomic<int64_t>> passed_;
  std::atomic<int64_t> count_{0};
};

// Runs both, on several threads if the system has them.
template <typename W>
void RunBoth(int threads, Counter<W>* one, Counter<W>* other) {
  std::vector<W> spaces(threads * one->space());
  std::vector<std::thread> helpers;
  helpers.reserve(threads);
  std::atomic<int64_t> next{0};
  auto work = [&](int i) {
    W* const space = &spaces[i * one->space()];
    for (;;) {
      const int64_t task = next.fetch_add(1), p = task / 2;
      if (p >= one->panels()) return;
      (task % 2 == 0 ? one : other)->Take(p, space);
    }
  };
  for (int i = 1; i < threads; ++i) {
    try {
      helpers.emplace_back([&work, i] {
        const DefaultFloatingPoint mode;
        work(i);
      });
    } catch (const std::exception&) {
      break;  // no thread, or no memory for one: the others do its work
    }
  }
  work(0);
  for (std::thread& helper : helpers) helper.join();
}

// The number of threads for a band of this order and reach.
int ThreadsFor(int64_t n, int64_t reach) {
  constexpr double kOperationsOfThread = 1e6;
  constexpr int kMost = 16;
  const double worth = 6.0 * n * reach * reach / kOperationsOfThread;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(static_cast<int>(std::min(worth, 1e3)), 1, std::clamp(cores, 1, kMost));
}

}  // namespace

template <typename T>
Inertia InertiaOf(const BlockBand<T>& band) {
  using W = Wide<T>;
  const BandRows<W> rows = RowsOf(band);
  const int64_t n = rows.n;
  double norm = 0;
  for (int64_t r = 0; r < n; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < rows.length(); ++c) sum += std::abs(rows.row(r)[c]);
    if (!std::isfinite(sum)) return {-1, -1, -1};
    norm = std::max(norm, sum);
  }
  if (norm == 0) return {0, 0, n};
  const double shift = static_cast<double>(n) * std::numeric_limits<Real<T>>::epsilon() * norm;
  const double least = std::numeric_limits<double>::epsilon() * norm;
  const int threads = ThreadsFor(n, rows.reach);
  Counter<W> below(rows, shift, least, threads), others(rows, -shift, least, threads);
  RunBoth(threads, &below, &others);
  const int64_t negative = below.count();
  const int64_t positive = n - std::max(others.count(), negative);
  return {positive, negative, n - positive - negative};
}

#define JAXMG_INSTANTIATE(T) template Inertia InertiaOf(const BlockBand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
