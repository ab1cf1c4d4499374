// The harness runs the requested tests, and fails if no test matches.
#include "tests/cc/support/testing.h"

#include <string>
#include <vector>

namespace jaxmg::testing {
namespace {

int one = 0, other = 0;

TEST(AlphaCounts) { ++one; }
TEST(BetaCounts) { ++other; }

int Runs(const std::vector<std::string>& parts, const char* filter) {
  one = other = 0;
  return Main(parts, filter);
}

TEST(PartsOfNamesSelect) {
  EXPECT(Runs({"phaC"}, nullptr) == 0 && one == 1 && other == 0);
  EXPECT(Runs({"Alpha", "BetaC"}, nullptr) == 0 && one == 1 && other == 1);
  EXPECT(Select({}).size() == Tests().size());
}

TEST(BazelsFilterSelects) {
  EXPECT(Runs({}, "BetaC") == 0 && one == 0 && other == 1);
  EXPECT(Runs({}, "NoSuch,AlphaC") == 0 && one == 1 && other == 0);
}

TEST(NoSelectedTestIsAFailure) {
  EXPECT(Runs({"NoSuch"}, nullptr) == 1 && one == 0 && other == 0);
  EXPECT(Runs({}, "NoSuch") == 1 && one == 0 && other == 0);
}

TEST(ListRunsNothing) { EXPECT(Runs({"--list"}, nullptr) == 0 && one == 0 && other == 0); }

}  // namespace
}  // namespace jaxmg::testing
