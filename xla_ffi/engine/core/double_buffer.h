// DoubleBuffer: prefetches a sequence of blocks that all ranks need, each block one step before
// use.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_DOUBLE_BUFFER_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_DOUBLE_BUFFER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {

// While kMain works on one buffer, kCopy fills the other one and sends from it.
template <typename T>
class DoubleBuffer {
 public:
  DoubleBuffer(Flow& flow, T* workspace, int64_t buffer_size)
      : flow_(flow), buffers_{workspace, workspace + buffer_size} {}

  // For each k in `order`, calls gather(on, k, buffer) in a step on kCopy, then use(on, k, buffer)
  // in a step named `name` on kMain.
  template <typename Gather, typename Use>
  void ForEach(const std::vector<int64_t>& order, const Gather& gather, const char* name,
               const Use& use, Stage* stage = nullptr) {
    auto fetch = [&](int64_t i) {
      Step<T> on(flow_, Stream::kCopy);
      on.Gives(fetched_[i % 2]).AwaitsSent(rooms_[i % 2]);
      gather(on, order[i], buffers_[i % 2]);
      flow_.NoteSent(rooms_[i % 2]);
    };
    Alternate(
        static_cast<int64_t>(order.size()), fetch, name, [&](int64_t i) { return order[i]; }, use,
        stage);
    Step<T>(flow_, Stream::kCopy).WaitAllSent();
    flow_.Join();
  }

  // As ForEach, for blocks that are only received: calls receive(on, i, buffer), which sends
  // nothing, for each i < count. Doesn't wait for blocks that the caller sent before, so ranks may
  // first send all blocks that the others will receive.
  template <typename Receive, typename Use>
  void ForEachReceived(int64_t count, const Receive& receive, const char* name, const Use& use,
                       Stage* stage = nullptr) {
    auto fetch = [&](int64_t i) {
      Step<T> on(flow_, Stream::kCopy);
      on.Gives(fetched_[i % 2]);
      receive(on, i, buffers_[i % 2]);
    };
    Alternate(count, fetch, name, [](int64_t i) { return i; }, use, stage);
    flow_.Join();
  }

 private:
  // Calls fetch(i) one step before use(on, index(i), buffer).
  template <typename Fetch, typename Index, typename Use>
  void Alternate(int64_t count, const Fetch& fetch, const char* name, const Index& index,
                 const Use& use, Stage* stage) {
    flow_.Fork();
    if (count > 0) fetch(0);
    for (int64_t i = 0; i < count; ++i) {
      if (i + 1 < count) fetch(i + 1);
      Step<T> on(flow_, Stream::kMain, name, index(i));
      on.Reads(fetched_[i % 2]);
      use(on, index(i), buffers_[i % 2]);
      if (stage != nullptr) stage->Done(Stream::kMain, i + 1);
    }
  }

  Flow& flow_;
  const std::array<T*, 2> buffers_;
  // Indexed by the parity of the step.
  std::array<Room, 2> rooms_;
  std::array<Data, 2> fetched_;
};

// To be called by a `gather`: sends tile column k of a factor, from its diagonal tile down, to all
// ranks. Stores its columns contiguously in `column`.
template <typename T>
void GatherColumn(Step<T>& on, const Matrix<T>& matrix, int64_t k, T* column) {
  const Tiles& tiles = matrix.tiles;
  const int64_t begin = tiles.offset(k), height = tiles.columns() - begin;
  const Bytes2D buffer = Block(column, height, height, tiles.width(k));
  if (tiles.owner(k) == matrix.rank) {
    on.Copy(buffer, Block(matrix.tile(k, begin), matrix.ld(), height, tiles.width(k)));
  }
  on.Broadcast(tiles.owner(k), buffer);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_DOUBLE_BUFFER_H_
