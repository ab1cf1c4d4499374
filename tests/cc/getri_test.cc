// Residuals of inverses of an ill-conditioned matrix. lu_factor_test has the other tests of getri.
#include "xla_ffi/engine/lu/getri.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/cc/support/general_problem.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

constexpr int64_t kOrder = 10;

// Returns the largest element of |A X - I| / (n eps |A| |X|) for the inverse X of the Hilbert
// matrix A. For M, whose columns are A's rows, this is the residual of X M - I.
double HilbertResidual(int ranks, const Tuning& tuning) {
  GeneralProblem<double> problem(kOrder, kOrder, ranks);
  for (int64_t i = 0; i < kOrder * kOrder; ++i) {
    problem.a[i] = 1.0 / static_cast<double>(1 + i / kOrder + i % kOrder);
  }
  problem.Scatter();
  std::vector<int32_t> status(ranks, 7);
  const auto outcomes = RunRanks(
      ranks,
      [&](const RankContext& context) {
        const int rank = context.comm.rank();
        return GetriRoutine<double>(context, problem.operand(rank, 3, &status[rank]));
      },
      kPatience, [&](int) { return std::make_unique<TunedHost>(tuning); });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int32_t info : status) EXPECT(info == 0);
  std::vector<double> a = problem.a, inverse = problem.Rows();
  const std::vector<double> product = testing::Product(Op::kNone, kOrder, a, inverse);
  for (double& x : a) x = std::abs(x);
  for (double& x : inverse) x = std::abs(x);
  const std::vector<double> sizes = testing::Product(Op::kNone, kOrder, a, inverse);
  double error = 0;
  for (int64_t i = 0; i < kOrder * kOrder; ++i) {
    error = std::max(error, std::abs(product[i] - (i % (kOrder + 1) == 0 ? 1 : 0)) / sizes[i]);
  }
  return error / (kOrder * kEps<double>);
}

// A X - I, but not X A - I, is small relative to |A| |X|: no inverse makes both small.
TEST(ResidualOfAnIllConditionedMatrix) {
  Tuning whole = LikeGpu();
  whole.lu.whole_inverse_order = kOrder;
  const double alone = HilbertResidual(1, whole);
  EXPECT(alone <= 1) << alone;
  for (int ranks : {1, 3}) {
    const double shared = HilbertResidual(ranks, LikeGpu());
    EXPECT(shared <= 1) << ranks << " ranks: " << shared;
  }
}

}  // namespace
}  // namespace jaxmg
