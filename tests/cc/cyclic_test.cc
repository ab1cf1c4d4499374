#include "xla_ffi/engine/core/cyclic.h"

#include <vector>

#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

TEST(ACyclicTileMustDivideTheBlock) {
  std::vector<double> data(2 * 10 * 3);
  const auto outcomes = RunRanks(2, [&](const RankContext& context) {
    return CyclicRoutine<double>(context, 10, 3, 4, false, data.data() + context.comm.rank() * 30);
  });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kInvalidArgument) << outcome.message();
  }
}

}  // namespace
}  // namespace jaxmg
