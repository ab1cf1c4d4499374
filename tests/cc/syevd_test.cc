// SyevdRoutine on threads, with textbook LAPACK on one rank: every dtype, sizes, layouts and rank
// counts. eigen_test.cc tests the distributed eigensolver.
#include "xla_ffi/engine/eigen/syevd.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/eigen/eigenproblem.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
void CheckSyevd(const Case& c) {
  if (c.n > 100) return;  // one rank does all the work, with slow textbook LAPACK
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
      EXPECT(status[rank] == 0 && w[rank] == w[0]) << TextOf(c);
    }
    Real<T> trace = 0, sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      trace += std::real(problem.a[j * n + j]);
      sum += w[0][j];
      EXPECT(j == 0 || w[0][j - 1] <= w[0][j]) << TextOf(c);
    }
    EXPECT(std::abs(trace - sum) <= 100 * n * kEps<T> * problem.norm()) << TextOf(c);
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
    EXPECT(std::sqrt(residual) <= 30 * n * kEps<T> * problem.norm()) << TextOf(c);
    EXPECT(std::sqrt(orthogonality) <= 30 * n * kEps<T>) << TextOf(c);
  }
}

JAXMG_TEST_EACH_DTYPE(SyevdDecomposes, CheckSyevd)

TEST(StreamsOfSyevdWaitForEachOther) {
  for (const Case& c : kCases) {
    if (c.n > 70) continue;
    OnStreams(LikeGpu(), [&] { CheckSyevd<double>(c); });
  }
}

}  // namespace
}  // namespace jaxmg
