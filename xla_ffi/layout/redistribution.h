// RedistributionPlan: the moves that turn contiguous blocks of tiles into block-cyclic ones in
// place, and back.
//
// The permutation p -> (p mod P) * slots + p div P transposes a slots x P matrix of tiles. It is
// carried out in two phases.
//
// 1. Exchanges between ranks. Every rank has as many tiles to give away as to take, so the tiles
//    that cross ranks fall apart into cycles over ranks: nearly all of them swaps between two
//    ranks, a few longer where P divides no block evenly. In a cycle each rank sends the tile in
//    one slot and receives another into that same slot, so nothing but the chunk in flight is
//    staged. Cycles that share no rank form a round, and all cycles of a round run at once.
// 2. Moves inside each rank, which bring its tiles into ascending order: cycles over slots, and
//    one staging tile. The cycle whose slots are first through with their exchanges comes first.
//
// The way back runs the same steps in the opposite order and direction.
#ifndef JAXMG_XLA_FFI_LAYOUT_REDISTRIBUTION_H_
#define JAXMG_XLA_FFI_LAYOUT_REDISTRIBUTION_H_

#include <cstdint>
#include <vector>

#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// One rank's part in a cycle: tile `outgoing` leaves `slot` for rank `to`, and tile `incoming`
// arrives in the same slot from rank `from`.
struct TileExchange {
  int round;
  int to;
  int from;
  int64_t slot;
  int64_t outgoing;
  int64_t incoming;
};

// A move inside a rank; kStaging stands for the staging tile.
struct TileMove {
  static constexpr int64_t kStaging = -1;
  int64_t tile;
  int64_t source;
  int64_t target;
};

// The moves of one cycle: the first goes to the staging tile, the last comes from there.
using MoveCycle = std::vector<TileMove>;

// What one rank has to do to get from contiguous blocks to block-cyclic tiles.
struct RedistributionPlan {
  std::vector<TileExchange> exchanges;
  std::vector<MoveCycle> cycles;
};

// The plans of all ranks. Deterministic: every rank computes the same ones.
std::vector<RedistributionPlan> PlanRedistribution(const Tiles& tiles);

// The plan that undoes `plan`.
RedistributionPlan Inverse(const RedistributionPlan& plan);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_LAYOUT_REDISTRIBUTION_H_
