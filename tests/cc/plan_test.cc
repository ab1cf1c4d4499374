#include "xla_ffi/engine/core/plan.h"

#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

TEST(TilesAreNarrowerIfARankHasFewRows) {
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

}  // namespace
}  // namespace jaxmg
