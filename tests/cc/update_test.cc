// Updates of a kept Cholesky factor, on the host and on devices with streams.
#include "xla_ffi/engine/cholesky/update.h"

#include <cmath>
#include <complex>
#include <functional>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;

const Case kCases[] = {
    {1, 1, 0},  {1, 3, 1},  {2, 2, 1},  {7, 2, 3},     {17, 4, 2}, {30, 5, 4},  {40, 1, 7},
    {48, 2, 8}, {50, 1, 0}, {64, 3, 2}, {33, 3, 5, 2}, {97, 3, 0}, {90, 2, 13},
};

// A factor on several ranks, and V.
template <typename T>
class Factors {
 public:
  Factors(const Case& c, int64_t k, const DeviceMaker& make)
      : problem(c),
        status(c.ranks, -1),
        log_det(c.ranks, -1),
        c_(c),
        k_(k),
        make_(make),
        v(c.n * k) {
    std::mt19937_64 random(7);
    for (T& value : v) value = Random<T>(random);
    const PotrfSpace<T> space({c.n, c.n, problem.block, c.tile}, {c.ranks, 0, make(0)->tuning()});
    tile_ = space.tiles.width();
    overflow_.resize(c.ranks);
    if (!space.tiles.has_overflow()) return;
    for (auto& part : overflow_) part.resize(c.n * tile_);
  }

  void Factor() {
    Run([&](const RankContext& context, const Operand<T>& operand) {
      return PotrfRoutine<T>(context, operand, &log_det[context.comm.rank()]);
    });
  }

  // Updates the factor: in place, or to other memory, in which nothing may be read.
  void Update(bool downdate, bool apart) {
    const auto old = problem.blocks, old_overflow = overflow_;
    if (apart) {
      for (auto* all : {&problem.blocks, &overflow_}) {
        for (auto& part : *all) std::fill(part.begin(), part.end(), NaN<T>());
      }
    }
    Run([&](const RankContext& context, Operand<T> operand) {
      const int rank = context.comm.rank();
      if (apart) operand.source = old[rank].data();
      return UpdateRoutine<T>(context, operand, apart ? old_overflow[rank].data() : nullptr,
                              downdate, k_, v.data(), &log_det[rank]);
    });
  }

  // The distance of L'^H L' from `a`, relative to a's norm.
  Real<T> Error(const std::vector<T>& a) {
    const auto factor = problem.blocks;
    Run([&](const RankContext& context, const Operand<T>& operand) {
      return MoveFactorRoutine<T>(context, operand, /*inverse=*/true);
    });
    const int64_t n = c_.n;
    Real<T> error = 0, size = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) {
        T product = -a[i * n + j];
        for (int64_t l = 0; l <= i; ++l) {
          product += Conj(problem.block_at(l, i)) * problem.block_at(l, j);
        }
        error += std::norm(product);
        size += std::norm(a[i * n + j]);
      }
    }
    problem.blocks = factor;
    return std::sqrt(error / size);
  }

  // Solves A x = b with one right-hand side of ones, on rank 0.
  std::vector<T> Solve() {
    std::vector<std::vector<T>> x(c_.ranks, std::vector<T>(c_.n, T(1)));
    Run([&](const RankContext& context, const Operand<T>& operand) {
      return ApplyRoutine<T>(context, operand, Apply::kSolve, 1, x[context.comm.rank()].data());
    });
    return x[0];
  }

  // a + sign V V^H.
  std::vector<T> Updated(const std::vector<T>& a, Real<T> sign) const {
    std::vector<T> result = a;
    for (int64_t i = 0; i < c_.n; ++i) {
      for (int64_t j = 0; j < c_.n; ++j) {
        for (int64_t l = 0; l < k_; ++l) {
          result[i * c_.n + j] += sign * v[i * k_ + l] * Conj(v[j * k_ + l]);
        }
      }
    }
    return result;
  }

  std::string name() const {
    return "n " + std::to_string(c_.n) + " ranks " + std::to_string(c_.ranks) + " tile " +
           std::to_string(c_.tile) + " k " + std::to_string(k_);
  }

  using Program = std::function<Status(const RankContext&, const Operand<T>&)>;
  void Run(const Program& program) {
    const auto outcomes = RunRanks(
        c_.ranks,
        [&](const RankContext& context) {
          const int rank = context.comm.rank();
          Operand<T> operand = problem.operand(rank, tile_, &status[rank]);
          if (!overflow_[rank].empty()) operand.overflow = overflow_[rank].data();
          return program(context, operand);
        },
        kPatience, make_);
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  }

  Problem<T> problem;
  std::vector<int32_t> status;
  std::vector<Real<T>> log_det;

 private:
  const Case c_;
  const int64_t k_;
  const DeviceMaker make_;
  int64_t tile_;
  std::vector<std::vector<T>> overflow_;

 public:
  std::vector<T> v;
};

template <typename T>
void CheckUpdate(const Case& c, int64_t k, const DeviceMaker& make) {
  Factors<T> factors(c, k, make);
  const Real<T> bound = 20 * (c.n + k) * kEps<T>;
  const std::vector<T> a = factors.problem.a, updated = factors.Updated(a, 1);
  factors.Factor();
  const Real<T> log_det = factors.log_det[0];
  factors.Update(/*downdate=*/false, /*apart=*/true);
  for (int32_t status : factors.status) EXPECT(status == 0) << factors.name() << " " << status;
  const Real<T> error = factors.Error(updated);
  EXPECT(error <= bound) << factors.name() << " update " << error;
  // The inverses of diagonal blocks are those of the new factor.
  const std::vector<T> x = factors.Solve();
  Real<T> residual = 0, size = 0;
  for (int64_t i = 0; i < c.n; ++i) {
    T sum = -1;
    for (int64_t j = 0; j < c.n; ++j) sum += updated[i * c.n + j] * x[j];
    residual += std::norm(sum);
    size += 1;
  }
  EXPECT(std::sqrt(residual / size) <= 10 * bound * (1 + k)) << factors.name();
  EXPECT(k == 0 || factors.log_det[0] > log_det) << factors.name();
  factors.Update(/*downdate=*/true, /*apart=*/false);
  for (int32_t status : factors.status) EXPECT(status == 0) << factors.name() << " " << status;
  const Real<T> after = factors.Error(a) / (1 + k);
  EXPECT(after <= bound) << factors.name() << " downdate " << after;
  EXPECT(std::abs(factors.log_det[0] - log_det) <= 10 * bound * (1 + k) * (1 + std::abs(log_det)))
      << factors.name();
}

template <typename T>
void CheckAll(const DeviceMaker& make) {
  for (const Case& c : kCases) {
    for (int64_t k : {1, 2, 7}) CheckUpdate<T>(c, k, make);
  }
  CheckUpdate<T>({30, 2, 8}, 0, make);
  CheckUpdate<T>({30, 2, 8}, 300, make);
}

#define JAXMG_TEST_DTYPES(Name, make)     \
  TEST(Name) {                            \
    CheckAll<float>(make);                \
    CheckAll<double>(make);               \
    CheckAll<std::complex<float>>(make);  \
    CheckAll<std::complex<double>>(make); \
  }
std::unique_ptr<Device> TunedLikeGpu(int) { return std::make_unique<TunedHost>(LikeGpu()); }
JAXMG_TEST_DTYPES(UpdatesAndDowndates, OnHost)
JAXMG_TEST_DTYPES(UpdatesWithTheTuningOfGpus, TunedLikeGpu)

TEST(StreamsWaitForEachOther) {
  for (const Case& c : kCases) {
    if (c.n > 70) continue;
    CheckUpdate<double>(c, 2, [](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); });
  }
}

TEST(ADowndateThatIsNotDefinite) {
  for (int ranks : {1, 2, 4}) {
    for (int64_t bad : {0, 12, 29}) {
      Factors<double> factors({30, ranks, 4}, 1, TunedLikeGpu);
      std::fill(factors.v.begin(), factors.v.end(), 0);
      factors.v[bad] = 2 * std::sqrt(factors.problem.a[bad * 30 + bad]);
      factors.Factor();
      factors.Update(/*downdate=*/true, /*apart=*/false);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT(factors.status[rank] == bad + 1) << factors.status[rank];
        EXPECT(std::isnan(factors.log_det[rank]));
      }
      for (const auto& block : factors.problem.blocks) {
        for (double value : block) EXPECT(std::isnan(value));
      }
    }
  }
}

// A smooth kernel with a small ridge: blocks of L are as ill-conditioned as a factorization allows,
// and the solution W of L W = V is large.
TEST(IllConditionedFactors) {
  constexpr int64_t kN = 64;
  for (const int64_t tile : {8, 32}) {
    Factors<double> factors({kN, 2, tile}, 3, OnHost);
    Problem<double>& problem = factors.problem;
    for (int64_t i = 0; i < kN; ++i) {
      for (int64_t j = 0; j < kN; ++j) {
        const double distance = static_cast<double>(i - j) / 6;
        problem.a[i * kN + j] = std::exp(-distance * distance / 2) + (i == j ? 1e-12 : 0);
      }
    }
    problem.Scatter();
    const std::vector<double> a = problem.a, updated = factors.Updated(a, 1);
    factors.Factor();
    factors.Update(/*downdate=*/false, /*apart=*/false);
    EXPECT(factors.status[0] == 0);
    double error = factors.Error(updated);
    EXPECT(error <= 2 * kN * kEps<double>) << "update " << error;
    // The downdate's result may be singular to working precision.
    Factors<double> other({kN, 2, tile}, 3, OnHost);
    other.v = factors.v;
    for (int64_t i = 0; i < kN * kN; ++i)
      other.problem.a[i] = updated[i] + (i % (kN + 1) ? 0 : 1e-6);
    const std::vector<double> before = other.Updated(other.problem.a, -1);
    other.problem.Scatter();
    other.Factor();
    other.Update(/*downdate=*/true, /*apart=*/false);
    EXPECT(other.status[0] == 0) << other.status[0];
    error = other.Error(before);
    EXPECT(error <= 200 * kN * kEps<double>) << "downdate " << error;
  }
}

}  // namespace
}  // namespace jaxmg
