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
#include "tests/cc/problem.h"
#include "tests/cc/ranks.h"
#include "tests/cc/reference_lapack.h"
#include "tests/cc/testing.h"
#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/engine/core/redistribute.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;

const Case kCases[] = {
    {1, 1, 0},  {1, 3, 1},     {2, 2, 1},     {5, 8, 2},   {7, 2, 3},   {16, 4, 4},
    {17, 4, 2}, {30, 5, 4},    {33, 3, 5, 2}, {40, 16, 2}, {48, 2, 8},  {50, 1, 7},
    {60, 2, 3}, {61, 4, 2, 1}, {64, 3, 2},    {63, 7, 3},  {64, 4, 64}, {70, 6, 4, 1},
    {97, 3, 0}, {90, 2, 13},   {150, 2, 75},  {64, 2, 1},  {68, 4, 1},
};

std::string Describe(const Case& c) {
  return "n " + std::to_string(c.n) + " ranks " + std::to_string(c.ranks) + " tile " +
         std::to_string(c.tile);
}

// How the device of each rank is made: the host, or the host with streams that are threads.
thread_local testing::DeviceMaker make_device = OnHost;

std::vector<Status> RunOnDevices(int ranks, const testing::RankProgram& program) {
  return RunRanks(ranks, program, kPatience, make_device);
}

template <typename T>
void CheckPotrs(const Case& c, const Tuning* tuning, const std::vector<int64_t>& counts = {1, 3}) {
  for (int64_t nrhs : counts) {
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
      return PotrsRoutine<T>(mine, problem.operand(rank, c.tile, &status[rank]),
                             {nrhs, x[rank].data(), &log_det[rank]});
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
  if (c.n > 100) return;  // one rank does it all, slowly with textbook LAPACK
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
    JAXMG_RETURN_IF_ERROR(context.device.Synchronize());
    for (int64_t p = rank; p < tiles.nonempty(); p += c.ranks) {
      for (int64_t j = 0; j < tiles.width(p); ++j) {
        for (int64_t i = 0; i < rows; ++i) {
          EXPECT(matrix.tile(p, i)[j * rows] == element(i, tiles.offset(p) + j)) << Describe(c);
        }
      }
    }
    JAXMG_RETURN_IF_ERROR(ToContiguous(context, matrix, Region::kFull, staging.data()));
    JAXMG_RETURN_IF_ERROR(context.device.Synchronize());
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
void CheckOnHost(const Case& c) {
  CheckPotrs<T>(c, nullptr);
  CheckPotri<T>(c, nullptr);
}

template <typename T>
void CheckLikeGpu(const Case& c) {
  const Tuning tuning = LikeGpu();
  CheckPotrs<T>(c, &tuning);
  CheckPotri<T>(c, &tuning);
}

// Panels in place, copied from their owner to all; pieces out of place without a chain.
template <typename T>
void CheckPotrsWithCopies(const Case& c) {
  Tuning tuning;
  CheckPotrs<T>(c, &tuning);
  tuning.panel_block = 5;
  CheckPotrs<T>(c, &tuning);
}

// One rank for all, as small matrices have it on GPUs: as one tile, and in several.
template <typename T>
void CheckGathered(const Case& c) {
  Case chosen = c;
  chosen.tile = 0;
  Tuning tuning = LikeGpu();
  tuning.usual_tile = 7;
  for (int64_t whole : {1000, 0}) {
    tuning.whole_order = whole;
    tuning.gather_to_solve = tuning.gather_to_invert = 1000;
    CheckPotrs<T>(chosen, &tuning);
    CheckPotri<T>(chosen, &tuning);
  }
}

// With streams that run beside each other, as a GPU's do, and with the host's way too.
template <typename T>
void CheckOnStreams(const Case& c) {
  if (c.n > 70) return;
  Tuning gathering = LikeGpu();
  gathering.whole_order = gathering.gather_to_solve = gathering.gather_to_invert = 40;
  bool first = true;
  for (const Tuning& tuning : {LikeGpu(), LikeGpu(0), NewHostDevice()->tuning(), gathering}) {
    make_device = [tuning](int) {
      return std::make_unique<testing::AsyncDevice>(NewHostDevice(), tuning);
    };
    CheckPotrs<T>(c, nullptr, {3});
    CheckPotri<T>(c, nullptr);
    if (first) {  // what is tuned changes nothing in these
      CheckSyevd<T>(c);
      CheckRedistribution<T>(c);
    }
    first = false;
  }
  make_device = OnHost;
}

JAXMG_TEST_EACH_DTYPE(PotrsSolvesAndPotriInverts, CheckOnHost)
JAXMG_TEST_EACH_DTYPE(TheyDoLaidOutAsOnGpus, CheckLikeGpu)
JAXMG_TEST_EACH_DTYPE(PotrsSolvesWithCopiedPanels, CheckPotrsWithCopies)
JAXMG_TEST_EACH_DTYPE(OneRankDoesItForAll, CheckGathered)
JAXMG_TEST_EACH_DTYPE(SyevdDecomposes, CheckSyevd)
JAXMG_TEST_EACH_DTYPE(RedistributionGoesThereAndBackInItsWorkspace, CheckRedistribution)

TEST(TilesAreNarrowerWhereARankHasFewRows) {
  Tuning tuning;
  tuning.usual_tile = 1024;
  tuning.least_tiles = 1;
  EXPECT(DefaultTileWidth(5000, 4, tuning) == 1024);
  EXPECT(DefaultTileWidth(700, 4, tuning) == 700);
  EXPECT(DefaultTileWidth(7, 4, tuning) == 32);
  tuning.least_tiles = 4;
  EXPECT(DefaultTileWidth(5000, 4, tuning) == 1024);
  EXPECT(DefaultTileWidth(700, 4, tuning) == 175);
  EXPECT(DefaultTileWidth(700, 1, tuning) == 1024);
}

TEST(StreamsWaitForEachOther) {
  for (const Case& c : kCases) CheckOnStreams<double>(c);  // the dtype changes no order
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
          return PotrsRoutine<T>(context, problem.operand(rank, 4, &status[rank]),
                                 {1, x[rank].data(), &log_det[rank]});
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

// Whatever it does on its own: nobody waits for what it was to send.
TEST(ARankThatFailsMidwayIsEveryRanksError) {
  const auto outcomes = RunOnDevices(3, [&](const RankContext& context) {
    auto work = [&]() -> Status {
      if (context.comm.rank() == 1) return Error(Code::kInternal, "midway on purpose");
      double value;
      return context.comm.Recv(Stream::kMain, 1, Block(&value, 1, 1, 1));
    };
    return RunOnAllRanks(context.comm, [] { return Status::Ok(); }, work);
  });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.message() == "midway on purpose") << outcome.message();
  }
}

// Ranks that were given different right-hand sides get a status, in whatever way they solve.
TEST(DifferentRightHandSidesAreAStatus) {
  constexpr int kRanks = 3;
  for (bool gathers : {false, true}) {
    for (bool check : {false, true}) {
      Problem<double> problem({20, kRanks, 0});
      std::vector<std::vector<double>> x(kRanks, std::vector<double>(20, 1.0));
      x[2][7] = 2;
      std::vector<int32_t> status(kRanks, -1);
      std::vector<double> log_det(kRanks);
      const auto outcomes = RunOnDevices(kRanks, [&](const RankContext& context) {
        const int rank = context.comm.rank();
        Tuning tuning = context.device.tuning();
        if (gathers) tuning.gather_to_solve = tuning.whole_order = 20;
        Tuned tuned(context.device, tuning);
        return PotrsRoutine<double>({tuned, context.comm}, problem.operand(rank, 0, &status[rank]),
                                    {1, x[rank].data(), &log_det[rank], nullptr, check});
      });
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
        EXPECT(status[rank] == (check ? kDifferentOperands : 0)) << status[rank];
        for (double value : x[rank]) EXPECT(std::isnan(value) == check);
        EXPECT(std::isnan(log_det[rank]) == check);
      }
    }
  }
}

// A device whose data say that it is another rank than its host takes it for.
class Misplaced : public Wrapped {
 public:
  explicit Misplaced(Device& real) : Wrapped(real), found_(real) { Offer(found_); }

 private:
  class Found : public StatusKernels {
   public:
    explicit Found(Device& real) : device_(real), real_(real.status()) {}
    Status InitInfo(Stream s, int32_t* info) override {
      return device_.FillInt32(s, info, 1, kMisplaced);
    }
    Status Digest(Stream s, const void* words, int64_t count, int32_t* digest) override {
      return real_.Digest(s, words, count, digest);
    }
    Status ReduceInfo(Stream s, const int32_t* pairs, int64_t stride, int64_t count,
                      int32_t* status) override {
      return real_.ReduceInfo(s, pairs, stride, count, status);
    }
    Status KeepNegative(Stream s, const int32_t* status, int32_t* failure) override {
      return real_.KeepNegative(s, status, failure);
    }
    Status SumReals(Stream s, const float* terms, int64_t stride, int64_t count,
                    float* sum) override {
      return real_.SumReals(s, terms, stride, count, sum);
    }
    Status SumReals(Stream s, const double* terms, int64_t stride, int64_t count,
                    double* sum) override {
      return real_.SumReals(s, terms, stride, count, sum);
    }
#define JAXMG_MULTIPLY(T)                                                                \
  Status Multiply(Stream s, const T* factors, int64_t stride, int64_t count, T* product) \
      override {                                                                         \
    return real_.Multiply(s, factors, stride, count, product);                           \
  }
    JAXMG_FOR_EACH_DTYPE(JAXMG_MULTIPLY)
#undef JAXMG_MULTIPLY
#define JAXMG_POISON_IF(T)                                                                  \
  Status PoisonIf(Stream s, const int32_t* status, int64_t m, int64_t n, T* a, int64_t lda) \
      override {                                                                            \
    return real_.PoisonIf(s, status, m, n, a, lda);                                         \
  }
    JAXMG_FOR_EACH_DTYPE(JAXMG_POISON_IF)
#undef JAXMG_POISON_IF

   private:
    Device& device_;
    StatusKernels& real_;
  };
  Found found_;
};

TEST(AMisplacedRankIsAStatusOnAll) {
  constexpr int kRanks = 3;
  Problem<double> problem({20, kRanks, 4}), inverse({20, kRanks, 4}), eigen({20, kRanks, 4});
  std::vector<std::vector<double>> x(kRanks, std::vector<double>(20, 1.0)), w = x;
  const auto outcomes = RunOnDevices(kRanks, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    Misplaced misplaced(context.device);
    const RankContext mine = {rank == 1 ? misplaced : context.device, context.comm};
    int32_t status[3] = {};
    double log_det = 0;
    JAXMG_RETURN_IF_ERROR(PotrsRoutine<double>(mine, problem.operand(rank, 4, &status[0]),
                                               {1, x[rank].data(), &log_det}));
    JAXMG_RETURN_IF_ERROR(PotriRoutine<double>(mine, inverse.operand(rank, 4, &status[1])));
    JAXMG_RETURN_IF_ERROR(
        SyevdRoutine<double>(mine, eigen.operand(rank, 4, &status[2]), true, w[rank].data()));
    for (int32_t value : status) EXPECT(value == kMisplaced) << value;
    return Status::Ok();
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
    EXPECT(std::isnan(x[rank][0]) && std::isnan(w[rank][0]));
    EXPECT(std::isnan(inverse.blocks[rank][0]) && std::isnan(eigen.blocks[rank][0]));
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
