// Kept LU factors: one factorization, then every operation with the factors. Also getri. On the
// host, with the tuning of GPUs, on an AsyncDevice and on a RecordingDevice.
#include "xla_ffi/engine/lu/lu_factor.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/general_problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/lu/getri.h"

namespace jaxmg {
namespace {

using namespace testing;

constexpr Op kOps[] = {Op::kNone, Op::kTrans, Op::kConjTrans};

// A is m x n.
struct Shape {
  int64_t m, n;
  int ranks;
  int64_t tile;
  int64_t extra_rows = 0;
};

// A rank's part of the factors, and the other results of the factorization.
template <typename T>
struct Part {
  std::vector<T> overflow, x, diagonal;
  std::vector<int32_t> pivots;
  Real<T> log_abs = 7;
  T sign = 7;
  int32_t status = 7;
};

template <typename T>
bool SameBits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

template <typename T>
class Factors {
 public:
  Factors(const Shape& shape, const DeviceMaker& make)
      : shape_(shape),
        make_(make),
        problem(shape.m, shape.n, shape.ranks, shape.extra_rows),
        parts(shape.ranks) {
    const LuFactorSpace<T> space({shape.m, shape.n, problem.block, shape.tile},
                                 {shape.ranks, 0, make(0)->tuning()});
    tile_ = space.tiles.width();
    for (Part<T>& part : parts) {
      if (space.tiles.has_overflow()) part.overflow.assign(shape.n * tile_, NaN<T>());
      part.pivots.assign(count(), -1);
      part.diagonal.assign(count(), NaN<T>());
    }
  }

  int64_t count() const { return std::min(shape_.m, shape_.n); }
  int64_t tile() const { return tile_; }

  using Program = std::function<Status(const RankContext&, const Operand<T>&, Part<T>&)>;
  void Run(const Program& program) {
    const auto outcomes = RunRanks(
        shape_.ranks,
        [&](const RankContext& context) {
          const int rank = context.comm.rank();
          Operand<T> operand = problem.operand(rank, tile_, &parts[rank].status);
          if (!parts[rank].overflow.empty()) operand.overflow = parts[rank].overflow.data();
          return program(context, operand, parts[rank]);
        },
        kPatience, make_);
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  }

  void Factor() {
    Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      return LuFactorRoutine<T>(context, operand, part.pivots.data(), &part.log_abs, &part.sign);
    });
    for (const Part<T>& part : parts) {
      EXPECT(part.pivots == parts[0].pivots && part.status == parts[0].status) << name();
    }
  }

  std::vector<T> Apply(Op op, const std::vector<T>& b) {
    const auto factors = problem.blocks;
    const int64_t nrhs = static_cast<int64_t>(b.size()) / shape_.n;
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      part.x.assign(b.size(), NaN<T>());
      return LuApplyRoutine<T>(context, operand, part.pivots.data(), op, nrhs, part.x.data(),
                               b.data());
    });
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      EXPECT(SameBits(parts[rank].x, parts[0].x)) << name() << "ranks differ";
      EXPECT(SameBits(factors[rank], problem.blocks[rank])) << name() << "the factors have changed";
    }
    return parts[0].x;
  }

  // Returns B op(A)^-1. Each rank holds `rows` rows of B.
  std::vector<T> SolveRows(Op op, int64_t rows, const std::vector<T>& b) {
    std::vector<T> x(b.size(), NaN<T>());
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      const int64_t begin = context.comm.rank() * rows * shape_.n;
      return LuSolveRowsRoutine<T>(context, operand, part.pivots.data(), op, rows, &x[begin],
                                   &b[begin]);
    });
    return x;
  }

  void Move(bool to_rows) {
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>&) {
      return MoveLuRoutine<T>(context, operand, to_rows);
    });
  }

  void Invert() {
    Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      return LuInvertRoutine<T>(context, operand, part.pivots.data());
    });
  }

  std::string name() const { return problem.name() + "tile " + std::to_string(shape_.tile) + ": "; }

 private:
  const Shape shape_;
  const DeviceMaker make_;
  int64_t tile_;

 public:
  GeneralProblem<T> problem;
  std::vector<Part<T>> parts;
};

// Overwrites M (rows x columns, column-major) with packed L and U and returns the pivots. Uses the
// unblocked right-looking algorithm.
template <typename T>
std::vector<int32_t> FactorUnblocked(int64_t rows, int64_t columns, std::vector<T>& lu) {
  auto size = [](const T& x) { return std::abs(std::real(x)) + std::abs(std::imag(x)); };
  std::vector<int32_t> pivots;
  for (int64_t k = 0; k < std::min(rows, columns); ++k) {
    int64_t pivot = k;
    for (int64_t i = k; i < rows; ++i) {
      if (size(lu[k * rows + i]) > size(lu[k * rows + pivot])) pivot = i;
    }
    pivots.push_back(static_cast<int32_t>(pivot));
    for (int64_t j = 0; j < columns; ++j) std::swap(lu[j * rows + k], lu[j * rows + pivot]);
    for (int64_t i = k + 1; i < rows; ++i) lu[k * rows + i] /= lu[k * rows + k];
    for (int64_t j = k + 1; j < columns; ++j) {
      for (int64_t i = k + 1; i < rows; ++i)
        lu[j * rows + i] -= lu[k * rows + i] * lu[j * rows + k];
    }
  }
  return pivots;
}

// Returns |x - y| / |y|, because elements may be large if the factorization is ill-conditioned.
template <typename T>
Real<T> Distance(const std::vector<T>& x, const std::vector<T>& y) {
  Real<T> difference = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += std::norm(x[i] - y[i]);
    size += std::norm(y[i]);
  }
  return std::sqrt(difference / size);
}

template <typename T>
std::vector<T> RandomMatrix(int64_t count, int64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> x(count);
  for (T& value : x) value = Random<T>(random);
  return x;
}

// Returns |X A - I| in units of eps |X| |A|, in Frobenius norms.
template <typename T>
Real<T> InverseError(int64_t n, const std::vector<T>& x, const std::vector<T>& a) {
  std::vector<T> product = testing::Product(Op::kNone, n, x, a);
  Real<T> error = 0, sizes[2] = {0, 0};
  for (int64_t i = 0; i < n * n; ++i) {
    error += std::norm(product[i] - T(i % (n + 1) == 0 ? 1 : 0));
    sizes[0] += std::norm(x[i]);
    sizes[1] += std::norm(a[i]);
  }
  return std::sqrt(error) / (kEps<T> * std::sqrt(sizes[0]) * std::sqrt(sizes[1]));
}

// Checks the factors element by element against LAPACK's.
template <typename T>
void CheckFactors(Factors<T>& factors, const Shape& shape) {
  const int64_t m = shape.m, n = shape.n;
  const auto tiles = factors.problem.blocks;
  std::vector<T> expected = factors.problem.a;  // row-major m x n is M, column-major n x m
  const std::vector<int32_t> pivots = FactorUnblocked(n, m, expected);
  EXPECT(factors.parts[0].pivots == pivots) << factors.name() << "pivots";
  EXPECT(factors.parts[0].status == 0) << factors.name() << factors.parts[0].status;
  factors.Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
    return LuDiagonalRoutine<T>(context, operand, part.diagonal.data());
  });
  factors.Move(/*to_rows=*/true);
  const std::vector<T> rows = factors.problem.Rows();
  // A random matrix of this order usually has a condition number of a few hundred.
  EXPECT(Distance(rows, expected) <= 1e3 * kEps<T> * static_cast<Real<T>>(n + m))
      << factors.name() << "factors are off by " << Distance(rows, expected);
  for (const Part<T>& part : factors.parts) {
    for (int64_t i = 0; i < factors.count(); ++i) {
      EXPECT(part.diagonal[i] == rows[i * n + i]) << factors.name() << "diagonal " << i;
    }
  }
  // Restores the factors, to the same bits, from the rows only.
  for (Part<T>& part : factors.parts)
    std::fill(part.overflow.begin(), part.overflow.end(), NaN<T>());
  factors.Move(/*to_rows=*/false);
  factors.Move(/*to_rows=*/true);
  EXPECT(SameBits(rows, factors.problem.Rows())) << factors.name() << "there and back";
  factors.Move(/*to_rows=*/false);
}

// Checks all operations with the factors of a square matrix.
template <typename T>
void CheckSolutions(Factors<T>& factors, int64_t n, int ranks) {
  const std::vector<T>& a = factors.problem.a;
  for (Op op : kOps) {
    for (int64_t nrhs : {1, 3}) {
      const std::vector<T> b = RandomMatrix<T>(n * nrhs, 5);
      const std::vector<T> x = factors.Apply(op, b);
      const Real<T> error = BackwardError(op, n, a, x, b);
      EXPECT(error <= 5 * (n + 2)) << factors.name() << "op " << int(op) << ": " << error;
    }
    // Rows of X in X op(A) = B are solutions with op(A)^T, so A, op and b are transposed.
    const int64_t rows = 2;
    const std::vector<T> b = RandomMatrix<T>(ranks * rows * n, 6);
    const std::vector<T> x = factors.SolveRows(op, rows, b);
    std::vector<T> transposed_a(n * n), transposed_x(x.size()), transposed_b(b.size());
    const int64_t all = ranks * rows;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) transposed_a[j * n + i] = a[i * n + j];
      for (int64_t r = 0; r < all; ++r) {
        transposed_x[i * all + r] = x[r * n + i];
        transposed_b[i * all + r] = b[r * n + i];
      }
    }
    const Real<T> error = BackwardError(op, n, transposed_a, transposed_x, transposed_b);
    EXPECT(error <= 5 * (n + 2)) << factors.name() << "rows, op " << int(op) << ": " << error;
  }
  EXPECT(factors.SolveRows(Op::kNone, 0, {T(0)}).size() == 1);  // no rank has rows
}

template <typename T>
void CheckInverses(Factors<T>& factors, const Shape& shape, const DeviceMaker& make) {
  const int64_t n = shape.n;
  const std::vector<T>& a = factors.problem.a;
  factors.Invert();
  const std::vector<T> inverse = factors.problem.Rows();
  const Real<T> error = InverseError(n, inverse, a);
  EXPECT(error <= 20 * (n + 2)) << factors.name() << "inverse: " << error;
  Factors<T> fused(shape, make);
  fused.Run([](const RankContext& context, const Operand<T>& operand, Part<T>&) {
    Operand<T> own = operand;
    own.overflow = nullptr;
    return GetriRoutine<T>(context, own);
  });
  EXPECT(SameBits(fused.problem.Rows(), inverse)) << factors.name() << "getri differs";
  EXPECT(fused.parts[0].status == 0) << factors.name() << fused.parts[0].status;
}

template <typename T>
void Check(const Shape& shape, const DeviceMaker& make) {
  Factors<T> factors(shape, make);
  factors.Factor();
  CheckFactors(factors, shape);
  if (shape.m != shape.n) return;
  CheckSolutions(factors, shape.n, shape.ranks);
  CheckInverses(factors, shape, make);
}

DeviceMaker On(const Tuning& tuning) {
  return [tuning](int) { return std::make_unique<TunedHost>(tuning); };
}

DeviceMaker OnThreadsLikeGpus() {
  return [](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); };
}

const Shape kShapes[] = {
    {1, 1, 3, 1},      {17, 17, 4, 2}, {40, 40, 1, 7}, {33, 33, 3, 5, 2},
    {61, 61, 4, 2, 1}, {63, 63, 5, 9}, {48, 48, 2, 8}, {97, 97, 3, 0},
    {40, 13, 3, 4},    {50, 31, 1, 6}, {13, 40, 3, 4}, {29, 50, 4, 11},
    {61, 3, 2, 5, 3},  {3, 61, 2, 5},  {1, 20, 4, 1},  {20, 1, 4, 3},
};

// Checks each order in one dtype; gesv_test.py and lu_accuracy_test.py test the others.
template <typename T>
void CheckAll(int dtype) {
  for (int ranks : {1, 2, 3, 4, 5, 8}) {
    for (int64_t n = 1 + (dtype + ranks) % 4; n <= 40; n += 4) {
      Check<T>({n, n, ranks, 1 + n % 7, n % 3}, OnHost);
      if (n % 5 < 2) {
        Check<T>({n, n + ranks, ranks, 1 + n % 4, n % 2}, OnHost);
        Check<T>({n + 2 * ranks, n, ranks, 1 + n % 6}, OnHost);
      }
    }
  }
  Tuning at_once = LikeGpu();
  at_once.lu.right_hand_sides_at_once = 2;
  for (const Shape& shape : kShapes) {
    Check<T>(shape, OnHost);
    Check<T>(shape, On(LikeGpu()));
    if (shape.ranks == 1) Check<T>(shape, On(at_once));
  }
}

TEST(EveryOperationWithTheFactors) {
  CheckAll<float>(0);
  CheckAll<double>(1);
  CheckAll<std::complex<float>>(2);
  CheckAll<std::complex<double>>(3);
}

TEST(OneRankFactorsASingleTile) {
  Tuning tuning = LikeGpu();
  tuning.lu.whole_order = 60;
  tuning.usual_tile = 11;
  for (const Shape& shape : {Shape{40, 40, 1, 0}, {30, 50, 1, 0}, {50, 30, 1, 0}, {61, 61, 1, 0}}) {
    Check<double>(shape, On(tuning));
    Check<std::complex<float>>(shape, On(tuning));
  }
}

TEST(OneRankInvertsOutOfPlace) {
  Tuning tuning = LikeGpu();
  tuning.lu.whole_inverse_order = 41;
  tuning.usual_tile = 11;
  for (int64_t n : {1, 10, 40, 41, 42}) {
    Check<float>({n, n, 1, 0}, On(tuning));
    Check<double>({n, n, 1, 0}, On(tuning));
    Check<std::complex<float>>({n, n, 1, 7}, On(tuning));
    Check<std::complex<double>>({n, n, 1, 0}, On(tuning));
  }
}

TEST(OneRankInvertsForAllIfTheTuningSaysSo) {
  Tuning tuning = LikeGpu();
  tuning.gather_to_invert = 30;
  for (int ranks : {1, 2, 5}) {
    for (int64_t n : {1, 13, 30, 31}) {
      tuning.lu.whole_inverse_order = n == 13 ? 13 : 0;
      GeneralProblem<double> problem(n, n, ranks, 1);
      std::vector<int32_t> status(ranks, 7);
      const auto outcomes = RunRanks(
          ranks,
          [&](const RankContext& context) {
            const int rank = context.comm.rank();
            return GetriRoutine<double>(context, problem.operand(rank, 0, &status[rank]));
          },
          kPatience, On(tuning));
      for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
      for (int32_t info : status) EXPECT(info == 0);
      const double error = InverseError(n, problem.Rows(), problem.a);
      EXPECT(error <= 20 * static_cast<double>(n + 2)) << problem.name() << error;
    }
  }
}

TEST(OnConcurrentStreams) {
  for (const Shape& shape : kShapes) {
    if (std::max(shape.m, shape.n) > 64) continue;
    Check<double>(shape, OnThreadsLikeGpus());
  }
}

TEST(StreamsWaitForEachOther) {
  for (const Shape& shape : kShapes) {
    if (std::max(shape.m, shape.n) > 64) continue;
    Factors<double> factors(shape, On(LikeGpu()));
    auto run = [&](const char* what, const Factors<double>::Program& program) {
      Recording recording(shape.ranks);
      const auto outcomes = RunRanks(
          shape.ranks,
          [&](const RankContext& context) {
            const int rank = context.comm.rank();
            Part<double>& part = factors.parts[rank];
            Operand<double> operand = factors.problem.operand(rank, factors.tile(), &part.status);
            if (!part.overflow.empty()) operand.overflow = part.overflow.data();
            return program(context, operand, part);
          },
          kPatience,
          [&](int rank) {
            return NewRecordingDevice(NewHostDevice(), LikeGpu(), recording, rank);
          });
      for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
      const std::string race = recording.FirstRace();
      EXPECT(race.empty()) << factors.name() << what << ": " << race;
    };
    run("factor", [](const RankContext& context, const Operand<double>& operand, Part<double>& p) {
      return LuFactorRoutine<double>(context, operand, p.pivots.data(), &p.log_abs, &p.sign);
    });
    if (shape.m != shape.n) continue;
    const std::vector<double> b = RandomMatrix<double>(shape.n * 3, 5);
    for (Op op : kOps) {
      run("apply",
          [&](const RankContext& context, const Operand<double>& operand, Part<double>& p) {
            p.x = b;
            return LuApplyRoutine<double>(context, operand, p.pivots.data(), op, 3, p.x.data());
          });
      run("solve rows",
          [&](const RankContext& context, const Operand<double>& operand, Part<double>& p) {
            p.x = b;
            return LuSolveRowsRoutine<double>(context, operand, p.pivots.data(), op, 3, p.x.data());
          });
    }
    run("invert", [](const RankContext& context, const Operand<double>& operand, Part<double>& p) {
      return LuInvertRoutine<double>(context, operand, p.pivots.data());
    });
  }
}

TEST(FactorsOfASingularMatrixAreNotNaN) {
  for (int ranks : {1, 2, 4}) {
    for (int64_t zero : {0, 12, 29}) {
      Factors<double> factors({30, 30, ranks, 4}, OnHost);
      for (int64_t j = 0; j < 30; ++j) factors.problem.a[zero * 30 + j] = 0;
      factors.problem.Scatter();
      factors.Factor();
      for (const Part<double>& part : factors.parts) {
        EXPECT(part.status == zero + 1 && part.sign == 0) << part.status << " " << part.sign;
        EXPECT(part.log_abs == -std::numeric_limits<double>::infinity());
      }
      factors.Move(/*to_rows=*/true);
      for (double x : factors.problem.Rows()) EXPECT(std::isfinite(x));
      factors.problem.Scatter();
      factors.Run([](const RankContext& context, const Operand<double>& operand, Part<double>&) {
        Operand<double> own = operand;
        own.overflow = nullptr;
        return GetriRoutine<double>(context, own);
      });
      bool finite = true;
      for (double x : factors.problem.Rows()) finite = finite && std::isfinite(x);
      EXPECT(!finite && factors.parts[0].status == zero + 1) << factors.parts[0].status;
    }
  }
}

TEST(NaNInputHasAStatusAndNaNResults) {
  for (int ranks : {1, 2, 5}) {
    for (int64_t place : {0, 100, 13 * 13 - 1}) {
      Factors<double> factors({13, 13, ranks, 2}, OnHost);
      factors.problem.a[place] = NaN<double>();
      factors.problem.Scatter();
      factors.Factor();
      for (const Part<double>& part : factors.parts) {
        EXPECT(part.status == kNotFinite) << part.status;
        EXPECT(std::isnan(part.log_abs) && std::isnan(part.sign));
        for (double x : part.overflow) EXPECT(std::isnan(x));
        for (int32_t pivot : part.pivots) EXPECT(pivot >= 0 && pivot < 13) << pivot;
      }
      for (const auto& block : factors.problem.blocks) {
        for (double x : block) EXPECT(std::isnan(x));
      }
      for (double x : factors.Apply(Op::kTrans, RandomMatrix<double>(13, 1))) EXPECT(std::isnan(x));
      factors.problem.Scatter();
      factors.Run([](const RankContext& context, const Operand<double>& operand, Part<double>&) {
        Operand<double> own = operand;
        own.overflow = nullptr;
        return GetriRoutine<double>(context, own);
      });
      EXPECT(factors.parts[0].status == kNotFinite);
      for (double x : factors.problem.Rows()) EXPECT(std::isnan(x));
    }
  }
}

// A diagonal matrix, because elimination leaves the rest of it unchanged.
TEST(OneInfinityMakesAllOfTheInverseNaN) {
  for (int ranks : {1, 2, 5}) {
    GeneralProblem<double> problem(13, 13, ranks);
    for (int64_t i = 0; i < 13 * 13; ++i) problem.a[i] = i % 14 == 0 ? 2 : 0;
    problem.a[5 * 14] = std::numeric_limits<double>::infinity();
    problem.Scatter();
    std::vector<int32_t> status(ranks, 7);
    const auto outcomes = RunRanks(ranks, [&](const RankContext& context) {
      const int rank = context.comm.rank();
      return GetriRoutine<double>(context, problem.operand(rank, 2, &status[rank]));
    });
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
    for (int32_t info : status) EXPECT(info == kNotFinite) << info;
    for (double x : problem.Rows()) EXPECT(std::isnan(x)) << x;
  }
}

// All bits are reproducible, including unused elements, because factors are saved.
TEST(FactorsAreReproducible) {
  for (const Shape& shape : kShapes) {
    std::vector<std::vector<double>> saved[2];
    for (auto& blocks : saved) {
      Factors<double> factors(shape, On(LikeGpu()));
      for (auto& part : factors.parts) {
        for (double& x : part.overflow) x = static_cast<double>(&blocks - saved) + 3;
      }
      factors.Factor();
      blocks = factors.problem.blocks;
      for (const auto& part : factors.parts) blocks.push_back(part.overflow);
    }
    for (size_t i = 0; i < saved[0].size(); ++i) {
      EXPECT(SameBits(saved[0][i], saved[1][i])) << shape.m << " x " << shape.n;
    }
  }
}

}  // namespace
}  // namespace jaxmg
