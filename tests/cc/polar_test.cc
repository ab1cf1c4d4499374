// The polar decomposition, from the caller's rows of A to the rows of U and H.
#include "xla_ffi/engine/svd/polar.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/matrix_problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
struct Factors {
  Dense<T> u, h;
  int32_t status = -7;
};

template <typename T>
Factors<T> Decompose(const Dense<T>& a, const Case& c, bool hermitian = true,
                     bool in_double = false) {
  const int64_t n = c.n, block = (n + c.ranks - 1) / c.ranks + c.extra_rows;
  std::vector<std::vector<T>> u(c.ranks), h(c.ranks, std::vector<T>(block * n, NaN<T>()));
  std::vector<int32_t> status(c.ranks, -7);
  const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    u[rank] = RowsOf(a, n, block, rank);
    const Operand<T> operand = {n, n, block, c.tile, u[rank].data(), &status[rank]};
    return PolarRoutine<T>(context, operand, in_double, hermitian ? h[rank].data() : nullptr);
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (const int32_t one : status) EXPECT(one == status[0]);
  return {Whole(u, n, n), Whole(h, n, n), status[0]};
}

// Checks to rounding that U has orthonormal columns, that H is Hermitian with the singular values
// as its eigenvalues, and that A is U H. `scale` is A's 2-norm.
template <typename T>
void CheckFactors(const Dense<T>& a, const Factors<T>& factors, int64_t n, double scale,
                  const std::string& name) {
  const double unit = kEps<T> * std::sqrt(static_cast<double>(n));
  EXPECT(factors.status == 0) << name << ": status " << factors.status;
  const double departure = Distance(Times(factors.u, factors.u, n, true), Identity<T>(n));
  EXPECT(departure <= 30 * unit) << name << ": U^H U - I is " << departure / unit << " units";
  if (scale == 0) scale = 1;
  Dense<T> scaled = a, h = factors.h;
  for (T& x : scaled) x /= static_cast<Real<T>>(scale);
  for (T& x : h) x /= static_cast<Real<T>>(scale);
  const double residual = Distance(Times(factors.u, h, n), scaled);
  EXPECT(residual <= 50 * unit) << name << ": A - U H is " << residual / unit << " units";
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) EXPECT(h[i * n + j] == Conj(h[j * n + i])) << name;
  }
}

// Checks that the smallest eigenvalue of H is at most a few roundings below zero.
template <typename T>
void CheckSemidefinite(Dense<T> h, int64_t n, const std::string& name) {
  std::vector<Real<T>> w(n);
  int32_t info = 0;
  const auto device = NewHostDevice();
  EXPECT(device->solver<T>().Syevd(Stream::kMain, false, n, h.data(), n, w.data(), &info).ok());
  const double unit = kEps<T> * std::sqrt(static_cast<double>(n)) * std::max<double>(w[n - 1], 1);
  EXPECT(w[0] >= -20 * unit) << name << ": an eigenvalue of H is " << w[0] / unit << " units";
}

// Orders without divisors, tiles that leave an overflow, ranks without rows, and padding.
const Case kShapes[] = {{1, 1, 0},  {2, 1, 0},  {9, 1, 2},  {40, 1, 0},    {1, 3, 0},
                        {7, 2, 3},  {24, 2, 0}, {23, 3, 2}, {21, 3, 5, 2}, {30, 4, 4},
                        {37, 4, 3}, {5, 8, 1},  {33, 8, 2}};

template <typename T>
void CheckAll() {
  for (const Case& c : kShapes) {
    for (const std::string kind : kKinds) {
      const auto s = SingularValues<T>(kind, c.n);
      const Dense<T> a = WithValues<T>(s, c.n, 3);
      const std::string name = kind + ", " + TextOf(c);
      const Factors<T> factors = Decompose(a, c);
      CheckFactors(a, factors, c.n, s[0], name);
      CheckSemidefinite(factors.h, c.n, name);
      const Factors<T> alone = Decompose(a, c, /*hermitian=*/false);
      EXPECT(std::memcmp(alone.u.data(), factors.u.data(), c.n * c.n * sizeof(T)) == 0)
          << name << ": U depends on whether H is computed";
    }
  }
}
TEST(FactorsOfFloat32) { CheckAll<float>(); }
TEST(FactorsOfFloat64) { CheckAll<double>(); }
TEST(FactorsOfComplex64) { CheckAll<std::complex<float>>(); }
TEST(FactorsOfComplex128) { CheckAll<std::complex<double>>(); }

// Condition numbers that lead to each kind of step: series, inverses, and QR.
TEST(FactorsOfEveryCondition) {
  for (const Case& c : {Case{40, 1, 0}, Case{40, 3, 5}}) {
    for (const double condition : {1.0, 1.001, 1.5, 5.0, 100.0, 1e3, 1e5, 1e9, 1e12, 1e15}) {
      std::vector<double> s(c.n);
      for (int64_t i = 0; i < c.n; ++i) {
        s[i] = std::pow(condition, -static_cast<double>(i) / static_cast<double>(c.n - 1));
      }
      const auto a = WithValues<double>(s, c.n, 5);
      CheckFactors(a, Decompose(a, c), c.n, 1, "condition " + std::to_string(condition));
    }
  }
}

template <typename T>
void CheckScales() {
  using R = Real<T>;
  const Case c = {20, 3, 4};
  const auto s = SingularValues<T>("even", c.n);
  const Dense<T> a = WithValues<T>(s, c.n, 7);
  const Dense<T> u = Decompose(a, c).u;
  constexpr int kMost = std::numeric_limits<R>::max_exponent;
  for (const int exponent : {-kMost + 40, -kMost / 2, kMost / 2, kMost - 2}) {
    Dense<T> scaled = a;
    for (T& x : scaled) x *= std::ldexp(R(1), exponent);
    const Factors<T> factors = Decompose(scaled, c);
    EXPECT(Distance(factors.u, u) == 0) << "U of A 2^" << exponent;
    CheckFactors(scaled, factors, c.n, std::ldexp(1.0, exponent),
                 "A 2^" + std::to_string(exponent));
  }
}
TEST(TinyAndHugeMatrices) {
  CheckScales<float>();
  CheckScales<double>();
  CheckScales<std::complex<float>>();
  CheckScales<std::complex<double>>();
}

TEST(WhatIsNotFiniteGivesNaN) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Case& c : {Case{12, 1, 0}, Case{13, 4, 3}}) {
    for (const double value : {NaN<double>(), infinity, -infinity}) {
      for (const int64_t at : {int64_t{0}, c.n * c.n - 1}) {
        for (const bool hermitian : {false, true}) {
          auto a = WithValues<double>(SingularValues<double>("even", c.n), c.n, 9);
          a[at] = value;
          const Factors<double> factors = Decompose(a, c, hermitian);
          EXPECT(factors.status == kNotFinite) << factors.status;
          auto is_nan = [](double x) { return std::isnan(x); };
          EXPECT(std::all_of(factors.u.begin(), factors.u.end(), is_nan));
          EXPECT(std::all_of(factors.h.begin(), factors.h.end(), is_nan));
        }
      }
    }
  }
}

// U of an ill-conditioned matrix is accurate to rounding; in single precision it would lose six
// digits.
template <typename T, typename W>
void CheckInDouble() {
  for (const Case& c : {Case{40, 1, 0}, Case{33, 4, 3}}) {
    std::vector<double> s(c.n);
    for (int64_t i = 0; i < c.n; ++i) s[i] = std::pow(1e-6, i / static_cast<double>(c.n - 1));
    const Dense<T> a = WithValues<T>(s, c.n, 11);
    const Dense<W> wide(a.begin(), a.end());
    const Dense<W> exact = Decompose(wide, c).u;
    for (const bool hermitian : {false, true}) {
      const Factors<T> factors = Decompose(a, c, hermitian, /*in_double=*/true);
      const Dense<W> u(factors.u.begin(), factors.u.end());
      EXPECT(Distance(u, exact) <= kEps<T> * std::sqrt(static_cast<double>(c.n)))
          << Distance(u, exact);
      if (hermitian) CheckFactors(a, factors, c.n, 1, "in double");
    }
  }
}
TEST(SinglePrecisionInDouble) {
  CheckInDouble<float, double>();
  CheckInDouble<std::complex<float>, std::complex<double>>();
}

// The attribute has no effect if the dtype is already double.
TEST(DoublePrecisionStaysAsItIs) {
  const Case c = {15, 2, 4};
  const auto a = WithValues<double>(SingularValues<double>("even", c.n), c.n, 13);
  EXPECT(Decompose(a, c, true, true).u == Decompose(a, c, true, false).u);
}

TEST(ResultsDoNotDependOnStreams) {
  using Z = std::complex<double>;
  for (const Case& c : {Case{21, 1, 4}, Case{30, 3, 4}, Case{22, 4, 3}}) {
    for (const std::string kind : {"graded", "deficient"}) {
      const auto a = WithValues<Z>(SingularValues<Z>(kind, c.n), c.n, 15);
      for (const Tuning& tuning : {LikeGpu(), Tuning()}) {
        Factors<Z> factors[2];
        for (const bool concurrent : {false, true}) {
          make_device = [&](int) -> std::unique_ptr<Device> {
            if (concurrent) return NewAsyncDevice(NewHostDevice(), tuning);
            return std::make_unique<TunedHost>(tuning);
          };
          factors[concurrent] = Decompose(a, c);
        }
        make_device = OnHost;
        EXPECT(factors[0].u == factors[1].u && factors[0].h == factors[1].h) << kind << TextOf(c);
        CheckFactors(a, factors[0], c.n, 1, kind + ", " + TextOf(c));
      }
    }
  }
}

// Events order every two accesses to the same memory of which at least one writes.
TEST(EveryAccessIsOrdered) {
  for (const Case& c : {Case{21, 1, 4}, Case{30, 3, 4}, Case{22, 4, 3}}) {
    for (const std::string kind : {"even", "graded", "deficient"}) {
      const auto a = WithValues<double>(SingularValues<double>(kind, c.n), c.n, 15);
      for (const Tuning& tuning : {LikeGpu(), LikeGpu(0), NewHostDevice()->tuning()}) {
        Recording recording(c.ranks);
        make_device = [&](int rank) {
          return NewRecordingDevice(NewHostDevice(), tuning, recording, rank);
        };
        Decompose(a, c);
        make_device = OnHost;
        const std::string race = recording.FirstRace();
        EXPECT(race.empty()) << kind << ", " << TextOf(c) << ": " << race;
      }
    }
  }
}

// A rank that runs out of memory fails the call on all ranks.
TEST(NoMemoryOnOneRank) {
  const auto outcomes = RunRanks(3, [&](const RankContext& context) -> Status {
    std::vector<double> a(4 * 12, 1.0);
    NoMemory none(context.device);
    Device& device = context.comm.rank() == 1 ? none : context.device;
    return PolarRoutine<double>({device, context.comm}, {12, 12, 4, 0, a.data(), nullptr}, false,
                                nullptr);
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.code() == Code::kResourceExhausted);
}

TEST(WeightsMapTheIntervalNearToOne) {
  for (const double low : {1e-9, 1e-4, 0.1, 0.5, 0.9, 0.98}) {
    const Weights w = WeightsOf(low);
    EXPECT(std::abs(w.a + w.b - 1 - w.c) <= 1e-12 * w.c);
    const double reached = low * (w.a + w.b * low * low) / (1 + w.c * low * low);
    for (int i = 0; i <= 100; ++i) {
      const double x = low + (1 - low) * i / 100;
      const double image = x * (w.a + w.b * x * x) / (1 + w.c * x * x);
      EXPECT(image >= reached * (1 - 1e-9) && image <= 1 + 1e-9) << low << " " << x;
    }
  }
}

}  // namespace
}  // namespace jaxmg
