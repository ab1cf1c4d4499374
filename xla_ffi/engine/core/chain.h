// Chain: sends blocks from their owner to all other ranks, one after the other. As Tuning::chain
// selects, a block passes from rank to rank, or its owner sends it to each rank.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_CHAIN_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_CHAIN_H_

#include "xla_ffi/engine/core/flow.h"

namespace jaxmg {

// Every rank calls Send (the owner) or Receive (all others) for the same blocks in the same order.
class Chain {
 public:
  Chain(int rank, int ranks, const Tuning& tuning)
      : rank_(rank), ranks_(ranks), passes_on_(tuning.chain) {}

  // Sends a block that this rank owns.
  template <typename T>
  void Send(Step<T>& on, const Bytes2D& block) const {
    if (ranks_ == 1) return;
    if (!passes_on_) return on.Broadcast(rank_, block);
    on.Send(Next(), block);
  }

  // Receives a block from `owner`, and passes it on if the next rank still needs it.
  template <typename T>
  void Receive(Step<T>& on, int owner, const Bytes2D& block) const {
    on.Recv(passes_on_ ? (rank_ + ranks_ - 1) % ranks_ : owner, block);
    if (passes_on_ && Next() != owner) on.Send(Next(), block);
  }

 private:
  int Next() const { return (rank_ + 1) % ranks_; }

  const int rank_, ranks_;
  const bool passes_on_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_CHAIN_H_
