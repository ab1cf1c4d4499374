// Kept factors of Hermitian and symmetric indefinite matrices: backward errors of the factorization
// and of solves, growth, the determinant and the inertia. On the host, with the tuning of GPUs, and
// on an AsyncDevice.
#include "xla_ffi/engine/ldl/ldl_factor.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/general_problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

struct Shape {
  int64_t n;
  int ranks;
  int64_t tile;
  bool hermitian = true;
  int64_t extra_rows = 0;
};

template <typename T>
T ConjIf(bool hermitian, const T& x) {
  return hermitian ? Conj(x) : x;
}

// Kinds of matrices.
enum Kind { kRandom, kSaddle, kSkewBlocks, kZero, kArrow, kGraded, kAlternating, kKinds };
const char* const kNames[] = {"random", "saddle", "skew blocks", "zero",
                              "arrow",  "graded", "alternating"};

// Returns an n x n matrix, row-major.
template <typename T>
std::vector<T> Indefinite(Kind kind, int64_t n, bool hermitian, int64_t seed) {
  std::mt19937_64 random(seed + n * 131);
  std::vector<T> a(n * n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i; j < n; ++j) {
      T value = Random<T>(random);
      if (i == j && hermitian) value = std::real(value);
      if (kind == kSaddle && i >= 2 * n / 3) value = 0;  // a KKT matrix has a zero block
      if (kind == kSkewBlocks && (i % 2 == 1 || j != i + 1)) value = 0;
      if (kind == kZero) value = 0;
      if (kind == kArrow && i != j && j != n - 1) value = 0;
      if (kind == kAlternating && i != j) value *= static_cast<Real<T>>(1e-3);
      if (kind == kAlternating && i == j) value = i % 2 == 0 ? 1 : -1;
      if (kind == kGraded) {
        value *= static_cast<Real<T>>(std::pow(10.0, -4.0 * static_cast<double>(i + j) / (2 * n)));
      }
      a[i * n + j] = value;
      a[j * n + i] = ConjIf(hermitian, value);
    }
  }
  return a;
}

template <typename T>
struct Part {
  std::vector<T> l, band, band_lu, x;
  std::vector<int32_t> pivots, band_pivots;
  int32_t inertia[3] = {7, 7, 7};
  Real<T> log_abs = 7;
  T sign = 7;
  int32_t status = 7;

  LdlParts<T> parts() { return {band.data(), band_lu.data(), pivots.data(), band_pivots.data()}; }
};

template <typename T>
bool SameBits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

template <typename T>
class Factor {
 public:
  Factor(const Shape& shape, const std::vector<T>& a, const DeviceMaker& make)
      : shape(shape),
        make_(make),
        tiles(LdlFactorSpace<T>({shape.n, shape.n, 0, shape.tile},
                                {shape.ranks, 0, make(0)->tuning()})
                  .tiles),
        problem(shape.n, shape.n, shape.ranks, shape.extra_rows),
        parts(shape.ranks),
        order(shape.n) {
    problem.a = a;
    problem.Scatter();
    std::iota(order.begin(), order.end(), 0);
    const int64_t n = shape.n, b = tiles.width();
    for (Part<T>& part : parts) {
      part.l.assign(n * tiles.block(), NaN<T>());
      part.band.assign(3 * b * n, NaN<T>());
      part.band_lu.assign(4 * b * n, NaN<T>());
      part.pivots.assign(n, -1);
      part.band_pivots.assign(n, -1);
    }
  }

  using Program = std::function<Status(const RankContext&, const Operand<T>&, Part<T>&)>;
  void Run(const Program& program) {
    const auto outcomes = RunRanks(
        shape.ranks,
        [&](const RankContext& context) {
          Part<T>& part = parts[context.comm.rank()];
          const Operand<T> operand = {shape.n,       shape.n,       tiles.block(),
                                      tiles.width(), part.l.data(), &part.status};
          return program(context, operand, part);
        },
        kPatience, make_);
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  }

  Program FactorProgram() {
    return [&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      const Columns<T> columns = {problem.blocks[context.comm.rank()].data(), problem.block};
      return LdlFactorRoutine<T>(context, operand, shape.hermitian, columns, order.data(),
                                 part.parts(), &part.log_abs, &part.sign);
    };
  }

  std::vector<T> Solve(const std::vector<T>& b, Op op = Op::kNone) {
    const int64_t nrhs = static_cast<int64_t>(b.size()) / shape.n;
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      part.x.assign(b.size(), NaN<T>());
      return LdlSolveRoutine<T>(context, operand, shape.hermitian, part.parts(), op, nrhs,
                                part.x.data(), b.data());
    });
    for (const Part<T>& part : parts) EXPECT(SameBits(part.x, parts[0].x)) << "ranks differ";
    return parts[0].x;
  }

  // L, column-major.
  std::vector<T> Whole() const {
    const int64_t n = shape.n;
    std::vector<T> l(n * n);
    for (int64_t k = 0; k < tiles.nonempty(); ++k) {
      const T* tile = parts[tiles.owner(k)].l.data() + tiles.slot(k) * tiles.width() * n;
      std::copy_n(tile, n * tiles.width(k), &l[tiles.offset(k) * n]);
    }
    return l;
  }
  // T, column-major.
  std::vector<T> Band() const {
    const int64_t n = shape.n, b = tiles.width();
    std::vector<T> t(n * n);
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = std::max<int64_t>((c / b - 1) * b, 0); i < std::min(n, (c / b + 2) * b);
           ++i) {
        t[c * n + i] = parts[0].band[c * 3 * b + i - (c / b - 1) * b];
      }
    }
    return t;
  }
  // The order of M's rows.
  std::vector<int64_t> Order() const {
    std::vector<int64_t> rows(shape.n);
    std::iota(rows.begin(), rows.end(), 0);
    for (int64_t i = 0; i < shape.n; ++i) std::swap(rows[i], rows[parts[0].pivots[i]]);
    return rows;
  }

  std::string name() const {
    return problem.name() + (shape.hermitian ? "Hermitian, tile " : "symmetric, tile ") +
           std::to_string(shape.tile) + ": ";
  }

  const Shape shape;
  const DeviceMaker make_;
  const Tiles tiles;
  GeneralProblem<T> problem;
  std::vector<Part<T>> parts;
  std::vector<int32_t> order;
};

// Returns x y, all n x n and column-major; with `adjoint` x y^*.
template <typename T>
std::vector<T> Times(int64_t n, const std::vector<T>& x, const std::vector<T>& y, bool adjoint,
                     bool hermitian) {
  std::vector<T> z(n * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < n; ++k) {
      const T factor = adjoint ? ConjIf(hermitian, y[k * n + j]) : y[j * n + k];
      for (int64_t i = 0; i < n; ++i) z[j * n + i] += x[k * n + i] * factor;
    }
  }
  return z;
}

template <typename T>
Real<T> Largest(const std::vector<T>& x) {
  Real<T> largest = 0;
  for (const T& value : x) {
    const Real<T> size = std::abs(value);
    largest = size <= largest ? largest : size;  // propagates NaN
  }
  return largest;
}

// Returns the absolute values.
template <typename T>
std::vector<T> Sizes(std::vector<T> x) {
  for (T& value : x) value = std::abs(value);
  return x;
}

// Checks P M P^* = L T L^* and the shapes of L and T.
template <typename T>
void CheckFactor(const Factor<T>& factor, const std::string& name) {
  const int64_t n = factor.shape.n, b = factor.tiles.width();
  const bool hermitian = factor.shape.hermitian;
  const std::vector<T> l = factor.Whole(), t = factor.Band();
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      const T value = l[j * n + i];
      const bool eye = i <= j || j < b;
      EXPECT(!eye || value == T(i == j ? 1 : 0)) << name << "L(" << i << ", " << j << ")";
      EXPECT(std::abs(value) <= Real<T>(1.5)) << name << "L(" << i << ", " << j << ")";
      EXPECT(std::abs(i - j) <= b || t[j * n + i] == T(0)) << name << "T(" << i << ", " << j << ")";
    }
  }
  for (const Part<T>& part : factor.parts) {
    EXPECT(part.pivots == factor.parts[0].pivots) << name << "pivots differ";
    EXPECT(part.band == factor.parts[0].band) << name << "T differs";
    EXPECT(part.status == factor.parts[0].status) << name << "statuses differ";
  }
  const std::vector<T> half = Times(n, l, t, false, hermitian);
  const std::vector<T> product = Times(n, half, l, true, hermitian);
  const std::vector<int64_t> order = factor.Order();
  std::vector<T> difference(n * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      // M = A^T, column-major, is A as it lies.
      difference[j * n + i] = product[j * n + i] - factor.problem.a[order[j] * n + order[i]];
    }
  }
  // The elements of the product are rounded as sums of this size.
  const std::vector<T> sizes =
      Times(n, Times(n, Sizes(l), Sizes(t), false, true), Sizes(l), true, true);
  const Real<T> size = Largest(sizes), error = Largest(difference);
  EXPECT(error <= 2 * static_cast<Real<T>>(n + 4) * kEps<T> * size)
      << name << "|P M P* - L T L*| is " << error << ", |L| |T| |L*| " << size;
  const Real<T> growth = Largest(t) / std::max(Largest(factor.problem.a), Real<T>(1e-30));
  EXPECT(growth < 200 || Largest(t) == 0) << name << "growth " << growth;
}

template <typename T>
void Check(Kind kind, const Shape& shape, const DeviceMaker& make) {
  const int64_t n = shape.n;
  const std::vector<T> a = Indefinite<T>(kind, n, shape.hermitian, shape.ranks + 7 * shape.tile);
  Factor<T> factor(shape, a, make);
  const std::string name = factor.name() + kNames[kind] + ": ";
  factor.Run(factor.FactorProgram());
  EXPECT(factor.problem.Rows() == a) << name << "A has changed";
  CheckFactor(factor, name);
  const bool regular = kind == kRandom || kind == kAlternating || kind == kArrow ||
                       (kind == kSkewBlocks && n % 2 == 0);
  if (regular && n > 0) {
    EXPECT(factor.parts[0].status == 0) << name << "status " << factor.parts[0].status;
    std::mt19937_64 random(5);
    for (int64_t nrhs : {1, 3}) {
      std::vector<T> b(n * nrhs);
      for (T& value : b) value = Random<T>(random);
      const Op op = nrhs == 1 ? Op::kNone : Op::kConjTrans;
      const std::vector<T> x = factor.Solve(b, op);
      const Real<T> error = BackwardError(op, n, a, x, b);
      EXPECT(error <= 20 * static_cast<Real<T>>(n + 2)) << name << "solve: " << error;
    }
  }
  if (kind == kZero && n > 0) {
    EXPECT(factor.parts[0].status == 1) << name << "status " << factor.parts[0].status;
    EXPECT(factor.parts[0].sign == T(0)) << name << "sign";
  }
  if (!shape.hermitian) return;
  factor.Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
    return LdlInertiaRoutine<T>(context, operand, part.parts(), part.inertia);
  });
  const auto* found = factor.parts[shape.ranks - 1].inertia;
  EXPECT(found[0] + found[1] + found[2] == n) << name << "inertia";
  int64_t expected[3] = {-1, -1, -1};
  if (kind == kSkewBlocks) {
    expected[0] = expected[1] = n / 2;
    expected[2] = n % 2;
  }
  if (kind == kZero) expected[0] = expected[1] = 0, expected[2] = n;
  if (kind == kAlternating) expected[0] = (n + 1) / 2, expected[1] = n / 2, expected[2] = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT(expected[i] == -1 || expected[i] == found[i])
        << name << "inertia " << found[0] << ", " << found[1] << ", " << found[2];
  }
  if (regular && n > 0) {
    // The sign of the determinant is that of the number of negative eigenvalues.
    EXPECT(found[2] == 0) << name << "zero eigenvalues: " << found[2];
    const T sign = factor.parts[0].sign;
    EXPECT(std::abs(sign - T(found[1] % 2 == 0 ? 1 : -1)) < Real<T>(1e-3)) << name << "sign";
  }
}

DeviceMaker On(const Tuning& tuning) {
  return [tuning](int) { return std::make_unique<TunedHost>(tuning); };
}

template <typename T>
void CheckAll(int dtype) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int64_t n = 0; n <= 40; ++n) {
      const int64_t tile = 1 + (n + ranks + dtype) % 8;
      const auto kind = static_cast<Kind>((n + 3 * ranks + dtype) % kKinds);
      for (bool hermitian : {true, false}) {
        Check<T>(kRandom, {n, ranks, tile, hermitian, n % 3}, OnHost);
        if (n > 0) Check<T>(kind, {n, ranks, 1 + (tile + 3) % 8, hermitian}, OnHost);
      }
    }
  }
}

TEST(EveryOrder) {
  CheckAll<float>(0);
  CheckAll<double>(1);
  CheckAll<std::complex<float>>(2);
  CheckAll<std::complex<double>>(3);
}

TEST(EveryKind) {
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const Shape& shape :
         {Shape{24, 1, 5}, {61, 3, 7}, {64, 2, 8}, {33, 4, 1}, {50, 1, 64}, {97, 2, 0}}) {
      Check<double>(static_cast<Kind>(kind), shape, OnHost);
      Check<std::complex<double>>(static_cast<Kind>(kind), shape, On(LikeGpu()));
      Shape symmetric = shape;
      symmetric.hermitian = false;
      Check<std::complex<double>>(static_cast<Kind>(kind), symmetric, OnHost);
    }
  }
}

// Returns the inertia of a diagonal matrix after a congruence that the test knows.
TEST(InertiaOfAKnownSpectrum) {
  for (int64_t n : {7, 20, 45}) {
    for (int64_t zeros : {0, 1, 3}) {
      // A = X D X^H with X unit lower triangular and small elements below.
      std::mt19937_64 random(n);
      std::vector<double> x(n * n), d(n), a(n * n);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) x[i * n + j] = Random<double>(random) / 4;
        x[i * n + i] = 1;
        d[i] = i < zeros ? 0 : i % 3 == 0 ? -1 : 2;
      }
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t k = 0; k < n; ++k) a[i * n + j] += x[i * n + k] * d[k] * x[j * n + k];
        }
      }
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) a[i * n + j] = a[j * n + i];
      }
      Factor<double> factor({n, 2, 3}, a, OnHost);
      factor.Run(factor.FactorProgram());
      factor.Run(
          [](const RankContext& context, const Operand<double>& operand, Part<double>& part) {
            return LdlInertiaRoutine<double>(context, operand, part.parts(), part.inertia);
          });
      const auto negative = std::count_if(d.begin(), d.end(), [](double v) { return v < 0; });
      for (const Part<double>& part : factor.parts) {
        EXPECT(part.inertia[2] == zeros) << "n " << n << ": " << part.inertia[2] << " of " << zeros;
        EXPECT(part.inertia[1] == negative) << "n " << n << ": " << part.inertia[1];
      }
    }
  }
}

// Tiles so wide that several threads count eigenvalues.
TEST(InertiaOnSeveralThreads) {
  for (Kind kind : {kRandom, kSaddle, kAlternating}) {
    Check<double>(kind, {201, 1, 90}, OnHost);
    Check<std::complex<float>>(kind, {130, 2, 65}, OnHost);
  }
}

TEST(NaNGivesAStatusAndNaN) {
  for (int64_t where : {0, 5, 23}) {
    std::vector<double> a = Indefinite<double>(kRandom, 24, true, 1);
    a[where * 24 + where] = NaN<double>();
    Factor<double> factor({24, 3, 4}, a, OnHost);
    factor.Run(factor.FactorProgram());
    for (const Part<double>& part : factor.parts) {
      EXPECT(part.status == kNotFinite) << part.status;
      EXPECT(std::isnan(part.log_abs) && std::isnan(part.band[0]) && std::isnan(part.l[0]));
    }
    const std::vector<double> x = factor.Solve(std::vector<double>(24, 1.0));
    for (double value : x) EXPECT(std::isnan(value));
  }
}

TEST(OnConcurrentStreams) {
  const DeviceMaker make = [](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); };
  for (const Shape& shape : {Shape{24, 1, 5}, {40, 3, 7}, {33, 4, 3}, {50, 2, 6}}) {
    Check<double>(kRandom, shape, make);
    Check<std::complex<float>>(kSaddle, shape, make);
  }
}

TEST(NoRaces) {
  for (const Shape& shape : {Shape{24, 1, 5}, {40, 3, 7}, {33, 4, 3}}) {
    const std::vector<double> a = Indefinite<double>(kRandom, shape.n, true, 1);
    Factor<double> factor(shape, a, OnHost);
    auto run = [&](const char* what, const Factor<double>::Program& program) {
      Recording recording(shape.ranks);
      const auto outcomes = RunRanks(
          shape.ranks,
          [&](const RankContext& context) {
            Part<double>& part = factor.parts[context.comm.rank()];
            const Operand<double> operand = {
                shape.n,       shape.n,     factor.tiles.block(), factor.tiles.width(),
                part.l.data(), &part.status};
            return program(context, operand, part);
          },
          kPatience,
          [&](int rank) {
            return NewRecordingDevice(NewHostDevice(), LikeGpu(), recording, rank);
          });
      for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
      const std::string race = recording.FirstRace();
      EXPECT(race.empty()) << factor.name() << what << ": " << race;
    };
    run("factor", factor.FactorProgram());
    run("solve", [&](const RankContext& context, const Operand<double>& operand, Part<double>& p) {
      p.x.assign(shape.n * 2, 1.0);
      return LdlSolveRoutine<double>(context, operand, true, p.parts(), Op::kNone, 2, p.x.data());
    });
  }
}

}  // namespace
}  // namespace jaxmg
