// RedistributionPlan: the moves that turn contiguous blocks of tiles into the block-cyclic layout
// in place, and back.
//
// The permutation p -> (p mod P) * slots + p div P transposes a slots x P matrix of tiles. It has
// two phases.
//
// 1. Exchanges between ranks. Every rank sends as many tiles as it receives, so the tiles that
//    change ranks form cycles of ranks: nearly all are swaps between two ranks; a few are longer if
//    P does not divide a block evenly. In a cycle each rank sends the tile in one slot and receives
//    another tile into the same slot, so only the part in transfer is staged. Cycles that share no
//    rank form a round, and all cycles of a round run at once.
// 2. Moves within each rank, which sort its tiles into ascending order: cycles over slots, with one
//    staging tile. Cycles run in the order in which their slots complete their exchanges.
//
// The inverse runs the same steps in the opposite order and direction.
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

// A move within a rank. kStaging denotes the staging tile.
struct TileMove {
  static constexpr int64_t kStaging = -1;
  int64_t tile;
  int64_t source;
  int64_t target;
};

// The moves of one cycle: the first one goes to the staging tile, the last one comes from it.
using MoveCycle = std::vector<TileMove>;

// One rank's steps from contiguous blocks to block-cyclic tiles.
struct RedistributionPlan {
  std::vector<TileExchange> exchanges;
  std::vector<MoveCycle> cycles;
};

// Returns the plans of all ranks. Deterministic: every rank computes the same plans.
std::vector<RedistributionPlan> PlanRedistribution(const Tiles& tiles);

// Returns the plan that undoes `plan`.
RedistributionPlan Inverse(const RedistributionPlan& plan);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_LAYOUT_REDISTRIBUTION_H_
