// The reduction of a band to a tridiagonal matrix and products with its Q, on threads: every dtype,
// many sizes, bandwidths, groups of sweeps and rank counts, and bands with special reflectors.
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "tests/cc/support/chase_problem.h"
#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

// Checks all small n and b; groups and ranks vary in turn.
template <typename T>
void CheckSmall() {
  const int64_t groups[] = {1, 3, 8, 32};
  int64_t turn = 0;
  for (int64_t n = 0; n <= 40; ++n) {
    for (int64_t b :
         {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5}, int64_t{8}, int64_t{16}, n - 1, n + 3}) {
      if (b < 1) continue;
      const ChaseCase c = {n, b, groups[turn % 4], static_cast<int>(1 + turn % 5),
                           1 + turn % 3 * 7};
      Check(c, BandMatrix<T>::Normal(c));
      ++turn;
    }
  }
}

TEST(SmallFloat) { CheckSmall<float>(); }
TEST(SmallDouble) { CheckSmall<double>(); }
TEST(SmallComplexFloat) { CheckSmall<std::complex<float>>(); }
TEST(SmallComplexDouble) { CheckSmall<std::complex<double>>(); }

constexpr ChaseCase kLarger[] = {
    {65, 8, 8, 2}, {65, 3, 32, 3}, {100, 16, 3, 5, 10}, {257, 32, 32, 3, 64}};

template <typename T>
void CheckLarger() {
  for (const ChaseCase& c : kLarger) Check(c, BandMatrix<T>::Normal(c));
}

TEST(Larger) {
#define JAXMG_CHECK(T) CheckLarger<T>();
  JAXMG_FOR_EACH_DTYPE(JAXMG_CHECK)
#undef JAXMG_CHECK
}

constexpr ChaseCase kSome[] = {{1, 1, 1, 2},  {2, 1, 3, 1},   {9, 3, 4, 2},
                               {33, 8, 8, 3}, {40, 40, 7, 4}, {37, 5, 32, 5}};

template <typename T>
void CheckSpecial() {
  using R = Real<T>;
  using Matrix = BandMatrix<T>;
  const R largest = std::numeric_limits<R>::max(), least = std::numeric_limits<R>::min();
  for (const ChaseCase& c : kSome) {
    const Matrix normal = Matrix::Normal(c);
    auto entry = [&](int64_t i, int64_t j) { return normal.a[i + j * c.n]; };
    Check(c, Matrix(c.n, c.b), "zero");
    Check(c, Matrix::Of(c, [&](int64_t i, int64_t j) { return i == j ? entry(i, j) : T(0); }),
          "diagonal");
    Check(c, Matrix::Of(c, [&](int64_t i, int64_t j) { return i < j + 2 ? entry(i, j) : T(0); }),
          "tridiagonal");
    Check(c, Matrix::Of(c, [&](int64_t i, int64_t j) { return i == j + c.b ? T(1) : T(0); }),
          "far diagonal");
    Check(c, Matrix::Of(c, [&](int64_t i, int64_t j) { return i == j ? T(1) : R(1e-6) * T(1); }),
          "identity and a little");
    Check(c, Matrix::Normal(c, largest / R(1e8)), "huge");
    Check(c, Matrix::Normal(c, least * R(1e8)), "tiny");
    Check(c,
          Matrix::Of(c,
                     [&](int64_t i, int64_t j) {
                       return entry(i, j) *
                              std::pow(R(10), R((i + j) % 5 - 2) * (sizeof(R) == 8 ? 70 : 7));
                     }),
          "of all sizes");
    Check(c,
          Matrix::Of(
              c, [&](int64_t i, int64_t j) { return entry(i, j) * std::pow(R(0.5), R(i + j)); }),
          "graded");
  }
}

TEST(Special) {
#define JAXMG_CHECK(T) CheckSpecial<T>();
  JAXMG_FOR_EACH_DTYPE(JAXMG_CHECK)
#undef JAXMG_CHECK
}

// A real tridiagonal matrix is unchanged.
TEST(TridiagonalMatricesAreUnchanged) {
  const ChaseCase c = {20, 4, 5, 2};
  const auto matrix = BandMatrix<double>::Of(c, [](int64_t i, int64_t j) {
    return i == j ? 1.0 + i : i == j + 1 ? -2.0 - i : 0.0;
  });
  const ChaseResult<double> chased = Run(c, matrix);
  for (int64_t i = 0; i < c.n; ++i) EXPECT(chased.d[0][i] == 1.0 + i);
  for (int64_t i = 0; i + 1 < c.n; ++i) EXPECT(chased.e[0][i] == -3.0 - i);
}

// Results don't depend on ranks or bundles. Groups change only how Q is applied.
TEST(ResultsDoNotDependOnRanks) {
  using T = std::complex<double>;
  const ChaseCase one = {61, 6, 8, 1};
  const BandMatrix<T> matrix = BandMatrix<T>::Normal(one);
  const ChaseResult<T> expected = Run(one, matrix);
  EXPECT(Run(one, matrix).q == expected.q);
  for (int64_t group : {1, 8, 20, 100}) {
    for (int ranks : {1, 2, 5}) {
      for (int64_t bundle : {1, 9, 30}) {
        const ChaseCase c = {61, 6, group, ranks, bundle};
        const ChaseResult<T> chased = Run(c, matrix);
        EXPECT(chased.d[0] == expected.d[0] && chased.e[0] == expected.e[0]) << Describe(c);
        EXPECT(group != 8 || chased.q == expected.q) << Describe(c);
      }
    }
  }
}

TEST(OnConcurrentStreams) {
  Tuning tuning;
  tuning.resident_bytes = 1;
  const DeviceMaker make = [&](int) { return NewAsyncDevice(NewHostDevice(), tuning); };
  for (const ChaseCase& c :
       {ChaseCase{30, 3, 4, 3}, {41, 8, 8, 2, 16}, {65, 5, 3, 5}, {70, 4, 9, 1}}) {
    Check(c, BandMatrix<double>::Normal(c), "threads", make);
    Check(c, BandMatrix<std::complex<float>>::Normal(c), "threads", make);
  }
}

TEST(EveryAccessIsOrdered) {
  for (const ChaseCase& c :
       {ChaseCase{30, 3, 4, 3}, {24, 8, 4, 2, 8}, {33, 5, 3, 5}, {20, 4, 3, 1}}) {
    const BandMatrix<double> matrix = BandMatrix<double>::Normal(c);
    for (bool vectors : {false, true}) {
      Recording recording(c.ranks);
      Run(c, matrix, vectors,
          [&](int rank) { return NewRecordingDevice(NewHostDevice(), Tuning(), recording, rank); });
      const std::string race = recording.FirstRace();
      EXPECT(race.empty()) << Describe(c) << ": " << race;
    }
  }
}

}  // namespace
}  // namespace jaxmg
