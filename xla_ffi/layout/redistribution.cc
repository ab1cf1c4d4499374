#include "xla_ffi/layout/redistribution.h"

#include <algorithm>
#include <utility>

namespace jaxmg {
namespace {

// A tile that must leave `rank`'s `slot`.
struct Leaving {
  int rank;
  int64_t slot;
  int64_t tile;
};
using Cycle = std::vector<Leaving>;  // each tile moves to the rank and slot of the next one

// leaving[r][q]: the tiles that move from rank r to rank q, r != q. The last element is the next
// one to move.
using LeavingTable = std::vector<std::vector<std::vector<Leaving>>>;

LeavingTable TilesThatLeave(const Tiles& tiles) {
  const int ranks = tiles.ranks();
  LeavingTable leaving(ranks, std::vector<std::vector<Leaving>>(ranks));
  for (int64_t p = tiles.count() - 1; p >= 0; --p) {
    const int home = tiles.home(p), owner = tiles.owner(p);
    if (home != owner) leaving[home][owner].push_back({home, tiles.home_slot(p), p});
  }
  return leaving;
}

Leaving Take(std::vector<Leaving>& queue) {
  Leaving last = queue.back();
  queue.pop_back();
  return last;
}

// Takes the swaps of two ranks each, in the order of a round-robin tournament, so that all ranks
// are busy in most rounds.
void TakeSwaps(LeavingTable& leaving, std::vector<Cycle>& cycles) {
  const int ranks = static_cast<int>(leaving.size());
  for (bool found = true; found;) {
    found = false;
    for (int turn = 0; turn < ranks; ++turn) {
      for (int r = 0; r < ranks; ++r) {
        const int q = (turn - r + ranks) % ranks;
        if (r >= q || leaving[r][q].empty() || leaving[q][r].empty()) continue;
        cycles.push_back({Take(leaving[r][q]), Take(leaving[q][r])});
        found = true;
      }
    }
  }
}

// Takes the tiles that remain after the swaps. Each rank still sends as many tiles as it receives,
// so a walk along the remaining tiles always closes.
void TakeLongCycles(LeavingTable& leaving, std::vector<Cycle>& cycles) {
  const int ranks = static_cast<int>(leaving.size());
  auto next_rank = [&](int r) {
    for (int q = 0; q < ranks; ++q) {
      if (!leaving[r][q].empty()) return q;
    }
    return -1;
  };
  for (int start = 0; start < ranks; ++start) {
    while (next_rank(start) >= 0) {
      std::vector<int> path = {start};
      while (true) {
        const int q = next_rank(path.back());
        const auto seen = std::find(path.begin(), path.end(), q);
        if (seen != path.end()) {
          path.erase(path.begin(), seen);
          break;
        }
        path.push_back(q);
      }
      Cycle cycle;
      for (size_t i = 0; i < path.size(); ++i) {
        cycle.push_back(Take(leaving[path[i]][path[(i + 1) % path.size()]]));
      }
      cycles.push_back(std::move(cycle));
    }
  }
}

// Returns the moves that sort one rank's tiles. ready[slot] is the round in which the slot receives
// a tile from another rank, or -1. Cycles are in the order in which their slots are ready.
std::vector<MoveCycle> SortSlots(const Tiles& tiles, const std::vector<int64_t>& tile_in_slot,
                                 const std::vector<int>& ready) {
  std::vector<std::pair<int, MoveCycle>> cycles;
  std::vector<bool> done(tile_in_slot.size(), false);
  for (size_t start = 0; start < tile_in_slot.size(); ++start) {
    if (done[start]) continue;
    // The tile in slots[i] belongs in slots[i + 1].
    std::vector<int64_t> slots;
    int round = 0;
    for (int64_t s = start; !done[s]; s = tiles.slot(tile_in_slot[s])) {
      done[s] = true;
      slots.push_back(s);
      round = std::max(round, ready[s]);
    }
    if (slots.size() == 1) continue;
    MoveCycle moves;
    const int64_t last = slots.back();
    moves.push_back({tile_in_slot[last], last, TileMove::kStaging});
    for (size_t i = slots.size() - 1; i > 0; --i) {
      moves.push_back({tile_in_slot[slots[i - 1]], slots[i - 1], slots[i]});
    }
    moves.push_back({tile_in_slot[last], TileMove::kStaging, slots[0]});
    cycles.emplace_back(round, std::move(moves));
  }
  std::stable_sort(cycles.begin(), cycles.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<MoveCycle> sorted;
  for (auto& cycle : cycles) sorted.push_back(std::move(cycle.second));
  return sorted;
}

}  // namespace

std::vector<RedistributionPlan> PlanRedistribution(const Tiles& tiles) {
  const int ranks = tiles.ranks();
  std::vector<Cycle> cycles;
  LeavingTable leaving = TilesThatLeave(tiles);
  TakeSwaps(leaving, cycles);
  TakeLongCycles(leaving, cycles);

  std::vector<RedistributionPlan> plans(ranks);
  std::vector<std::vector<int64_t>> tile_in_slot(ranks, std::vector<int64_t>(tiles.slots()));
  for (int64_t p = 0; p < tiles.count(); ++p) {
    tile_in_slot[tiles.home(p)][tiles.home_slot(p)] = p;
  }
  // Puts a cycle into the first round in which all its ranks are free.
  std::vector<std::vector<bool>> busy;
  std::vector<size_t> first_free(ranks, 0);
  for (const Cycle& cycle : cycles) {
    size_t round = 0;
    for (const Leaving& part : cycle) round = std::max(round, first_free[part.rank]);
    auto is_free = [&](size_t i) {
      return i >= busy.size() || std::none_of(cycle.begin(), cycle.end(), [&](const Leaving& part) {
               return busy[i][part.rank];
             });
    };
    while (!is_free(round)) ++round;
    if (round >= busy.size()) busy.resize(round + 1, std::vector<bool>(ranks, false));
    for (size_t i = 0; i < cycle.size(); ++i) {
      const Leaving& given = cycle[i];
      const Leaving& taken = cycle[(i + cycle.size() - 1) % cycle.size()];
      const Leaving& receiver = cycle[(i + 1) % cycle.size()];
      plans[given.rank].exchanges.push_back(
          {static_cast<int>(round), receiver.rank, taken.rank, given.slot, given.tile, taken.tile});
      tile_in_slot[given.rank][given.slot] = taken.tile;
      busy[round][given.rank] = true;
      size_t& free = first_free[given.rank];
      while (free < busy.size() && busy[free][given.rank]) ++free;
    }
  }
  for (int r = 0; r < ranks; ++r) {
    std::stable_sort(plans[r].exchanges.begin(), plans[r].exchanges.end(),
                     [](const auto& a, const auto& b) { return a.round < b.round; });
    std::vector<int> ready(tiles.slots(), -1);
    for (const TileExchange& exchange : plans[r].exchanges) ready[exchange.slot] = exchange.round;
    plans[r].cycles = SortSlots(tiles, tile_in_slot[r], ready);
  }
  return plans;
}

RedistributionPlan Inverse(const RedistributionPlan& plan) {
  RedistributionPlan inverse = plan;
  std::reverse(inverse.exchanges.begin(), inverse.exchanges.end());
  for (TileExchange& exchange : inverse.exchanges) {
    std::swap(exchange.to, exchange.from);
    std::swap(exchange.outgoing, exchange.incoming);
    exchange.round = -exchange.round;  // ascending again, with equal numbers on all ranks
  }
  std::reverse(inverse.cycles.begin(), inverse.cycles.end());
  for (MoveCycle& cycle : inverse.cycles) {
    std::reverse(cycle.begin(), cycle.end());
    for (TileMove& move : cycle) std::swap(move.source, move.target);
  }
  return inverse;
}

}  // namespace jaxmg
