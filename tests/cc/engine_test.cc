// The rank programs, on threads, with textbook LAPACK: every dtype, many sizes, layouts and rank
// counts, matrices that are not positive definite, and ranks that fail.
#include <cmath>
#include <complex>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/async_device.h"
#include "tests/cc/ranks.h"
#include "tests/cc/reference_lapack.h"
#include "tests/cc/testing.h"
#include "xla_ffi/device/lapack.h"
#include "xla_ffi/engine/redistribute.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using testing::RunRanks;

struct Case {
  int64_t n;
  int ranks;
  int64_t tile;
  int64_t extra_rows = 0;  // padding on each rank beyond what n needs
};

const Case kCases[] = {
    {1, 1, 0},  {1, 3, 1},     {2, 2, 1},   {5, 8, 2},     {7, 2, 3},  {16, 4, 4},  {17, 4, 2},
    {30, 5, 4}, {33, 3, 5, 2}, {40, 16, 2}, {48, 2, 8},    {50, 1, 7}, {60, 2, 3},  {61, 4, 2, 1},
    {64, 3, 2}, {63, 7, 3},    {64, 4, 64}, {70, 6, 4, 1}, {97, 3, 0}, {90, 2, 13}, {150, 2, 75},
};

std::string Describe(const Case& c) {
  return "n " + std::to_string(c.n) + " ranks " + std::to_string(c.ranks) + " tile " +
         std::to_string(c.tile);
}

template <typename T>
T Random(std::mt19937_64& random) {
  std::normal_distribution<Real<T>> normal;
  if constexpr (kIsComplex<T>) {
    const Real<T> real = normal(random);
    return T(real, normal(random));
  } else {
    return normal(random);
  }
}

template <typename T>
T NaN() {
  return T(std::numeric_limits<Real<T>>::quiet_NaN());
}

// An n x n Hermitian matrix, row-major, and its blocks of rows with NaN wherever no routine may
// look: below the diagonal and in the padding.
template <typename T>
struct Problem {
  explicit Problem(const Case& c, bool definite = true)
      : n(c.n), block((c.n + c.ranks - 1) / c.ranks + c.extra_rows), ranks(c.ranks), a(n * n) {
    std::mt19937_64 random(n * 131 + ranks);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) {
        T value = Random<T>(random);
        if (i == j) value = std::real(value) + (definite ? 4 * std::sqrt(Real<T>(n)) + 4 : 0);
        a[i * n + j] = value;
        a[j * n + i] = Conj(value);
      }
    }
    Scatter();
  }

  void Scatter() {
    blocks.assign(ranks, std::vector<T>(block * n, NaN<T>()));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) blocks[i / block][(i % block) * n + j] = a[i * n + j];
    }
  }

  T block_at(int64_t i, int64_t j) const { return blocks[i / block][(i % block) * n + j]; }

  Operand<T> operand(int rank, int64_t tile, int32_t* status) {
    return {n, block, tile, blocks[rank].data(), status};
  }

  Real<T> norm() const {
    Real<T> sum = 0;
    for (const T& x : a) sum += std::norm(x);
    return std::sqrt(sum);
  }

  const int64_t n, block;
  const int ranks;
  std::vector<T> a;
  std::vector<std::vector<T>> blocks;
};

// Another device, of which subclasses change something.
class Wrapped : public Device {
 public:
  explicit Wrapped(Device& real) : real_(real) {}
  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    return real_.Allocate(bytes, buffer);
  }
  Status NewEvent(std::shared_ptr<Event>* event) override { return real_.NewEvent(event); }
  Status Record(Stream stream, Event* event) override { return real_.Record(stream, event); }
  Status Wait(Stream stream, const Event& event) override { return real_.Wait(stream, event); }
  Status Synchronize() override { return real_.Synchronize(); }
  Status Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) override {
    return real_.Copy(stream, target, source);
  }
  Status FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) override {
    return real_.FillInt32(stream, data, count, value);
  }
  Status ReduceInfo(Stream stream, const int32_t* infos, int64_t n, int32_t* status) override {
    return real_.ReduceInfo(stream, infos, n, status);
  }
  Status SumReals(Stream stream, const float* terms, int64_t n, float* sum) override {
    return real_.SumReals(stream, terms, n, sum);
  }
  Status SumReals(Stream stream, const double* terms, int64_t n, double* sum) override {
    return real_.SumReals(stream, terms, n, sum);
  }

 protected:
  Blas<float>& BlasOf(const float*) override { return real_.blas<float>(); }
  Blas<double>& BlasOf(const double*) override { return real_.blas<double>(); }
  Blas<std::complex<float>>& BlasOf(const std::complex<float>*) override {
    return real_.blas<std::complex<float>>();
  }
  Blas<std::complex<double>>& BlasOf(const std::complex<double>*) override {
    return real_.blas<std::complex<double>>();
  }

 private:
  Device& real_;
};

// A device on which allocations fail.
class NoMemory : public Wrapped {
 public:
  using Wrapped::Wrapped;
  Status Allocate(size_t, std::unique_ptr<Buffer>*) override {
    return Error(Code::kResourceExhausted, "out of memory on purpose");
  }
};

// The host with another device's tuning.
class Tuned : public Wrapped {
 public:
  Tuned(Device& real, const Tuning& tuning) : Wrapped(real), tuning_(tuning) {}
  Tuning tuning() const override { return tuning_; }

 private:
  const Tuning tuning_;
};

// Products whose factors are rounded to TF32; everything else is refused.
template <typename T>
class Tf32Products : public Blas<T> {
  using R = Real<T>;

 public:
  explicit Tf32Products(Blas<T>& exact) : exact_(exact) {}

  Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override {
    const std::vector<T> x = op_a == Op::kNone ? Rounded(m, k, a, lda) : Rounded(k, m, a, lda);
    const std::vector<T> y = op_b == Op::kNone ? Rounded(k, n, b, ldb) : Rounded(n, k, b, ldb);
    return exact_.Gemm(stream, op_a, op_b, m, n, k, alpha, x.data(), lda, y.data(), ldb, beta, c,
                       ldc);
  }
  Status Herk(Stream stream, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override {
    return exact_.Herk(stream, n, k, alpha, Rounded(n, k, a, lda).data(), lda, beta, c, ldc);
  }
  Status Trsm(Stream, Side, Op, int64_t, int64_t, const T*, int64_t, T*, int64_t) override {
    return Refused();
  }
  Status Trmm(Stream, Side, Op, int64_t, int64_t, const T*, int64_t, T*, int64_t) override {
    return Refused();
  }
  Status Potrf(Stream, int64_t, T*, int64_t, int64_t, int32_t*) override { return Refused(); }
  Status Trtri(Stream, int64_t, const T*, int64_t, T*, int64_t) override { return Refused(); }
  Status InvertDiagonalBlocks(Stream, int64_t, int64_t, T*, int64_t, T*) override {
    return Refused();
  }
  Status ConjTranspose(Stream, int64_t, int64_t, const T*, int64_t, T*, int64_t) override {
    return Refused();
  }
  Status MirrorLower(Stream, int64_t, T*, int64_t) override { return Refused(); }
  Status Conjugate(Stream, int64_t, int64_t, T*, int64_t) override { return Refused(); }
  Status SetZero(Stream, int64_t, int64_t, T*, int64_t) override { return Refused(); }
  Status AddLogDet(Stream, int64_t, const T*, int64_t, R*) override { return Refused(); }
  Status PoisonIf(Stream, const int32_t*, int64_t, int64_t, T*, int64_t) override {
    return Refused();
  }
  Status Syevd(Stream, bool, int64_t, T*, int64_t, R*, int32_t*) override { return Refused(); }

 private:
  static Status Refused() { return Error(Code::kInternal, "not a product"); }

  // A copy of m x n elements as they lie, with 10 bits behind the binary point.
  static std::vector<T> Rounded(int64_t m, int64_t n, const T* a, int64_t lda) {
    std::vector<T> copy(lda * n);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        copy[j * lda + i] = a[j * lda + i];
        auto* part = reinterpret_cast<R*>(&copy[j * lda + i]);
        for (size_t p = 0; p < sizeof(T) / sizeof(R); ++p) {
          int exponent;
          const R fraction = std::frexp(part[p], &exponent);
          part[p] = std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
        }
      }
    }
    return copy;
  }

  Blas<T>& exact_;
};

// A device that has TF32.
class WithTf32 : public Tuned {
 public:
  WithTf32(Device& real, const Tuning& tuning)
      : Tuned(real, tuning),
        float_(real.blas<float>()),
        complex_(real.blas<std::complex<float>>()) {}

 protected:
  Blas<float>& Tf32BlasOf(const float*) override { return float_; }
  Blas<std::complex<float>>& Tf32BlasOf(const std::complex<float>*) override { return complex_; }

 private:
  Tf32Products<float> float_;
  Tf32Products<std::complex<float>> complex_;
};

// As GPUs are: panels out of place, in pieces, along a chain.
Tuning LikeGpu(int64_t panels_per_update = 3) {
  Tuning tuning;
  tuning.inverted_block = 3;
  tuning.chain = true;
  tuning.group_columns = 9;
  tuning.panels_per_update = panels_per_update;
  tuning.separate_diagonal = false;
  return tuning;
}

template <typename T>
constexpr Real<T> kEps = std::numeric_limits<Real<T>>::epsilon();

// How the device of each rank is made: the host, or the host with streams that are threads.
thread_local testing::DeviceMaker make_device = NewHostDevice;

std::vector<Status> RunOnDevices(int ranks, const testing::RankProgram& program) {
  return RunRanks(ranks, program, std::chrono::seconds(60), make_device);
}

template <typename T>
void CheckPotrs(const Case& c, const Tuning* tuning) {
  for (int64_t nrhs : {1, 3}) {
    Problem<T> problem(c);
    const int64_t n = c.n;
    std::mt19937_64 random(99);
    std::vector<T> b(n * nrhs);
    for (T& value : b) value = Random<T>(random);
    std::vector<std::vector<T>> x(c.ranks, b);
    std::vector<Real<T>> log_det(c.ranks);
    std::vector<int32_t> status(c.ranks, -1);
    const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
      const int rank = context.comm.rank();
      Tuned tuned(context.device, tuning != nullptr ? *tuning : context.device.tuning());
      const RankContext mine = {tuned, context.comm};
      return PotrsRoutine<T>(mine, problem.operand(rank, c.tile, &status[rank]), nrhs,
                             x[rank].data(), &log_det[rank]);
    });
    for (int rank = 0; rank < c.ranks; ++rank) {
      EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
      EXPECT(status[rank] == 0) << Describe(c);
      EXPECT(x[rank] == x[0]) << Describe(c) << ": ranks differ";
      EXPECT(log_det[rank] == log_det[0]) << Describe(c);
    }
    Real<T> residual = 0, size = 0;
    for (int64_t r = 0; r < nrhs; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        T sum = -b[i * nrhs + r];
        for (int64_t j = 0; j < n; ++j) sum += problem.a[i * n + j] * x[0][j * nrhs + r];
        residual += std::norm(sum);
        size += std::norm(x[0][i * nrhs + r]);
      }
    }
    const Real<T> error = std::sqrt(residual) / (problem.norm() * std::sqrt(size));
    EXPECT(error <= 10 * n * kEps<T>) << Describe(c) << " backward error " << error;
    // log det by plain elimination, in double.
    std::vector<std::complex<double>> u(problem.a.begin(), problem.a.end());
    double expected = 0;
    for (int64_t k = 0; k < n; ++k) {
      expected += std::log(std::abs(u[k * n + k]));
      for (int64_t i = k + 1; i < n; ++i) {
        const auto factor = u[i * n + k] / u[k * n + k];
        for (int64_t j = k; j < n; ++j) u[i * n + j] -= factor * u[k * n + j];
      }
    }
    EXPECT(std::abs(log_det[0] - expected) <= 100 * n * kEps<T> * (1 + std::abs(expected)))
        << Describe(c) << " " << log_det[0] << " " << expected;
  }
}

template <typename T>
void CheckPotri(const Case& c, const Tuning* tuning) {
  Problem<T> problem(c);
  const int64_t n = c.n;
  std::vector<int32_t> status(c.ranks, -1);
  const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    Tuned tuned(context.device, tuning != nullptr ? *tuning : context.device.tuning());
    return PotriRoutine<T>({tuned, context.comm}, problem.operand(rank, c.tile, &status[rank]));
  });
  for (int rank = 0; rank < c.ranks; ++rank) {
    EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
    EXPECT(status[rank] == 0) << Describe(c);
  }
  Real<T> error = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T sum = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) sum += problem.a[i * n + k] * problem.block_at(k, j);
      error += std::norm(sum);
      EXPECT(problem.block_at(i, j) == Conj(problem.block_at(j, i))) << Describe(c);
    }
  }
  EXPECT(std::sqrt(error) <= 100 * n * kEps<T>) << Describe(c) << " " << std::sqrt(error);
}

template <typename T>
void CheckSyevd(const Case& c) {
  for (bool vectors : {true, false}) {
    Problem<T> problem(c, /*definite=*/false);
    const int64_t n = c.n;
    std::vector<int32_t> status(c.ranks, -1);
    std::vector<std::vector<Real<T>>> w(c.ranks, std::vector<Real<T>>(n));
    const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
      const int rank = context.comm.rank();
      return SyevdRoutine<T>(context, problem.operand(rank, c.tile, &status[rank]), vectors,
                             w[rank].data());
    });
    for (int rank = 0; rank < c.ranks; ++rank) {
      EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
      EXPECT(status[rank] == 0 && w[rank] == w[0]) << Describe(c);
    }
    Real<T> trace = 0, sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      trace += std::real(problem.a[j * n + j]);
      sum += w[0][j];
      EXPECT(j == 0 || w[0][j - 1] <= w[0][j]) << Describe(c);
    }
    EXPECT(std::abs(trace - sum) <= 100 * n * kEps<T> * problem.norm()) << Describe(c);
    Real<T> residual = 0, orthogonality = 0;
    for (int64_t i = 0; vectors && i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        T av = -problem.block_at(i, j) * w[0][j], vv = i == j ? -1 : 0;
        for (int64_t k = 0; k < n; ++k) {
          av += problem.a[i * n + k] * problem.block_at(k, j);
          vv += Conj(problem.block_at(k, i)) * problem.block_at(k, j);
        }
        residual += std::norm(av);
        orthogonality += std::norm(vv);
      }
    }
    EXPECT(std::sqrt(residual) <= 30 * n * kEps<T> * problem.norm()) << Describe(c);
    EXPECT(std::sqrt(orthogonality) <= 30 * n * kEps<T>) << Describe(c);
  }
}

template <typename T>
void CheckRedistribution(const Case& c) {
  if (c.tile == 0) return;
  const int64_t block = (c.n + c.ranks - 1) / c.ranks + c.extra_rows, rows = 11;
  const Tiles tiles(c.n, block, c.ranks, c.tile);
  // Element (i, j) says where it belongs.
  auto element = [](int64_t i, int64_t j) { return T(Real<T>(i + 1000 * j)); };
  std::vector<std::vector<T>> data(c.ranks, std::vector<T>(rows * block, NaN<T>()));
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < rows; ++i) data[j / block][(j % block) * rows + i] = element(i, j);
  }
  const auto before = data;
  const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    // Nothing but one staging tile and one overflow tile, to the element.
    std::vector<T> staging(rows * tiles.width()), overflow(rows * tiles.width());
    const Matrix<T> matrix = {tiles, rank, rows, data[rank].data(), overflow.data()};
    JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context, matrix, Region::kFull, staging.data()));
    for (int64_t p = rank; p < tiles.nonempty(); p += c.ranks) {
      for (int64_t j = 0; j < tiles.width(p); ++j) {
        for (int64_t i = 0; i < rows; ++i) {
          EXPECT(matrix.tile(p, i)[j * rows] == element(i, tiles.offset(p) + j)) << Describe(c);
        }
      }
    }
    JAXMG_RETURN_IF_ERROR(ToContiguous(context, matrix, Region::kFull, staging.data()));
    return context.comm.Agree(Status::Ok());
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (j % block) * rows + i;
      EXPECT(data[j / block][at] == before[j / block][at]) << Describe(c);
    }
  }
}

#define JAXMG_TEST_EACH_DTYPE(Name, Check) \
  TEST(Name) {                             \
    for (const Case& c : kCases) {         \
      Check<float>(c);                     \
      Check<double>(c);                    \
      Check<std::complex<float>>(c);       \
      Check<std::complex<double>>(c);      \
    }                                      \
  }

template <typename T>
void CheckPotrsOnHost(const Case& c) {
  CheckPotrs<T>(c, nullptr);
}

template <typename T>
void CheckPotrsLikeGpu(const Case& c) {
  const Tuning tuning = LikeGpu();
  CheckPotrs<T>(c, &tuning);
}

template <typename T>
void CheckPotriOnHost(const Case& c) {
  CheckPotri<T>(c, nullptr);
}

template <typename T>
void CheckPotriLikeGpu(const Case& c) {
  const Tuning tuning = LikeGpu();
  CheckPotri<T>(c, &tuning);
}

// Panels in place, copied from their owner to all; pieces out of place without a chain.
template <typename T>
void CheckPotrsWithCopies(const Case& c) {
  Tuning tuning;
  CheckPotrs<T>(c, &tuning);
  tuning.inverted_block = 5;
  CheckPotrs<T>(c, &tuning);
}

// With streams that run beside each other, as a GPU's do, and with the host's way too.
template <typename T>
void CheckOnStreams(const Case& c) {
  if (c.n > 70) return;
  for (const Tuning& tuning : {LikeGpu(), LikeGpu(1), NewHostDevice()->tuning()}) {
    make_device = [tuning] {
      return std::make_unique<testing::AsyncDevice>(NewHostDevice(), tuning);
    };
    CheckPotrs<T>(c, nullptr);
    CheckPotri<T>(c, nullptr);
    CheckSyevd<T>(c);
  }
  make_device = NewHostDevice;
}

JAXMG_TEST_EACH_DTYPE(PotrsSolves, CheckPotrsOnHost)
JAXMG_TEST_EACH_DTYPE(PotrsSolvesLaidOutAsOnGpus, CheckPotrsLikeGpu)
JAXMG_TEST_EACH_DTYPE(PotrsSolvesWithCopiedPanels, CheckPotrsWithCopies)
JAXMG_TEST_EACH_DTYPE(PotriInverts, CheckPotriOnHost)
JAXMG_TEST_EACH_DTYPE(PotriInvertsLaidOutAsOnGpus, CheckPotriLikeGpu)
JAXMG_TEST_EACH_DTYPE(SyevdDecomposes, CheckSyevd)
JAXMG_TEST_EACH_DTYPE(RedistributionGoesThereAndBackInItsWorkspace, CheckRedistribution)

TEST(StreamsWaitForEachOther) {
  for (const Case& c : kCases) CheckOnStreams<double>(c);  // the dtype changes no order
}

// The backward error of potrs and |A X - 1| of potri, in that precision.
template <typename T>
std::pair<Real<T>, Real<T>> ErrorsIn(Precision precision) {
  constexpr int64_t n = 90;
  constexpr int kRanks = 3;
  Problem<T> problem({n, kRanks, 8}), inverse({n, kRanks, 8});
  const std::vector<T> b(n, 1);
  std::vector<std::vector<T>> x(kRanks, b);
  const auto outcomes = RunRanks(kRanks, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    WithTf32 device(context.device, LikeGpu());
    const RankContext mine = {device, context.comm};
    Real<T> log_det;
    int32_t status;
    Operand<T> operand = problem.operand(rank, 8, &status);
    operand.precision = precision;
    JAXMG_RETURN_IF_ERROR(PotrsRoutine<T>(mine, operand, 1, x[rank].data(), &log_det));
    operand = inverse.operand(rank, 8, &status);
    operand.precision = precision;
    return PotriRoutine<T>(mine, operand);
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  Real<T> residual = 0, size = 0, distance = 0;
  for (int64_t i = 0; i < n; ++i) {
    T sum = -b[i];
    for (int64_t j = 0; j < n; ++j) {
      sum += problem.a[i * n + j] * x[0][j];
      T entry = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) entry += problem.a[i * n + k] * inverse.block_at(k, j);
      distance += std::norm(entry);
    }
    residual += std::norm(sum);
    size += std::norm(x[0][i]);
  }
  return {std::sqrt(residual) / (problem.norm() * std::sqrt(size)), std::sqrt(distance)};
}

template <typename T>
void CheckPrecision() {
  const auto exact = ErrorsIn<T>(Precision::kHighest), rounded = ErrorsIn<T>(Precision::kTf32);
  constexpr double kTf32Eps = 1.0 / 1024;
  EXPECT(exact.first < 10 * kEps<T>) << exact.first;
  EXPECT(exact.second < 1000 * kEps<T>) << exact.second;
  EXPECT(rounded.first > 10 * exact.first && rounded.first < kTf32Eps) << rounded.first;
  EXPECT(rounded.second > 10 * exact.second && rounded.second < 10 * kTf32Eps) << rounded.second;
}

TEST(OnlyProductsAreInTheAskedPrecision) {
  CheckPrecision<float>();
  CheckPrecision<std::complex<float>>();
  EXPECT(ErrorsIn<double>(Precision::kTf32) == ErrorsIn<double>(Precision::kHighest));
}

// |A X - I| / (|A| |X|), in units of rounding, where A is a smooth kernel on a line:
// ill-conditioned as a whole and within every diagonal tile.
double InverseError(const Tuning& tuning) {
  constexpr int64_t n = 128, tile = 32;
  constexpr int ranks = 2;
  Problem<double> problem({n, ranks, tile});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      problem.a[i * n + j] = std::exp((i - j) * (i - j) / -50.0) + (i == j ? 1e-10 : 0);
    }
  }
  problem.Scatter();
  std::vector<int32_t> status(ranks, -1);
  const auto outcomes = RunRanks(ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    Tuned tuned(context.device, tuning);
    return PotriRoutine<double>({tuned, context.comm}, problem.operand(rank, tile, &status[rank]));
  });
  EXPECT(outcomes[0].ok() && status[0] == 0) << outcomes[0].message() << " " << status[0];
  double error = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) sum += problem.a[i * n + k] * problem.block_at(k, j);
      error += sum * sum;
      size += problem.block_at(i, j) * problem.block_at(i, j);
    }
  }
  return std::sqrt(error / size) / problem.norm() / kEps<double>;
}

// |A x - b| / (|A| |x|) of potrs, in units of rounding, for a smooth kernel and a smooth b;
// infinity where the kernel comes out as not positive definite.
double SolveError(const Tuning& tuning, double width, double nugget) {
  constexpr int64_t n = 256, tile = 64;
  constexpr int ranks = 2;
  Problem<double> problem({n, ranks, tile});
  std::vector<double> b(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      problem.a[i * n + j] = std::exp(-((i - j) * (i - j)) / width) + (i == j ? nugget : 0);
      b[i] += problem.a[i * n + j];
    }
  }
  problem.Scatter();
  std::vector<int32_t> status(ranks, -1);
  std::vector<std::vector<double>> x(ranks, b);
  const auto outcomes = RunRanks(ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    Tuned tuned(context.device, tuning);
    double log_det;
    return PotrsRoutine<double>({tuned, context.comm}, problem.operand(rank, tile, &status[rank]),
                                1, x[rank].data(), &log_det);
  });
  EXPECT(outcomes[0].ok()) << outcomes[0].message();
  if (status[0] != 0) return std::numeric_limits<double>::infinity();
  double error = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = -b[i];
    for (int64_t j = 0; j < n; ++j) sum += problem.a[i * n + j] * x[0][j];
    error += sum * sum;
    size += x[0][i] * x[0][i];
  }
  return std::sqrt(error / size) / problem.norm() / kEps<double>;
}

TEST(PotrsIsAsAccurateAsLapackOnSmoothKernels) {
  for (double width : {50.0, 500.0, 5000.0}) {
    for (double nugget : {1e-9, 1e-11, 1e-12, 1e-13}) {
      Tuning tuning;
      const double substitution = SolveError(tuning, width, nugget);
      tuning.inverted_block = 32;
      const double like_gpu = SolveError(tuning, width, nugget);
      EXPECT(substitution < 5) << width << " " << nugget << " " << substitution;
      EXPECT(like_gpu < 5) << width << " " << nugget << " " << like_gpu;
    }
  }
}

TEST(PotriIsAsAccurateAsLapackOnAnIllConditionedMatrix) {
  Tuning tuning;
  const double substitution = InverseError(tuning);
  EXPECT(substitution < 5) << substitution;
  tuning.inverted_block = 8;
  const double like_gpu = InverseError(tuning);
  EXPECT(like_gpu < 5) << like_gpu;
}

TEST(NotPositiveDefiniteIsTheLeadingMinorAndNaN) {
  using T = std::complex<double>;
  for (int ranks : {1, 2, 4}) {
    for (int64_t bad : {0, 1, 12, 29}) {
      for (double value : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
        Problem<T> problem({30, ranks, 4});
        problem.a[bad * 30 + bad] = value;
        problem.Scatter();
        std::vector<int32_t> status(ranks, -1);
        std::vector<std::vector<T>> x(ranks, std::vector<T>(30, 1.0));
        std::vector<double> log_det(ranks);
        const auto outcomes = RunRanks(ranks, [&](const RankContext& context) {
          const int rank = context.comm.rank();
          return PotrsRoutine<T>(context, problem.operand(rank, 4, &status[rank]), 1,
                                 x[rank].data(), &log_det[rank]);
        });
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
          EXPECT(status[rank] == bad + 1) << status[rank] << " not " << bad + 1;
          EXPECT(std::isnan(log_det[rank]));
          for (const T& value : x[rank]) EXPECT(std::isnan(std::real(value)));
        }
      }
    }
  }
}

TEST(OneRankWithoutMemoryIsTheSameErrorOnAll) {
  Problem<double> problem({30, 4, 4});
  std::vector<int32_t> status(4, -1);
  const auto outcomes = RunRanks(4, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    NoMemory poor(context.device);
    const RankContext mine = {rank == 2 ? poor : context.device, context.comm};
    return PotriRoutine<double>(mine, problem.operand(rank, 4, &status[rank]));
  });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kResourceExhausted) << outcome.message();
    EXPECT(outcome.message() == "out of memory on purpose") << outcome.message();
  }
}

TEST(ARankThatFailsMidwayFreesTheOthers) {
  Problem<double> problem({60, 3, 4});
  // Rank 1's LAPACK breaks down at its third tile.
  static thread_local int calls_left = -1;
  static void (*potrf)(char*, int*, double*, int*, int*) = HostLapack<double>().potrf;
  HostLapack<double>().potrf = [](char* uplo, int* n, double* a, int* lda, int* info) {
    if (calls_left >= 0 && calls_left-- == 0) throw std::bad_alloc();
    potrf(uplo, n, a, lda, info);
  };
  std::vector<int32_t> status(3, -1);
  const auto outcomes = RunRanks(3, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    calls_left = rank == 1 ? 2 : -1;
    return PotriRoutine<double>(context, problem.operand(rank, 4, &status[rank]));
  });
  HostLapack<double>().potrf = potrf;
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kResourceExhausted) << outcome.message();
  }
}

TEST(ACyclicTileMustDivideTheBlock) {
  std::vector<double> data(2 * 10 * 3);
  const auto outcomes = RunRanks(2, [&](const RankContext& context) {
    return CyclicRoutine<double>(context, 10, 3, 4, false, data.data() + context.comm.rank() * 30);
  });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kInvalidArgument) << outcome.message();
  }
}

struct InstallLapack {
  InstallLapack() { testing::InstallReferenceLapack(); }
} install_lapack;

}  // namespace
}  // namespace jaxmg
