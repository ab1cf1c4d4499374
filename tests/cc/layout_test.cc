// Layout plans are the block-cyclic permutation in place, and their inverse restores the blocks.
#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/core/batches.h"
#include "xla_ffi/layout/redistribution.h"
#include "xla_ffi/layout/tiles.h"

namespace jaxmg {
namespace {

struct Case {
  int64_t columns, block, width;
  int ranks;
};

// Corner cases, then random ones from a fixed seed.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
    for (int64_t block : {1, 2, 3, 7, 16, 30}) {
      for (int64_t width : {1, 2, 3, 5, 16, 100}) {
        cases.push_back({block * ranks, block, width, ranks});
        cases.push_back(
            {block * ranks - std::min<int64_t>(block * ranks - 1, ranks / 2), block, width, ranks});
        cases.push_back({1, block, width, ranks});
      }
    }
  }
  std::mt19937 random(20261120);
  for (int i = 0; i < 500; ++i) {
    const int ranks = 1 + random() % 16;
    const int64_t block = 1 + random() % 200;
    cases.push_back({static_cast<int64_t>(1 + random() % (block * ranks)), block,
                     static_cast<int64_t>(1 + random() % 64), ranks});
  }
  return cases;
}

std::string Describe(const Case& c) {
  return "columns " + std::to_string(c.columns) + " block " + std::to_string(c.block) + " width " +
         std::to_string(c.width) + " ranks " + std::to_string(c.ranks);
}

TEST(TilesCoverEveryColumnOnce) {
  for (const Case& c : Cases()) {
    const Tiles tiles(c.columns, c.block, c.ranks, c.width);
    int64_t next = 0;
    for (int64_t p = 0; p < tiles.count(); ++p) {
      EXPECT(tiles.offset(p) == next) << Describe(c) << " tile " << p;
      EXPECT(tiles.width(p) >= 0 && tiles.width(p) <= tiles.width()) << Describe(c);
      EXPECT((tiles.width(p) > 0) == (p < tiles.nonempty())) << Describe(c) << " tile " << p;
      if (tiles.width(p) > 0) {
        // All columns of a tile are on its home rank.
        EXPECT(next / c.block == tiles.home(p)) << Describe(c);
        EXPECT((next + tiles.width(p) - 1) / c.block == tiles.home(p)) << Describe(c);
      }
      EXPECT(tiles.tile_in(tiles.owner(p), tiles.slot(p)) == p) << Describe(c);
      next += tiles.width(p);
    }
    EXPECT(next == c.columns) << Describe(c);
  }
}

TEST(SlotsBeforeCountsSmallerTiles) {
  for (const Case& c : Cases()) {
    const Tiles tiles(c.columns, c.block, c.ranks, c.width);
    for (int rank = 0; rank < c.ranks; ++rank) {
      for (int64_t p = 0; p <= tiles.count(); p += 1 + tiles.count() / 7) {
        int64_t expected = 0;
        for (int64_t s = 0; s < tiles.slots(); ++s) expected += tiles.tile_in(rank, s) < p;
        EXPECT(tiles.slots_before(rank, p) == expected) << Describe(c) << " before " << p;
      }
    }
  }
}

TEST(EvenWidthKeepsTheNumberOfTiles) {
  for (int64_t block = 1; block < 200; ++block) {
    for (int64_t width = 1; width < 220; width += 3) {
      const int64_t even = Tiles::EvenWidth(block, width);
      const int64_t tiles = (block + std::min(width, block) - 1) / std::min(width, block);
      EXPECT(even >= 1 && even <= width) << block << " " << width;
      EXPECT((block + even - 1) / even <= tiles) << block << " " << width;
      EXPECT(Tiles::EvenWidth(block, even) == even) << block << " " << width;
      // The width is a multiple of the largest power of two, at most 64, that has a multiple
      // between the narrowest width and `width`.
      const int64_t least = (block + tiles - 1) / tiles, most = std::min(width, block);
      for (int64_t multiple = 64; multiple > 0; multiple /= 2) {
        if ((least + multiple - 1) / multiple * multiple > most) continue;
        EXPECT(even % multiple == 0 && even < least + multiple) << block << " " << width;
        break;
      }
    }
  }
}

// Executes plans on tile numbers, with one staging tile per rank. Checks every step.
class Simulation {
 public:
  explicit Simulation(const Tiles& tiles)
      : tiles_(tiles), slots_(tiles.ranks(), std::vector<int64_t>(tiles.slots())) {}

  int64_t& at(int rank, int64_t slot) { return slots_[rank][slot]; }

  bool Exchange(const std::vector<RedistributionPlan>& plans) {
    std::set<int> rounds;
    for (const auto& plan : plans) {
      for (const auto& exchange : plan.exchanges) rounds.insert(exchange.round);
    }
    bool ok = true;
    for (int round : rounds) {
      const auto before = slots_;
      for (int rank = 0; rank < tiles_.ranks(); ++rank) {
        int parts = 0;
        for (const auto& exchange : plans[rank].exchanges) {
          if (exchange.round != round) continue;
          ++parts;
          ok &= exchange.to != rank && exchange.from != rank;
          ok &= before[rank][exchange.slot] == exchange.outgoing;
          // The rank from which this one receives sends to it in the same round.
          bool matched = false;
          for (const auto& other : plans[exchange.from].exchanges) {
            matched |=
                other.round == round && other.to == rank && other.outgoing == exchange.incoming;
          }
          ok &= matched;
          slots_[rank][exchange.slot] = exchange.incoming;
        }
        ok &= parts <= 1;
      }
    }
    return ok;
  }

  bool Move(const std::vector<RedistributionPlan>& plans) {
    bool ok = true;
    for (int rank = 0; rank < tiles_.ranks(); ++rank) {
      int64_t staging = -1;
      for (const MoveCycle& cycle : plans[rank].cycles) {
        ok &= cycle.front().target == TileMove::kStaging;
        ok &= cycle.back().source == TileMove::kStaging;
        for (const TileMove& move : cycle) {
          int64_t& from = move.source == TileMove::kStaging ? staging : slots_[rank][move.source];
          int64_t& to = move.target == TileMove::kStaging ? staging : slots_[rank][move.target];
          ok &= from == move.tile;
          to = from;
        }
      }
    }
    return ok;
  }

 private:
  const Tiles& tiles_;
  std::vector<std::vector<int64_t>> slots_;
};

TEST(PlansAreTheBlockCyclicPermutationAndTheirInverse) {
  for (const Case& c : Cases()) {
    const Tiles tiles(c.columns, c.block, c.ranks, c.width);
    const auto plans = PlanRedistribution(tiles);
    Simulation simulation(tiles);
    for (int64_t p = 0; p < tiles.count(); ++p)
      simulation.at(tiles.home(p), tiles.home_slot(p)) = p;
    EXPECT(simulation.Exchange(plans)) << Describe(c);
    EXPECT(simulation.Move(plans)) << Describe(c);
    for (int64_t p = 0; p < tiles.count(); ++p) {
      EXPECT(simulation.at(tiles.owner(p), tiles.slot(p)) == p) << Describe(c) << " tile " << p;
    }
    std::vector<RedistributionPlan> back;
    for (const auto& plan : plans) back.push_back(Inverse(plan));
    for (const auto* both : {&plans, &std::as_const(back)}) {
      for (const auto& plan : *both) {
        // Each rank executes its exchanges in order and waits for its partners, which do the same.
        EXPECT(std::is_sorted(plan.exchanges.begin(), plan.exchanges.end(),
                              [](const auto& a, const auto& b) { return a.round < b.round; }))
            << Describe(c);
      }
    }
    EXPECT(simulation.Move(back)) << Describe(c);
    EXPECT(simulation.Exchange(back)) << Describe(c);
    for (int64_t p = 0; p < tiles.count(); ++p) {
      EXPECT(simulation.at(tiles.home(p), tiles.home_slot(p)) == p) << Describe(c);
    }
  }
}

TEST(BatchesContainEveryPanelOnce) {
  for (const Case& c : Cases()) {
    const Tiles tiles(c.columns, c.block, c.ranks, c.width);
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Batches batches(tiles, rank, 3);
      int64_t next = 0, columns = 0;
      for (const Batch& batch : batches.all()) {
        EXPECT(batch.first == next && batch.last < next + (next == 0 ? 1 : 3)) << Describe(c);
        for (; next <= batch.last; ++next) EXPECT(batches.of(next).index == batch.index);
        const int64_t first = batches.FirstTrailing(batch), window = batches.EndOfWindow(batch);
        EXPECT(first <= window && window <= batches.EndTrailing()) << Describe(c);
        EXPECT(first == 0 || tiles.tile_in(rank, first - 1) <= batch.last + 1) << Describe(c);
        EXPECT(tiles.tile_in(rank, first) > batch.last + 1) << Describe(c);
      }
      EXPECT(next == std::max<int64_t>(tiles.nonempty() - 1, 0)) << Describe(c);
      for (int64_t slot = 0; slot < tiles.slots(); ++slot) {
        EXPECT(batches.Columns(0, slot) == columns) << Describe(c);
        columns += tiles.width(tiles.tile_in(rank, slot));
      }
    }
  }
}

TEST(ExchangesAreSwapsIfRanksDivideTheTiles) {
  const Tiles tiles(4 * 64, 64, 4, 8);
  for (int rank = 0; rank < 4; ++rank) {
    const auto plan = PlanRedistribution(tiles)[rank];
    EXPECT(plan.exchanges.size() == 6) << plan.exchanges.size();
    for (size_t i = 0; i < plan.exchanges.size(); ++i) {
      EXPECT(plan.exchanges[i].to == plan.exchanges[i].from);
      // No rank is ever idle: its i-th exchange is in round i.
      EXPECT(plan.exchanges[i].round == static_cast<int>(i)) << "rank " << rank;
    }
  }
}

// Returns the round after which each of a rank's cycles of moves can begin.
std::vector<int> RoundsOfCycles(const Tiles& tiles, const RedistributionPlan& plan) {
  std::vector<int> ready(tiles.slots(), -1), rounds;
  for (const TileExchange& exchange : plan.exchanges) ready[exchange.slot] = exchange.round;
  for (const MoveCycle& cycle : plan.cycles) {
    int latest = -1;
    for (const TileMove& move : cycle) {
      if (move.source != TileMove::kStaging) latest = std::max(latest, ready[move.source]);
    }
    rounds.push_back(latest);
  }
  return rounds;
}

TEST(MovesAreInTheOrderInWhichTheirSlotsAreReady) {
  for (const Case& c : Cases()) {
    const Tiles tiles(c.columns, c.block, c.ranks, c.width);
    for (const RedistributionPlan& plan : PlanRedistribution(tiles)) {
      const std::vector<int> rounds = RoundsOfCycles(tiles, plan);
      EXPECT(std::is_sorted(rounds.begin(), rounds.end())) << Describe(c);
    }
  }
  // A third of the moves begin before the last quarter of the 24 rounds.
  const Tiles tiles(4 * 256, 256, 4, 8);
  for (const RedistributionPlan& plan : PlanRedistribution(tiles)) {
    const std::vector<int> rounds = RoundsOfCycles(tiles, plan);
    size_t early = 0, all = 0;
    for (size_t i = 0; i < rounds.size(); ++i) {
      all += plan.cycles[i].size();
      early += rounds[i] < 18 ? plan.cycles[i].size() : 0;
    }
    EXPECT(3 * early >= all && all > 0) << early << " of " << all;
  }
}

}  // namespace
}  // namespace jaxmg
