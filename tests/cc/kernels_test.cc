// The kernels of kernels.cu that compute with vectors and matrices, run on the host.
#include "xla_ffi/device/cuda/kernels.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cc/support/host_cuda/kernels_by_dtype.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

namespace jaxmg {
namespace {

float Conjugate(float x) { return x; }
double Conjugate(double x) { return x; }
template <typename R>
std::complex<R> Conjugate(std::complex<R> x) {
  return std::conj(x);
}

unsigned Tiles(long long m, long long n) {
  return static_cast<unsigned>((m + kTileEdge - 1) / kTileEdge * ((n + kTileEdge - 1) / kTileEdge));
}

template <typename T>
void CheckSolveRows(long long m, long long n, bool backward, bool teams) {
  std::mt19937_64 random(m * 1000 + n);
  Matrix<T> l = Matrix<T>::Uniform(n, n, random), b = Matrix<T>::Uniform(m, n, random), x(m, n);
  for (long long j = 0; j < n; ++j) {
    for (long long i = 0; i < j; ++i) l(i, j) = std::numeric_limits<RealType<T>>::quiet_NaN();
    l(j, j) += l(j, j) / std::abs(l(j, j));  // not real, as a caller's triangle may be
  }
  const std::vector<T> original = b.data;
  const int rows = teams ? kTeamRows / (sizeof(T) == 16 ? 2 : 1) : kSolveRows;
  const auto kernel = teams ? Kernels<T>::solve_rows_in_teams : Kernels<T>::solve_rows;
  Launch(static_cast<unsigned>((m + rows - 1) / rows), teams ? rows * kTeam : rows, 1,
         [&] { kernel(m, n, backward, l.device(), l.ld, b.device(), b.ld, x.device(), x.ld); });
  EXPECT(x.MarginIsUntouched() && b.data == original) << m << " x " << n;
  // The error of each row is as small as in a triangular solve.
  for (long long i = 0; i < m; ++i) {
    for (long long j = 0; j < n; ++j) {
      T residual = -b(i, j);
      RealType<T> size = 0;
      for (long long k = backward ? j : 0; k < (backward ? n : j + 1); ++k) {
        const T factor = backward ? l(k, j) : Conjugate(l(j, k));
        residual += x(i, k) * factor;
        size += std::abs(x(i, k)) * std::abs(factor);
      }
      const RealType<T> bound = 4 * (n + 4) * std::numeric_limits<RealType<T>>::epsilon() * size;
      EXPECT(std::abs(residual) <= bound) << m << " x " << n << " at " << i << ", " << j;
    }
  }
}

template <typename T>
void CheckSolveRows() {
  for (long long n : {1, 7, 16, 17, 40, 128}) {
    for (bool backward : {false, true}) {
      for (bool teams : {false, true}) CheckSolveRows<T>(n == 40 ? 130 : 5, n, backward, teams);
    }
  }
}

// Checks that the parts of a factor equal the host device's bit for bit.
template <typename T, typename Kernel>
void CheckSplit(const Kernel& kernel) {
  std::mt19937_64 random(5);
  const auto host = NewHostDevice();
  for (const bool turned : {false, true}) {
    for (const Side side : {Side::kLeft, Side::kRight}) {
      for (const Precision precision :
           {Precision::kBf16x3, Precision::kBf16x6, Precision::kF16x3, Precision::kScaledF16x3}) {
        const long long m = 37, n = 70;
        const PartsShape shape = PartsOf<T>(precision);
        Matrix<T> a = Matrix<T>::Uniform(m, n, random);
        a(3, 4) = std::numeric_limits<float>::max();
        a(5, 6) = std::numeric_limits<float>::denorm_min();
        a(7, 8) = std::numeric_limits<float>::infinity();
        a(9, 1) = std::nanf("");
        // Covers the range of float16, and some midpoints between its numbers.
        for (long long j = 10; j < n; ++j) {
          for (long long i = 0; i < m; ++i) a(i, j) *= std::ldexp(1.0f, static_cast<int>(j) - 46);
        }
        for (int i = 0; i < 30; ++i) a(i, 2) = (2048.0f + i) / 2048, a(i, 3) = i / 134217728.0f;
        const long long lines = turned ? n : m;
        const long long rows = lines * (side == Side::kLeft ? shape.rows : 1), ld = rows + 3;
        std::vector<float> some(lines);
        for (long long i = 0; i < lines; ++i) some[i] = std::ldexp(1.0f, static_cast<int>(i) - 20);
        const float* const scales = shape.scaled ? some.data() : nullptr;
        std::vector<Part> actual(ld * shape.Depth(turned ? m : n), 7), expected = actual;
        Launch(Tiles(m, n), kTileEdge, kTileRows, [&] {
          kernel(side == Side::kLeft, turned, shape.format == PartFormat::kFloat16,
                 static_cast<int>(shape.products), m, n, a.device(), a.ld, scales, actual.data(),
                 ld);
        });
        const Status status = host->blas<T>(precision).Split(
            Stream::kMain, side, turned, m, n, a.data.data(), a.ld, expected.data(), ld, scales);
        EXPECT(status.ok()) << status.message();
        EXPECT(actual == expected) << "turned " << turned << ", products " << shape.products;
      }
    }
  }
}

TEST(PartsAreThoseOfTheHost) {
  CheckSplit<float>(kernels::jaxmg_split_s);
  CheckSplit<std::complex<float>>(kernels::jaxmg_split_c);
}

// Checks that the scales of rows and columns of every size equal the host device's bit for bit.
template <typename T, typename Kernel>
void CheckPartScales(const Kernel& kernel) {
  std::mt19937_64 random(8);
  const auto host = NewHostDevice();
  const long long m = 77, n = 70;
  Matrix<T> a = Matrix<T>::Uniform(m, n, random);
  for (long long j = 0; j < n; ++j) {
    for (long long i = 0; i < m; ++i) {
      a(i, j) *=
          std::ldexp(std::ldexp(1.0f, static_cast<int>(2 * i) - 80), 70 - static_cast<int>(j));
    }
  }
  for (long long j = 0; j < n; ++j) a(20, j) = std::numeric_limits<float>::denorm_min();
  for (long long j = 0; j < n; ++j) a(22, j) = 0;
  a(50, 3) = std::nanf("");
  a(51, 40) = -std::numeric_limits<float>::infinity();
  for (const bool turned : {false, true}) {
    const long long lines = turned ? n : m;
    std::vector<float> actual(lines + 1, 7), expected = actual;
    Launch(Tiles(lines, 1), kTileEdge, kTileRows,
           [&] { kernel(turned, m, n, a.device(), a.ld, actual.data()); });
    const Status status =
        host->blas<T>(Precision::kScaledF16x3)
            .PartScales(Stream::kMain, turned, m, n, a.data.data(), a.ld, expected.data());
    EXPECT(status.ok()) << status.message();
    EXPECT(actual == expected && actual[lines] == 7) << "turned " << turned;
    if (turned) continue;
    EXPECT(actual[22] == 1 && actual[50] == 1 && actual[51] == 1);
    EXPECT(actual[20] == std::numeric_limits<float>::min());
  }
}

TEST(MovesOfInterchangesCompose) {
  const int n = 9;
  std::vector<int> moves(n, -1), sources(n, -1);
  for (auto* each : {&moves, &sources}) {
    Launch(2, 3, 1, [&] { kernels::jaxmg_count_up(n, each->data()); });
  }
  // Composes the later interchanges first: the result takes its rows from x with rows 3 and 5
  // exchanged.
  const std::vector<int> later_from = {4, 2, -1}, later_to = {2, 4, -1};  // from row 1 on
  const std::vector<int> from = {5, 0}, to = {0, 5};
  const auto compose = [&](int begin, const std::vector<int>& f, const std::vector<int>& t) {
    const int count = static_cast<int>(f.size());
    Launch(1, 2, 1,
           [&] { kernels::jaxmg_map_moves(0, count, begin, f.data(), t.data(), moves.data()); });
    Launch(2, 3, 1, [&] { kernels::jaxmg_compose_moves(n, moves.data(), sources.data()); });
    Launch(1, 2, 1,
           [&] { kernels::jaxmg_map_moves(1, count, begin, f.data(), t.data(), moves.data()); });
  };
  compose(1, later_from, later_to);
  compose(0, from, to);
  // Exchanges rows 0 and 5, then 3 and 5.
  EXPECT(sources == (std::vector<int>{5, 1, 2, 0, 4, 3, 6, 7, 8}));
  for (int i = 0; i < n; ++i) EXPECT(moves[i] == i);
}

TEST(PartScalesAreThoseOfTheHost) {
  CheckPartScales<float>(kernels::jaxmg_part_scales_s);
  CheckPartScales<std::complex<float>>(kernels::jaxmg_part_scales_c);
}

// Checks that the kernels of equilibration compute the same bits as the host device.
template <typename T, typename ScaleKernel, typename LargestKernel>
void CheckScaling(const ScaleKernel& scale, const LargestKernel& row_largest) {
  std::mt19937_64 random(6);
  const auto host = NewHostDevice();
  const long long m = 77, n = 70;
  std::vector<float> left(m), right(n);
  for (long long i = 0; i < m; ++i) left[i] = std::ldexp(1.0f, static_cast<int>(i % 9) - 4);
  for (long long j = 0; j < n; ++j) right[j] = j % 3 == 0 ? 1 : std::ldexp(1.0f, j % 70 - 60);
  const Matrix<T> a = Matrix<T>::Uniform(m, n, random);
  for (int which = 0; which < 12; ++which) {
    const bool lower = which & 1, divide = which & 2;
    const float* const rows = which / 4 == 0 ? nullptr : left.data();
    const float* const columns = which / 4 == 1 ? nullptr : right.data();
    Matrix<T> actual = a, expected = a;
    Launch(Tiles(m, n), kTileEdge, kTileRows,
           [&] { scale(lower, divide, m, n, rows, columns, actual.device(), actual.ld); });
    const Status status = host->blas<T>().Scale(Stream::kMain, lower, divide, m, n, rows, columns,
                                                expected.data.data(), expected.ld);
    EXPECT(status.ok()) << status.message();
    EXPECT(actual.data == expected.data && !(actual.data == a.data)) << which;
  }
  Matrix<T> b = a;
  b(50, 3) = std::nanf("");
  b(51, 40) = -std::numeric_limits<float>::infinity();
  std::vector<float> actual(m, 0.01f);
  actual[60] = 1000;
  std::vector<float> expected = actual;
  Launch(3, kThreads, 1, [&] { row_largest(m, n, b.device(), b.ld, actual.data()); });
  const Status status =
      host->blas<T>().RowLargest(Stream::kMain, m, n, b.data.data(), b.ld, expected.data());
  EXPECT(status.ok()) << status.message();
  for (long long i = 0; i < m; ++i) {
    EXPECT(actual[i] == expected[i] || (i == 50 && std::isnan(actual[i])))
        << i << ": " << actual[i];
  }
  EXPECT(std::isnan(expected[50]) && std::isinf(expected[51]) && expected[60] == 1000);
}

TEST(ScalingIsThatOfTheHost) {
  CheckScaling<float>(kernels::jaxmg_scale_s, kernels::jaxmg_row_largest_s);
  CheckScaling<std::complex<float>>(kernels::jaxmg_scale_c, kernels::jaxmg_row_largest_c);
}

TEST(PowersOfTwoAreThoseOfTheHost) {
  std::vector<float> x = {0,
                          -1,
                          1,
                          3.99f,
                          4,
                          0.25f,
                          0.1f,
                          1e-45f,
                          std::nanf(""),
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::min()};
  const auto host = NewHostDevice();
  for (bool root : {false, true}) {
    std::vector<float> actual = x, expected = x;
    const auto n = static_cast<long long>(x.size());
    Launch(1, 8, 1, [&] { kernels::jaxmg_powers_of_two(root, n, actual.data()); });
    EXPECT(host->blas<float>().PowersOfTwo(Stream::kMain, root, n, expected.data()).ok());
    EXPECT(actual == expected);
    for (size_t i = 0; i < x.size(); ++i) {
      const bool has = x[i] >= std::numeric_limits<float>::min() && std::isfinite(x[i]);
      const float rest = has ? x[i] / (root ? actual[i] * actual[i] : actual[i]) : 1;
      EXPECT(rest >= 1 && rest < (root ? 4 : 2)) << x[i] << ": " << actual[i];
      EXPECT(has || actual[i] == 1) << x[i];
    }
  }
}

template <typename T>
void CheckTranspositions() {
  std::mt19937_64 random(7);
  const long long m = 37, n = 70;
  Matrix<T> a = Matrix<T>::Uniform(m, n, random), b(n, m);
  Launch(Tiles(m, n), kTileEdge, kTileRows,
         [&] { Kernels<T>::conj_transpose(m, n, a.device(), a.ld, b.device(), b.ld); });
  EXPECT(b.MarginIsUntouched());
  for (long long j = 0; j < n; ++j) {
    for (long long i = 0; i < m; ++i) EXPECT(b(j, i) == Conjugate(a(i, j))) << i << ", " << j;
  }
  Matrix<T> c = a;
  Launch(3, 8, 1, [&] { Kernels<T>::conjugate(m, n, c.device(), c.ld); });
  EXPECT(c.MarginIsUntouched());
  for (long long j = 0; j < n; ++j) {
    for (long long i = 0; i < m; ++i) EXPECT(c(i, j) == Conjugate(a(i, j))) << i << ", " << j;
  }

  Matrix<T> lower = Matrix<T>::Uniform(n, n, random), whole = lower;
  Launch(Tiles(n, n), kTileEdge, kTileRows,
         [&] { Kernels<T>::mirror_lower(n, whole.device(), whole.ld); });
  EXPECT(whole.MarginIsUntouched());
  for (long long j = 0; j < n; ++j) {
    EXPECT(whole(j, j) == T(std::real(lower(j, j)))) << j;
    for (long long i = j + 1; i < n; ++i) {
      EXPECT(whole(i, j) == lower(i, j) && whole(j, i) == Conjugate(lower(i, j))) << i << ", " << j;
    }
  }
}

// Stores the inverse's strict triangle above the diagonal of a tile and reads it back. The rest of
// the tile must not change.
template <typename T>
void CheckInverses() {
  std::mt19937_64 random(9);
  for (long long n : {1, 31, 70}) {
    Matrix<T> a = Matrix<T>::Uniform(n, n, random), v = Matrix<T>::Uniform(n, n, random);
    for (long long j = 0; j < n; ++j) a(j, j) += T(2) * a(j, j) / std::abs(a(j, j));
    const Matrix<T> before = a;
    Launch(Tiles(n, n), kTileEdge, kTileRows,
           [&] { Kernels<T>::store_inverse(n, v.device(), v.ld, a.device(), a.ld); });
    EXPECT(a.MarginIsUntouched());
    for (bool transposed : {false, true}) {
      std::vector<T> l(n * n, T(kUntouched)), inverse(n * n, T(kUntouched));
      Launch(Tiles(n, n), kTileEdge, kTileRows, [&] {
        Kernels<T>::load_inverse(n, transposed, a.device(), a.ld,
                                 reinterpret_cast<DeviceType<T>*>(l.data()),
                                 reinterpret_cast<DeviceType<T>*>(inverse.data()));
      });
      for (long long j = 0; j < n; ++j) {
        for (long long i = 0; i < n; ++i) {
          const T original = before.data[j * before.ld + i];
          EXPECT(a(i, j) == (i < j ? Conjugate(v(j, i)) : original)) << i << ", " << j;
          auto actual = [&](std::vector<T>& from) {
            return transposed ? Conjugate(from[i * n + j]) : from[j * n + i];
          };
          EXPECT(actual(l) == (i >= j ? original : T(0))) << i << ", " << j;
          if (i == j) {
            EXPECT(std::abs(actual(inverse) * original - T(1)) <=
                   4 * std::numeric_limits<RealType<T>>::epsilon())
                << i;
          } else {
            EXPECT(actual(inverse) == (i > j ? v(i, j) : T(0))) << i << ", " << j;
          }
        }
      }
    }
  }
}

template <typename T>
void CheckSums() {
  std::mt19937_64 random(8);
  const long long m = 13, n = 21;
  Matrix<T> a = Matrix<T>::Uniform(m, n, random), b = Matrix<T>::Uniform(m, n, random), sum = b;
  a(3, 4) = std::numeric_limits<RealType<T>>::infinity();
  for (unsigned blocks : {2, 40}) {  // several elements a thread, and threads without elements
    sum = b;
    Launch(blocks, 8, 1, [&] { Kernels<T>::add(m, n, a.device(), a.ld, sum.device(), sum.ld); });
    EXPECT(sum.MarginIsUntouched());
    for (long long j = 0; j < n; ++j) {
      for (long long i = 0; i < m; ++i) EXPECT(sum(i, j) == b(i, j) + a(i, j)) << i << ", " << j;
    }
  }
}

template <typename T>
void CheckFills() {
  const long long n = 19;
  std::mt19937_64 random(10);
  Matrix<RealType<T>> real = Matrix<RealType<T>>::Uniform(n, 5, random);
  Matrix<T> widened(n, 5);
  Launch(2, 8, 1, [&] {
    Kernels<T>::from_real(n, 5, real.device(), real.ld, widened.device(), widened.ld);
  });
  EXPECT(std::equal(real.data.begin(), real.data.end(), widened.data.begin()));
  Matrix<T> a(n, n);
  Launch(2, 8, 1, [&] { Kernels<T>::identity(n, a.device(), a.ld); });
  for (long long j = 0; j < n; ++j) {
    for (long long i = 0; i < n; ++i) EXPECT(a(i, j) == T(i == j));
  }
  std::vector<T> factors(9);
  for (T& factor : factors) factor = Random<T>(random);
  T product = T(0), expected = T(1);
  Launch(1, kThreads, 1, [&] {
    Kernels<T>::multiply(reinterpret_cast<DeviceType<T>*>(factors.data()), 2, 4,
                         reinterpret_cast<DeviceType<T>*>(&product));
  });
  for (size_t i = 0; i < 8; i += 2) expected *= factors[i];
  EXPECT(std::abs(product - expected) <=
         10 * std::numeric_limits<RealType<T>>::epsilon() * std::abs(expected))
      << product;
  for (int status : {0, 3}) {
    Matrix<T> b = a;
    Launch(2, 8, 1, [&] { Kernels<T>::poison_if(&status, n, n, b.device(), b.ld); });
    EXPECT(std::isnan(std::real(b(4, 5))) == (status != 0) && b.MarginIsUntouched()) << status;
    b = a;
    const int first = status == 0 ? kNoInfo : status;
    Launch(2, 8, 1, [&] { Kernels<T>::clear_if(&first, n, b.device(), b.ld); });
    EXPECT(b(4, 4) == T(status == 0) && b.MarginIsUntouched()) << status;
  }
}

template <typename R>
void CheckSequences() {
  std::mt19937_64 random(11);
  std::vector<R> terms(1000), w;
  for (R& term : terms) term = Random<R>(random);
  w = terms;
  R sum = 0, expected = 0;
  for (int64_t stride : {1, 4}) {
    const int64_t count = terms.size() / stride;
    Launch(1, kThreads, 1, [&] { Kernels<R>::sum_reals(terms.data(), stride, count, &sum); });
    expected = 0;
    for (int64_t i = 0; i < count; ++i) expected += terms[i * stride];
    EXPECT(sum == expected) << sum << " not " << expected;  // equal: summed in this order
  }
  for (size_t i = 1; i < terms.size(); ++i) terms[i] = std::max(terms[i], terms[i - 1]);
  Launch(1, kThreads, 1, [&] { Kernels<R>::ascend(w.size(), w.data()); });
  EXPECT(w == terms);
}

JAXMG_TEST_KERNELS(SolveRowsSubstitutes, CheckSolveRows)
JAXMG_TEST_KERNELS(TransposeMirrorConjugate, CheckTranspositions)
JAXMG_TEST_KERNELS(InversesAreStoredAboveTheDiagonal, CheckInverses)
JAXMG_TEST_KERNELS(AddsElements, CheckSums)
JAXMG_TEST_KERNELS(FromRealIdentityPoisonClear, CheckFills)

TEST(SumsAndRunningMaxima) {
  CheckSequences<float>();
  CheckSequences<double>();
}

// Columns one unit longer than two segments, in units of 4, 8 and 16 bytes, with padding.
TEST(CopyColumnsLeavesThePaddingUnchanged) {
  for (const size_t unit : {4, 8, 16}) {
    const size_t height = 2 * kCopySegment + unit, columns = 3;
    const size_t from_pitch = height + 3 * unit, to_pitch = height + unit;
    alignas(16) static char source[4 * (kCopySegment + 100) * 3], target[sizeof(source)];
    for (size_t i = 0; i < sizeof(source); ++i) {
      source[i] = static_cast<char>(i * 7 + i / 251);
      target[i] = 1;
    }
    const size_t begin = unit;
    Launch(3 * columns, kThreads, 1, [&] {
      kernels::jaxmg_copy_columns(target + begin, to_pitch, source, from_pitch, height);
    });
    size_t wrong = 0, next = 0;
    for (size_t j = 0; j < columns; ++j) {
      for (; next < begin + j * to_pitch; ++next) wrong += target[next] != 1;
      for (size_t i = 0; i < height; ++i, ++next)
        wrong += target[next] != source[j * from_pitch + i];
    }
    for (; next < sizeof(target); ++next) wrong += target[next] != 1;
    EXPECT(wrong == 0) << wrong << " bytes, units of " << unit;
  }
}

// Parts of several segments, one segment or no bytes, at any alignment, in units of 1 to 16 bytes.
TEST(CopyToPartsCopiesEachPartWhole) {
  for (const long long unit : {1, 2, 4, 8, 16}) {
    const std::vector<long long> sizes = {2 * kCopySegment + unit, 0, unit, kCopySegment, 5 * unit};
    alignas(16) static char source[5 * kCopySegment];
    for (size_t i = 0; i < sizeof(source); ++i) source[i] = static_cast<char>(i * 7 + i / 251);
    alignas(16) static char target[7 * kCopySegment];
    std::fill(std::begin(target), std::end(target), 1);
    PartsToCopy parts = {};
    // The targets follow each other in the opposite order, with a gap before each.
    char* to = target;
    for (size_t i = sizes.size(); i-- > 0;) {
      to += 3 * unit;
      parts.to[i] = to;
      to += sizes[i];
    }
    for (size_t i = 0; i < sizes.size(); ++i) parts.starts[i + 1] = parts.starts[i] + sizes[i];
    Launch(3 * static_cast<int>(sizes.size()), kThreads, 1,
           [&] { kernels::jaxmg_copy_to_parts(parts, 3, source + unit); });
    std::vector<char> expected(std::size(target), 1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::copy_n(source + unit + parts.starts[i], sizes[i],
                  expected.begin() + (parts.to[i] - target));
    }
    size_t wrong = 0;
    for (size_t i = 0; i < expected.size(); ++i) wrong += target[i] != expected[i];
    EXPECT(wrong == 0) << wrong << " bytes, units of " << unit;
  }
}

}  // namespace
}  // namespace jaxmg
