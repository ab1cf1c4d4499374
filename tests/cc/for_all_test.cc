// Calls that one rank executes for all ranks of its process: every rank gets the bits of a call
// with one rank.
#include "xla_ffi/engine/core/for_all.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/cc/support/distributed.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

namespace jaxmg::testing {
namespace {

// The value of rows that no rank's part may change.
template <typename T>
constexpr T kUntouched = T(-7);

// Returns the rows of `a` (m x n, row-major) in blocks. The last blocks may have no rows.
template <typename T>
std::vector<std::vector<T>> InBlocks(const std::vector<T>& a, int64_t n, int64_t block, int ranks) {
  const auto m = static_cast<int64_t>(a.size()) / n;
  std::vector<std::vector<T>> blocks(ranks, std::vector<T>(block * n, kUntouched<T>));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) blocks[i / block][(i % block) * n + j] = a[i * n + j];
  }
  return blocks;
}

template <typename T>
struct Results {
  std::vector<T> x, sign;
  std::vector<Real<T>> log_abs;
  std::vector<int32_t> status;
};

// Runs GesvForAll on the ranks' blocks; the rank `different` has another b than the others.
template <typename T>
Results<T> Solve(const std::vector<T>& a, int64_t n, int64_t nrhs, int ranks, bool check_b,
                 int different = -1) {
  const int64_t block = (n + ranks - 1) / ranks;
  auto blocks = InBlocks(a, n, block, ranks);
  const auto before = blocks;
  auto work = blocks;
  std::vector<std::vector<T>> b(ranks, RandomMatrix<T>(n * nrhs, 1)), x(ranks, b[0]);
  if (different >= 0) b[different].back() += T(1);
  Results<T> results = {
      {}, std::vector<T>(ranks), std::vector<Real<T>>(ranks), std::vector<int32_t>(ranks, 99)};
  using Solution = GeneralSolution<T>;
  std::vector<SolveOfAll<T, Solution>> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    Operand<T> operand = {n, n, block, 0, work[rank].data(), &results.status[rank]};
    operand.source = blocks[rank].data();
    parts.push_back({operand, Solution{nrhs, x[rank].data(), &results.log_abs[rank],
                                       &results.sign[rank], b[rank].data(), check_b}});
  }
  const auto device = NewHostDevice();
  SoloCommunicator solo;
  const Status status = GesvForAll<T>({*device, solo}, parts);
  EXPECT(status.ok()) << status.message();
  for (int rank = 0; rank < ranks; ++rank) {  // compares bits, because there may be NaN
    const size_t bytes = before[rank].size() * sizeof(T);
    EXPECT(std::memcmp(blocks[rank].data(), before[rank].data(), bytes) == 0) << "A is only read";
  }
  for (const auto& each : x) results.x.insert(results.x.end(), each.begin(), each.end());
  return results;
}

template <typename T>
void SolvesWithTheBitsOfOneRank() {
  for (int64_t n : {1, 5, 12, 40}) {
    const auto a = RandomMatrix<T>(n * n, 2);
    const Results<T> one = Solve(a, n, 2, 1, true);
    EXPECT(one.status[0] == 0);
    for (int ranks : {2, 4, 8}) {
      const Results<T> all = Solve(a, n, 2, ranks, true);
      for (size_t i = 0; i < all.x.size(); ++i) EXPECT(all.x[i] == one.x[i % one.x.size()]) << i;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT(all.status[rank] == 0 && all.log_abs[rank] == one.log_abs[0] &&
               all.sign[rank] == one.sign[0])
            << n << " " << rank;
      }
    }
  }
}

TEST(SolvesWithTheBitsOfOneRankInAllDtypes) {
  SolvesWithTheBitsOfOneRank<float>();
  SolvesWithTheBitsOfOneRank<double>();
  SolvesWithTheBitsOfOneRank<std::complex<float>>();
  SolvesWithTheBitsOfOneRank<std::complex<double>>();
}

TEST(DifferentRightHandSidesAreAStatus) {
  const auto a = RandomMatrix<double>(49, 2);
  for (int different : {0, 1, 3}) {
    const auto checked = Solve(a, 7, 2, 4, true, different);
    for (double x : checked.x) EXPECT(x != x);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT(checked.status[rank] == kDifferentOperands) << checked.status[rank];
      EXPECT(checked.log_abs[rank] != checked.log_abs[rank]);
      EXPECT(checked.sign[rank] != checked.sign[rank]);
    }
  }
  // Without check_b, the first rank's right-hand sides are used.
  const auto unchecked = Solve(a, 7, 2, 4, false, 3), plain = Solve(a, 7, 2, 4, true);
  EXPECT(unchecked.x == plain.x && unchecked.status[3] == 0);
}

TEST(AMatrixThatIsNotFiniteHasItsStatusOnAllRanks) {
  auto a = RandomMatrix<double>(49, 2);
  a[48] = NaN<double>();
  const auto results = Solve(a, 7, 1, 4, true);
  for (double x : results.x) EXPECT(x != x);
  for (int32_t status : results.status) EXPECT(status == kNotFinite) << status;
}

TEST(AnInverseReturnsToItsBlocksAndLeavesThePadding) {
  constexpr int64_t n = 7, block = 2;
  constexpr int ranks = 4;
  const auto a = RandomMatrix<double>(n * n, 3);
  auto run = [&](int64_t rows, int count, bool in_place) {
    const auto sources = InBlocks(a, n, rows, count);
    auto blocks = sources;
    std::vector<int32_t> status(count, 99);
    std::vector<Operand<double>> operands;
    for (int rank = 0; rank < count; ++rank) {
      if (!in_place) std::fill(blocks[rank].begin(), blocks[rank].end(), NaN<double>());
      operands.push_back({n, n, rows, 0, blocks[rank].data(), &status[rank]});
      operands[rank].source = in_place ? nullptr : sources[rank].data();
    }
    const auto device = NewHostDevice();
    SoloCommunicator solo;
    EXPECT(InPlaceForAll<double>({*device, solo}, operands, &GetriRoutine<double>).ok());
    for (int32_t each : status) EXPECT(each == 0) << each;
    return blocks;
  };
  const auto one = run(n, 1, true)[0];
  for (bool in_place : {true, false}) {
    EXPECT(run(block, ranks, in_place) == InBlocks(one, n, block, ranks)) << in_place;
  }
}

TEST(QrGivesEveryRankItsRowsOfQAndR) {
  constexpr int64_t n = 5, block = 2;
  constexpr int ranks = 3;  // 6 rows
  const auto a = RandomMatrix<double>(6 * n, 4);
  auto run = [&](int64_t rows, int count, std::vector<std::vector<double>>* r) {
    auto blocks = InBlocks(a, n, rows, count);
    std::vector<std::vector<double>> q(count, std::vector<double>(rows * n));
    r->assign(count, std::vector<double>(n * n));
    std::vector<int32_t> power(count, 99);
    std::vector<TallQrProblem<double>> problems;
    for (int rank = 0; rank < count; ++rank) {
      problems.push_back({{n, rows, 0, 0, false, true},
                          blocks[rank].data(),
                          nullptr,
                          nullptr,
                          q[rank].data(),
                          (*r)[rank].data(),
                          nullptr,
                          &power[rank],
                          nullptr});
    }
    const auto device = NewHostDevice();
    SoloCommunicator solo;
    EXPECT(WholeQrForAll<double>({*device, solo}, problems).ok());
    for (int32_t each : power) EXPECT(each == 0) << each;
    return q;
  };
  std::vector<std::vector<double>> r, r_of_all;
  const auto one = run(6, 1, &r)[0];
  EXPECT(run(block, ranks, &r_of_all) == InBlocks(one, n, block, ranks));
  for (const auto& each : r_of_all) EXPECT(each == r[0]);
}

TEST(SvdGivesEveryRankItsRowsAndAllValues) {
  constexpr int64_t n = 7;
  const auto a = RandomMatrix<double>(n * n, 5);
  for (const Subset subset : {Subset{0, n}, Subset{1, 4}}) {
    const int64_t count = subset.count();
    auto run = [&](int ranks, std::vector<std::vector<double>>* values,
                   std::vector<double>* vectors) {
      const int64_t block = (n + ranks - 1) / ranks, vh_block = (count + ranks - 1) / ranks;
      auto blocks = InBlocks(a, n, block, ranks);
      std::vector<std::vector<double>> u(ranks, std::vector<double>(block * count)),
          vh(ranks, std::vector<double>(vh_block * n));
      values->assign(ranks, std::vector<double>(count));
      std::vector<int32_t> status(ranks, 99);
      std::vector<WholeSvdProblem<double>> problems;
      for (int rank = 0; rank < ranks; ++rank) {
        const Operand<double> operand = {n, n, block, 0, blocks[rank].data(), &status[rank]};
        problems.push_back({operand,
                            true,
                            {subset, false, count < n ? u[rank].data() : nullptr, vh[rank].data(),
                             vh_block, (*values)[rank].data()}});
      }
      const auto device = NewHostDevice();
      SoloCommunicator solo;
      EXPECT(WholeSvdForAll<double>({*device, solo}, problems).ok());
      for (int32_t each : status) EXPECT(each == 0) << each;
      for (int64_t i = 0; i < n; ++i) {
        const auto& rows = count < n ? u : blocks;
        const double* row = rows[i / block].data() + i % block * count;
        vectors->insert(vectors->end(), row, row + count);
      }
      for (int64_t i = 0; i < count; ++i) {
        const double* row = vh[i / vh_block].data() + i % vh_block * n;
        vectors->insert(vectors->end(), row, row + n);
      }
    };
    std::vector<std::vector<double>> one, all;
    std::vector<double> vectors, vectors_of_all;
    run(1, &one, &vectors);
    run(3, &all, &vectors_of_all);
    for (const auto& each : all) EXPECT(each == one[0]);
    EXPECT(vectors == vectors_of_all);
  }
}

}  // namespace
}  // namespace jaxmg::testing
