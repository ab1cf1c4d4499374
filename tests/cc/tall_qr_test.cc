// QR of tall matrices, distributed by rows, on the host and on devices with streams.
#include "xla_ffi/engine/qr/tall/tall_qr.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/tall_problem.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/qr/whole_qr.h"

namespace jaxmg {
namespace {

using namespace testing;
using Shape = TallShape;

// Whether one rank factors the matrix for all ranks (whole_qr.h), whatever its size.
bool on_one = false;

// The results of a call: Q of all ranks, and R, Q^H b and the powers, which are equal on all ranks.
template <typename T>
struct Results {
  Dense<T> q, r, c;
  int32_t power;
  std::vector<int32_t> powers;
};

template <typename T>
bool SameBits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

// Factors `a`, whose last rows are `below`, with the right-hand sides b.
template <typename T>
Results<T> Factor(const Shape& s, const Dense<T>& a, const Dense<T>& b, const DeviceMaker& make) {
  const int64_t n = s.n, block = (s.m + s.ranks - 1) / s.ranks + s.extra_rows;
  const int64_t nrhs = std::max<int64_t>(s.nrhs, 0);
  std::vector<std::vector<T>> rows(s.ranks, std::vector<T>(block * n)), q(s.ranks), r(s.ranks),
      right(s.ranks, std::vector<T>(block * nrhs)), c(s.ranks);
  std::vector<std::vector<int32_t>> powers(s.ranks, std::vector<int32_t>(1 + nrhs, 77));
  for (int64_t i = 0; i < s.m; ++i) {
    std::copy_n(&a.at(i, 0), n, &rows[i / block][i % block * n]);
    if (nrhs > 0) std::copy_n(&b.at(i, 0), nrhs, &right[i / block][i % block * nrhs]);
  }
  const std::vector<T> below(a.data.begin() + s.m * n, a.data.end());
  for (int rank = 0; rank < s.ranks; ++rank) {
    q[rank].assign(s.with_q ? block * n : 0, NaN<T>());
    r[rank].assign(n * n, NaN<T>());
    c[rank].assign(n * nrhs, NaN<T>());
  }
  const auto before = rows;
  const auto outcomes = RunRanks(
      s.ranks,
      [&](const RankContext& context) {
        const int rank = context.comm.rank();
        const TallQrProblem<T> problem = {{n, block, s.further, nrhs, s.nrhs >= 0, s.with_q},
                                          rows[rank].data(),
                                          right[rank].data(),
                                          below.data(),
                                          s.with_q ? q[rank].data() : nullptr,
                                          r[rank].data(),
                                          c[rank].data(),
                                          powers[rank].data(),
                                          powers[rank].data() + 1};
        return on_one ? WholeQrRoutine<T>(context, problem) : TallQrRoutine<T>(context, problem);
      },
      kPatience, make);
  Results<T> results = {Dense<T>(s.m, s.with_q ? n : 0), Dense<T>(n, n), Dense<T>(n, nrhs), 0, {}};
  for (int rank = 0; rank < s.ranks; ++rank) {
    EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
    EXPECT(SameBits(rows[rank], before[rank])) << s.name() << "A has changed";
    EXPECT(SameBits(r[rank], r[0])) << s.name() << "ranks' R differ";
    EXPECT(SameBits(c[rank], c[0])) << s.name() << "ranks' Q^H b differ";
    EXPECT(SameBits(powers[rank], powers[0])) << s.name() << "ranks' powers differ";
    for (int64_t i = rank * block; s.with_q && i < std::min(s.m, (rank + 1) * block); ++i) {
      std::copy_n(&q[rank][i % block * n], n, &results.q.at(i, 0));
    }
  }
  results.r.data = r[0];
  results.c.data = c[0];
  results.power = s.nrhs >= 0 ? powers[0][0] : 0;
  results.powers.assign(powers[0].begin() + 1, powers[0].end());
  return results;
}

template <typename T>
void CheckR(const std::string& name, const Dense<T>& r) {
  for (int64_t i = 0; i < r.rows; ++i) {
    EXPECT(std::real(r.at(i, i)) >= 0 && std::imag(r.at(i, i)) == 0)
        << name << "R's diagonal has " << r.at(i, i);
    for (int64_t j = 0; j < i; ++j) EXPECT(r.at(i, j) == T(0)) << name << "below the diagonal";
  }
}

// Checks to rounding, column by column: Q orthonormal, A = Q R, R^H R = A^H A, R^H (Q^H b) = A^H b.
template <typename T>
void Check(const std::string& name, const Shape& s, Dense<T> a, Dense<T> b,
           const Results<T>& found) {
  const Real<T> unit = 40 * kEps<T> * std::sqrt(static_cast<Real<T>>(s.n * (s.m + s.further)));
  for (T& x : a.data) x *= std::ldexp(Real<T>(1), -found.power);
  CheckR(name, found.r);
  const Dense<T> gram = AdjointProduct(a, a), square = AdjointProduct(found.r, found.r);
  for (int64_t i = 0; i < s.n; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      const Real<T> error = std::abs(gram.at(i, j) - square.at(i, j));
      EXPECT(error <= unit * Length(a, i) * Length(a, j))
          << name << "R^H R(" << i << ", " << j << ") is off by " << error;
    }
  }
  if (s.with_q && s.further == 0) {
    const Dense<T> product = AdjointProduct(found.q, found.q);
    for (int64_t i = 0; i < s.n; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        const Real<T> error = std::abs(product.at(i, j) - (i == j ? T(1) : T(0)));
        EXPECT(error <= unit) << name << "Q^H Q(" << i << ", " << j << ") is off by " << error;
      }
    }
  }
  for (int64_t j = 0; s.with_q && j < s.n; ++j) {
    Real<T> square_of_rest = 0;
    for (int64_t i = 0; i < s.m; ++i) {
      T rest = a.at(i, j);
      for (int64_t k = 0; k <= j; ++k) rest -= found.q.at(i, k) * found.r.at(k, j);
      square_of_rest += std::norm(rest);
    }
    const Real<T> error = std::sqrt(square_of_rest);
    EXPECT(error <= unit * Length(a, j)) << name << "A - Q R, column " << j << ": " << error;
  }
  if (s.nrhs < 0) return;
  for (int64_t r = 0; r < s.nrhs; ++r) {
    for (int64_t i = 0; i < b.rows; ++i) b.at(i, r) *= std::ldexp(Real<T>(1), -found.powers[r]);
  }
  const Dense<T> expected = AdjointProduct(a, b), product = AdjointProduct(found.r, found.c);
  for (int64_t i = 0; i < s.n; ++i) {
    for (int64_t r = 0; r < s.nrhs; ++r) {
      const Real<T> error = std::abs(expected.at(i, r) - product.at(i, r));
      EXPECT(error <= unit * Length(a, i) * Length(b, r))
          << name << "R^H c(" << i << ", " << r << ") is off by " << error;
      EXPECT(Length(found.c, r) <= (1 + unit) * Length(b, r)) << name << "c is too long";
    }
  }
}

template <typename T>
Dense<T> RightHandSides(const Shape& s) {
  Dense<T> b = Normal<T>(s.m + s.further, std::max<int64_t>(s.nrhs, 0), 5);
  std::fill(b.data.begin() + s.m * b.columns, b.data.end(), T(0));
  return b;
}

const Shape kShapes[] = {
    {1, 1, 1},
    {1, 1, 3},
    {7, 3, 2},
    {13, 5, 3},
    {17, 4, 4},
    {9, 9, 1},
    {40, 7, 4},
    {23, 6, 2, 6},
    {11, 6, 3, 2, 3},
    {6, 5, 4},
    {5, 2, 4},
    {40, 9, 2, 0, 1},
    {40, 9, 2, 0, 35},
    {31, 8, 3, 0, 2, false},
    {64, 8, 4},
    {64, 8, 4, 0, 0, false},
    {26, 5, 2, 5, 4, false},
    {30, 6, 1, 0, 40, false},
    {30, 6, 1, 0, -1, false},
    {12, 3, 3, 0, -1, false, 2},
    {19, 4, 2, 4, -1, false},
};

Tuning InBlocks(bool on_one) {
  Tuning tuning = LikeGpu();
  tuning.usual_tile = 6;
  tuning.qr.small_on_one = on_one;
  return tuning;
}

std::unique_ptr<Device> OnThreads(int) { return NewAsyncDevice(NewHostDevice(), InBlocks(false)); }

template <typename T>
void CheckShapes() {
  const DeviceMaker makers[] = {
      OnHost, [](int) { return std::make_unique<TunedHost>(InBlocks(false)); },
      [](int) { return std::make_unique<TunedHost>(InBlocks(true)); }, OnThreads};
  for (const Shape& s : kShapes) {
    for (const Named<T>& kind : Kinds<T>()) {
      const Dense<T> a = kind.make(s.m + s.further, s.n);
      const Dense<T> b = RightHandSides<T>(s);
      for (const DeviceMaker& make : makers) {
        Check(s.name() + kind.name + " ", s, a, b, Factor(s, a, b, make));
      }
    }
  }
}

TEST(RightToRoundingFloat32) { CheckShapes<float>(); }
TEST(RightToRoundingFloat64) { CheckShapes<double>(); }
TEST(RightToRoundingComplex64) { CheckShapes<std::complex<float>>(); }
TEST(RightToRoundingComplex128) { CheckShapes<std::complex<double>>(); }

template <typename T>
void CheckOnOne() {
  on_one = true;
  for (const bool with_q : {true, false}) {
    for (Shape s : {Shape{1, 1, 1}, {1, 1, 3}, {12, 12, 1}, {14, 9, 3}, {5, 5, 4}, {40, 3, 2}}) {
      s.nrhs = -1;
      s.with_q = with_q;
      const Dense<T> b = RightHandSides<T>(s);
      for (const Named<T>& kind : Kinds<T>()) {
        const Dense<T> a = kind.make(s.m, s.n);
        Check(s.name() + kind.name + " ", s, a, b, Factor(s, a, b, OnHost));
      }
      Dense<T> a = Normal<T>(s.m, s.n);
      a.at(s.m - 1, 0) = NaN<T>();
      const Results<T> found = Factor(s, a, b, OnHost);
      for (const T& x : found.q.data) EXPECT(std::isnan(std::real(x))) << s.name() << "Q has " << x;
      for (int64_t i = 0; i < s.n; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          const T x = found.r.at(i, j);
          EXPECT(i > j ? x == T(0) : std::isnan(std::real(x))) << s.name() << "R has " << x;
        }
      }
    }
  }
  on_one = false;
}

TEST(OneRankFactorsForAll) {
  CheckOnOne<float>();
  CheckOnOne<double>();
  CheckOnOne<std::complex<float>>();
  CheckOnOne<std::complex<double>>();
}

// Counts the Cholesky factorizations and Householder QRs of a call, which show the algorithms it
// has tried.
TEST(EachAlgorithmGoesAsFarAsItShould) {
  auto tried = [](const Shape& s, const Dense<double>& a) {
    Recording recording(s.ranks);
    const Dense<double> b = RightHandSides<double>(s);
    Factor(s, a, b, [&](int rank) {
      return NewRecordingDevice(NewHostDevice(), InBlocks(false), recording, rank);
    });
    int64_t cholesky = 0, householder = 0;
    for (const Operation& operation : recording.operations()) {
      if (operation.lane / kNumStreams != 0) continue;
      cholesky += operation.text.rfind("potrf", 0) == 0;
      householder += operation.text.rfind("qr ", 0) == 0;
    }
    return std::make_pair(cholesky, householder);
  };
  const Shape s = {60, 6, 2}, system = {60, 6, 2, 0, 2, false};
  using Counts = std::pair<int64_t, int64_t>;
  for (const auto& [condition, expected] :
       {std::pair{2.0, Counts{2, 0}}, {1e6, {2, 0}}, {1e11, {4, 0}}, {1e13, {4, 0}}}) {
    const Counts counts = tried(s, OfCondition<double>(s.m, s.n, condition));
    // The first factorization fails early for some of the matrices.
    EXPECT(counts == expected || (condition > 1e9 && counts == Counts{5, 0}))
        << condition << ": " << counts.first << " " << counts.second;
  }
  EXPECT(tried(s, Dense<double>(s.m, s.n)).second == 2);
  EXPECT(tried(system, OfCondition<double>(s.m, s.n, 2)) == Counts(1, 0));
  EXPECT(tried(system, OfCondition<double>(s.m, s.n, 1e3)) == Counts(2, 0));
}

// Errors of x are proportional to the condition number, not to its square, with the corrected
// seminormal equations as with Q. b has the direction with the largest error.
TEST(SeminormalEquationsAreAsExactAsQ) {
  const Shape shape = {90, 60, 2, 0, 1, false};
  const Dense<double> u = Orthonormal<double>(90, 60), v = Orthonormal<double>(60, 60);
  Dense<double> a(90, 60), b(90, 1);
  for (int64_t i = 0; i < 90; ++i) {
    b.at(i, 0) = u.at(i, 59);
    for (int64_t k = 0; k < 60; ++k) {
      const double s = k == 59 ? 1.0 / 24 : 1;
      for (int64_t j = 0; j < 60; ++j) a.at(i, j) += s * u.at(i, k) * v.at(j, k);
    }
  }
  const Results<double> found = Factor(shape, a, b, OnHost);
  EXPECT(found.power == 0 && found.powers[0] == 0) << "it was scaled";
  std::vector<double> x(60);
  for (int64_t j = 59; j >= 0; --j) {
    x[j] = found.c.at(j, 0);
    for (int64_t k = j + 1; k < 60; ++k) x[j] -= found.r.at(j, k) * x[k];
    x[j] /= found.r.at(j, j);
  }
  double square = 0;
  for (int64_t i = 0; i < 90; ++i) {
    double rest = b.at(i, 0);
    for (int64_t j = 0; j < 60; ++j) rest -= a.at(i, j) * x[j];
    square += rest * rest;
  }
  EXPECT(std::sqrt(square) <= 60 * kEps<double>) << std::sqrt(square) / kEps<double>;
}

// Tests matrices whose squared entries overflow or underflow, also on a single rank.
template <typename T>
void CheckPowers() {
  const int far = std::numeric_limits<Real<T>>::max_exponent * 3 / 4;
  for (const int power : {far, -far, 5}) {
    for (const bool with_q : {false, true}) {
      const Shape s = {21, 4, 3, 4, 3, with_q};
      Dense<T> a = Normal<T>(s.m + s.further, s.n), b = RightHandSides<T>(s);
      for (T& x : a.data) x *= std::ldexp(Real<T>(1), power);
      for (int64_t i = 0; i < b.rows; ++i) b.at(i, 1) *= std::ldexp(Real<T>(1), -power);
      for (const DeviceMaker& make : {DeviceMaker(OnHost), DeviceMaker(OnThreads)}) {
        const Results<T> found = Factor(s, a, b, make);
        const bool scaled = with_q || power != 5;
        EXPECT(std::abs(found.power - (scaled ? power : 0)) <= 3) << found.power;
        EXPECT(std::abs(found.powers[1] + (scaled ? power : 0)) <= 3) << found.powers[1];
        EXPECT(std::abs(found.powers[0]) <= 3) << found.powers[0];
        Check(s.name() + "times 2^" + std::to_string(power) + " ", s, a, b, found);
      }
    }
  }
}

TEST(EntriesOfAnySize) {
  CheckPowers<float>();
  CheckPowers<double>();
  CheckPowers<std::complex<float>>();
  CheckPowers<std::complex<double>>();
}

template <typename T>
bool AllNaN(const Dense<T>& x, bool upper) {
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = upper ? i : 0; j < x.columns; ++j) {
      if (x.at(i, j) == x.at(i, j)) return false;
    }
  }
  return true;
}

TEST(NoNumberIsLeftOfAMatrixThatIsNotFinite) {
  const double kBad[] = {NaN<double>(), std::numeric_limits<double>::infinity()};
  for (const double bad : kBad) {
    for (const int64_t row : {0, 12, 20, 23}) {
      for (const Shape& s : {Shape{21, 4, 3, 4}, Shape{21, 4, 3, 4, 2, false}}) {
        Dense<double> a = Normal<double>(s.m + s.further, s.n);
        a.at(row, 1) = bad;
        for (const DeviceMaker& make : {DeviceMaker(OnHost), DeviceMaker(OnThreads)}) {
          const Results<double> found = Factor(s, a, RightHandSides<double>(s), make);
          EXPECT(AllNaN(found.q, false) && AllNaN(found.r, true) && AllNaN(found.c, false))
              << s.name() << "row " << row;
          for (int64_t i = 1; i < s.n; ++i) EXPECT(found.r.at(i, 0) == 0) << found.r.at(i, 0);
        }
      }
    }
  }
}

TEST(ARightHandSideThatIsNotFiniteSpoilsItselfAlone) {
  const Shape s = {21, 4, 3, 0, 3, false};
  const Dense<double> a = Normal<double>(s.m, s.n);
  Dense<double> b = RightHandSides<double>(s);
  b.at(9, 1) = NaN<double>();
  const Results<double> found = Factor(s, a, b, OnHost);
  for (int64_t i = 0; i < s.n; ++i) {
    EXPECT(std::isnan(found.c.at(i, 1))) << found.c.at(i, 1);
    EXPECT(std::isfinite(found.c.at(i, 0)) && std::isfinite(found.c.at(i, 2))) << i;
  }
}

TEST(StreamsWaitForEachOther) {
  using T = double;
  for (const Shape& s : kShapes) {
    for (const Named<T>& kind : Kinds<T>()) {
      for (const bool on_one : {false, true}) {
        Recording recording(s.ranks);
        const Dense<T> a = kind.make(s.m + s.further, s.n);
        Factor(s, a, RightHandSides<T>(s), [&](int rank) {
          return NewRecordingDevice(NewHostDevice(), InBlocks(on_one), recording, rank);
        });
        const std::string race = recording.FirstRace();
        EXPECT(race.empty()) << s.name() << kind.name << ": " << race;
      }
    }
  }
}

TEST(RunningOutOfMemoryIsAnErrorOnAllRanks) {
  const Shape s = {21, 4, 3};
  for (const bool whole : {false, true}) {
    WholeMatricesSetting() = whole;
    const auto host = NewHostDevice();
    std::vector<Status> outcomes;
    const Dense<double> a = Normal<double>(s.m, s.n);
    std::vector<double> rows = a.data;
    outcomes = RunRanks(
        s.ranks,
        [&](const RankContext& context) {
          std::vector<double> q(28), r(16);
          int32_t power = 0;
          return TallQrRoutine<double>(context, {{4, 7, 0, 0, false, true},
                                                 rows.data() + 28 * context.comm.rank(),
                                                 nullptr,
                                                 nullptr,
                                                 q.data(),
                                                 r.data(),
                                                 nullptr,
                                                 &power,
                                                 nullptr});
        },
        kPatience,
        [&](int rank) -> std::unique_ptr<Device> {
          if (rank == 1) return std::make_unique<NoMemory>(*host);
          return NewHostDevice();
        });
    for (const Status& outcome : outcomes) {
      EXPECT(outcome.code() == Code::kResourceExhausted) << outcome.message();
    }
  }
  WholeMatricesSetting() = true;
}

}  // namespace
}  // namespace jaxmg
