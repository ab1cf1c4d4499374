// The kept Cholesky factor: one factorization, then every operation with the factor, on the host
// and on devices with streams.
#include "xla_ffi/engine/cholesky/factor.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;

const Case kCases[] = {
    {1, 1, 0},     {1, 3, 1},  {2, 2, 1},  {5, 8, 2},  {7, 2, 3},   {16, 4, 4},
    {17, 4, 2},    {30, 5, 4}, {40, 1, 7}, {48, 2, 8}, {50, 1, 0},  {33, 3, 5, 2},
    {61, 4, 2, 1}, {64, 3, 2}, {63, 7, 3}, {97, 3, 0}, {90, 2, 13}, {68, 4, 1},
};

// A rank's part of a factor, and the other results of the factorization.
template <typename T>
struct Part {
  std::vector<T> overflow, x;
  std::vector<Real<T>> diagonal;
  Real<T> log_det = -1;
  int32_t status = -1;
};

template <typename T>
class Factors {
 public:
  Factors(const Case& c, const DeviceMaker& make)
      : c_(c), make_(make), problem(c), parts(c.ranks), b(c.n * kCount) {
    std::mt19937_64 random(5);
    for (T& value : b) value = Random<T>(random);
    const Tuning tuning = make(0)->tuning();
    const PotrfSpace<T> space({c.n, c.n, problem.block, c.tile}, {c.ranks, 0, tuning});
    tile_ = space.tiles.width();
    for (Part<T>& part : parts) {
      if (space.tiles.has_overflow()) part.overflow.resize(c.n * tile_);
      part.diagonal.resize(c.n);
    }
  }

  using Program = std::function<Status(const RankContext&, const Operand<T>&, Part<T>&)>;
  void Run(const Program& program) {
    const auto outcomes = RunRanks(
        c_.ranks,
        [&](const RankContext& context) {
          const int rank = context.comm.rank();
          Operand<T> operand = problem.operand(rank, tile_, &parts[rank].status);
          if (!parts[rank].overflow.empty()) operand.overflow = parts[rank].overflow.data();
          return program(context, operand, parts[rank]);
        },
        kPatience, make_);
    for (int rank = 0; rank < c_.ranks; ++rank) {
      EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
    }
  }

  void Factor() {
    Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      return PotrfRoutine<T>(context, operand, &part.log_det);
    });
  }

  // Applies an operation to `x`, which all ranks have.
  std::vector<T> Apply(jaxmg::Apply apply, const std::vector<T>& x) {
    const auto factor = problem.blocks;
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      part.x.assign(x.size(), NaN<T>());
      return ApplyRoutine<T>(context, operand, apply, kCount, part.x.data(), x.data());
    });
    for (const Part<T>& part : parts) EXPECT(part.x == parts[0].x) << name() << ": ranks differ";
    for (int rank = 0; rank < c_.ranks; ++rank) {  // compares bits, because NaN differs from itself
      EXPECT(std::memcmp(factor[rank].data(), problem.blocks[rank].data(),
                         factor[rank].size() * sizeof(T)) == 0)
          << name() << ": the factor has changed";
    }
    return parts[0].x;
  }

  // Applies an operation to a matrix (n x n, row-major) that is distributed by rows.
  std::vector<T> SolveRows(bool inverse, const std::vector<T>& matrix) {
    const int64_t n = c_.n, block = problem.block;
    std::vector<T> padded(c_.ranks * block * n);
    std::copy(matrix.begin(), matrix.end(), padded.begin());
    std::vector<T> solved(padded.size(), NaN<T>());
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>&) {
      const int64_t begin = context.comm.rank() * block * n;
      return SolveRowsRoutine<T>(context, operand, inverse, &solved[begin], &padded[begin]);
    });
    solved.resize(n * n);
    return solved;
  }

  // Returns A x; x is row-major.
  std::vector<T> Product(const std::vector<T>& x) const {
    std::vector<T> product(x.size());
    for (int64_t i = 0; i < c_.n; ++i) {
      for (int64_t j = 0; j < c_.n; ++j) {
        for (int64_t r = 0; r < kCount; ++r) {
          product[i * kCount + r] += problem.a[i * c_.n + j] * x[j * kCount + r];
        }
      }
    }
    return product;
  }

  std::string name() const {
    return "n " + std::to_string(c_.n) + " ranks " + std::to_string(c_.ranks) + " tile " +
           std::to_string(c_.tile);
  }

  static constexpr int64_t kCount = 3;

 private:
  const Case c_;
  const DeviceMaker make_;
  int64_t tile_;

 public:
  Problem<T> problem;
  std::vector<Part<T>> parts;
  std::vector<T> b;
};

template <typename T>
Real<T> Distance(const std::vector<T>& x, const std::vector<T>& y) {
  Real<T> difference = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += std::norm(x[i] - y[i]);
    size += std::norm(y[i]);
  }
  return std::sqrt(difference / size);
}

// Checks that A L^-H is L and that L L^-1 is the identity.
template <typename T>
void CheckRows(Factors<T>& factors, int64_t n, Real<T> bound) {
  const std::vector<T> lower = factors.SolveRows(false, factors.problem.a);
  const std::vector<T> one = factors.SolveRows(true, lower);
  std::vector<T> identity(n * n);
  Real<T> above = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    identity[i * n + i] = 1;
    EXPECT(std::real(lower[i * n + i]) > 0) << factors.name();
    for (int64_t j = 0; j < n; ++j) {
      (j > i ? above : size) += std::norm(lower[i * n + j]);
    }
  }
  EXPECT(std::sqrt(above / size) <= bound) << factors.name();
  EXPECT(Distance(one, identity) <= bound) << factors.name() << " " << Distance(one, identity);
}

template <typename T>
void CheckFactor(const Case& c, const DeviceMaker& make) {
  Factors<T> factors(c, make);
  const std::vector<T>& b = factors.b;
  const Real<T> bound = 20 * c.n * kEps<T>;  // the matrices are well conditioned
  factors.Factor();
  CheckRows(factors, c.n, bound);
  const auto made = factors.problem.blocks;
  for (const Part<T>& part : factors.parts) {
    EXPECT(part.status == 0 && part.log_det == factors.parts[0].log_det) << factors.name();
  }
  const Real<T> log_det = factors.parts[0].log_det;
  // Solves in one step and in two.
  const std::vector<T> x = factors.Apply(Apply::kSolve, b);
  EXPECT(Distance(factors.Product(x), b) <= bound) << factors.name();
  const std::vector<T> half = factors.Apply(Apply::kSolveL, b);
  EXPECT(factors.Apply(Apply::kSolveLH, half) == x) << factors.name();
  // Products with the factor invert the solves.
  EXPECT(Distance(factors.Apply(Apply::kMultiplyL, half), b) <= bound) << factors.name();
  const std::vector<T> back = factors.Apply(Apply::kMultiplyLH, x);
  EXPECT(Distance(back, half) <= bound) << factors.name();
  // The factor's own results.
  factors.Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
    return DiagonalRoutine<T>(context, operand, part.diagonal.data());
  });
  Real<T> sum = 0;
  for (Real<T> value : factors.parts[0].diagonal) sum += 2 * std::log(value);
  EXPECT(std::abs(sum - log_det) <= bound * (1 + std::abs(log_det))) << factors.name();
  for (const Part<T>& part : factors.parts) {
    EXPECT(part.diagonal == factors.parts[0].diagonal) << factors.name();
  }
  auto move = [&](bool inverse) {
    factors.Run([&](const RankContext& context, const Operand<T>& operand, Part<T>&) {
      return MoveFactorRoutine<T>(context, operand, inverse);
    });
  };
  move(/*inverse=*/true);
  Real<T> error = 0;
  const Problem<T>& u = factors.problem;
  for (int64_t i = 0; i < c.n; ++i) {
    for (int64_t j = i; j < c.n; ++j) {
      T product = -u.a[i * c.n + j];
      for (int64_t k = 0; k <= i; ++k) product += Conj(u.block_at(k, i)) * u.block_at(k, j);
      error += std::norm(product);
    }
  }
  EXPECT(std::sqrt(error) <= bound * u.norm()) << factors.name() << " " << std::sqrt(error);
  for (Part<T>& part : factors.parts) {  // restores the factor from U only
    std::fill(part.overflow.begin(), part.overflow.end(), NaN<T>());
  }
  move(/*inverse=*/false);
  EXPECT(factors.Apply(Apply::kSolve, b) == x) << factors.name() << ": moved there and back";
  factors.problem.blocks = made;
  // The inverse.
  factors.Run([](const RankContext& context, const Operand<T>& operand, Part<T>&) {
    return InvertRoutine<T>(context, operand);
  });
  Real<T> residual = 0;
  for (int64_t i = 0; i < c.n; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      T product = i == j ? -1 : 0;
      for (int64_t k = 0; k < c.n; ++k) product += u.a[i * c.n + k] * u.block_at(k, j);
      residual += std::norm(product);
      EXPECT(u.block_at(i, j) == Conj(u.block_at(j, i))) << factors.name();
    }
  }
  EXPECT(std::sqrt(residual) <= 5 * bound) << factors.name() << " " << std::sqrt(residual);
}

template <typename Check>
void ForEachCase(const Check& check) {
  for (const Case& c : kCases) check(c);
}

template <typename T>
void CheckOnHost() {
  ForEachCase([](const Case& c) { CheckFactor<T>(c, OnHost); });
}

template <typename T>
void CheckLikeGpu() {
  Tuning by_substitution = LikeGpu(), whole = LikeGpu();
  by_substitution.cholesky.inverse_order = 0;
  whole.cholesky.whole_order = 60;  // one rank factors in a single tile but solves in several
  whole.usual_tile = 11;
  std::vector<Tuning> tunings = {LikeGpu()};
  if (kIsComplex<T>) {  // real dtypes use the same code, without conjugates
    tunings.push_back(by_substitution);
    tunings.push_back(whole);
  }
  for (const Tuning& tuning : tunings) {
    ForEachCase([&](const Case& c) {
      CheckFactor<T>(c, [&](int) { return std::make_unique<TunedHost>(tuning); });
    });
  }
}

#define JAXMG_TEST_DTYPES(Name, Check) \
  TEST(Name) {                         \
    Check<float>();                    \
    Check<double>();                   \
    Check<std::complex<float>>();      \
    Check<std::complex<double>>();     \
  }
JAXMG_TEST_DTYPES(EveryOperationWithAFactor, CheckOnHost)
JAXMG_TEST_DTYPES(EveryOperationWithTheTuningOfGpus, CheckLikeGpu)

TEST(StreamsWaitForEachOther) {
  for (const Tuning& tuning : {LikeGpu(), NewHostDevice()->tuning()}) {
    ForEachCase([&](const Case& c) {
      if (c.n > 70) return;
      CheckFactor<double>(c, [&](int) { return NewAsyncDevice(NewHostDevice(), tuning); });
    });
  }
}

// On the host, results have the same bits as in potrs, which substitutes during the factorization.
TEST(SolutionsEqualThoseOfPotrs) {
  for (const Case& c : kCases) {
    Factors<double> factors(c, OnHost);
    factors.Factor();
    const std::vector<double> x = factors.Apply(Apply::kSolve, factors.b);
    Factors<double> fused(c, OnHost);
    fused.Run([&](const RankContext& context, const Operand<double>& operand, Part<double>& part) {
      part.x = fused.b;
      Operand<double> own = operand;
      own.overflow = nullptr;
      return PotrsRoutine<double>(context, own, {fused.kCount, part.x.data(), &part.log_det});
    });
    EXPECT(Distance(x, fused.parts[0].x) <= 20 * c.n * kEps<double>) << factors.name();
    EXPECT(factors.parts[0].log_det == fused.parts[0].log_det) << factors.name();
  }
}

// All bits of a factor are reproducible, including unused elements, because factors are saved.
TEST(FactorsAreReproducible) {
  for (const Case& c : kCases) {
    std::vector<std::vector<double>> parts[2];
    for (auto& bits : parts) {
      Factors<double> factors(c, [](int) { return std::make_unique<TunedHost>(LikeGpu()); });
      for (auto& block : factors.problem.blocks) {  // replaces NaN, which differs from itself
        for (double& value : block) value = std::isnan(value) ? 0 : value;
      }
      for (auto& part : factors.parts) {
        for (double& value : part.overflow) value = static_cast<double>(&bits - parts) + 3;
      }
      factors.Factor();
      bits = factors.problem.blocks;
      for (const auto& part : factors.parts) bits.push_back(part.overflow);
    }
    EXPECT(parts[0] == parts[1]) << "n " << c.n << " ranks " << c.ranks;
  }
}

TEST(ResultsOfAFailedFactorAreNaN) {
  for (int ranks : {1, 2, 4}) {
    for (int64_t bad : {0, 12, 29}) {
      Factors<double> factors({30, ranks, 4},
                              [](int) { return std::make_unique<TunedHost>(LikeGpu()); });
      factors.problem.a[bad * 30 + bad] = -1;
      factors.problem.Scatter();
      factors.Factor();
      for (const Part<double>& part : factors.parts) {
        EXPECT(part.status == bad + 1) << part.status;
        EXPECT(std::isnan(part.log_det));
        for (double value : part.overflow) EXPECT(std::isnan(value));
      }
      for (const auto& block : factors.problem.blocks) {
        for (double value : block) EXPECT(std::isnan(value));
      }
      factors.Run([&](const RankContext& context, const Operand<double>& operand, Part<double>& p) {
        p.x = factors.b;
        return ApplyRoutine<double>(context, operand, Apply::kSolve, factors.kCount, p.x.data());
      });
      for (const Part<double>& part : factors.parts) {
        EXPECT(part.status == 0);  // the status of this call, not of the factorization
        for (double value : part.x) EXPECT(std::isnan(value));
      }
    }
  }
}

// The residual is as small as with substitution, even if a diagonal block is as ill-conditioned as
// a Cholesky factorization allows. A product with the inverse only would have a residual 10^5 times
// larger.
TEST(SolvingWithInversesIsAsStableAsSubstitution) {
  constexpr int64_t kN = 64;
  Tuning tuning = LikeGpu();
  tuning.cholesky.inverse_order = 32;
  Factors<double> factors({kN, 2, 32}, [&](int) { return std::make_unique<TunedHost>(tuning); });
  // A smooth kernel, exp(-(i - j)^2 / 2 l^2), whose condition number is at least 1e15, plus a small
  // ridge.
  Problem<double>& problem = factors.problem;
  for (int64_t i = 0; i < kN; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      const double distance = static_cast<double>(i - j) / 6;
      problem.a[i * kN + j] = std::exp(-distance * distance / 2) + (i == j ? 1e-12 : 0);
    }
  }
  problem.Scatter();
  factors.Factor();
  EXPECT(factors.parts[0].status == 0);
  const std::vector<double> x = factors.Apply(Apply::kSolve, factors.b);
  const std::vector<double> back = factors.Product(x);
  double residual = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    residual += std::norm(back[i] - factors.b[i]);
    size += std::norm(x[i]);
  }
  EXPECT(std::sqrt(residual / size) <= 10 * kEps<double> * problem.norm())
      << std::sqrt(residual / size) / problem.norm();
}

}  // namespace
}  // namespace jaxmg
