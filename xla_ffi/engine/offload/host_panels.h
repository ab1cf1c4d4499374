// HostPanels: panels of a factor in host memory that are streamed to the devices, each to all
// ranks.
//
// In one process every rank loads them from host memory over its own link. Of several processes
// each has only the tile columns of its own ranks in its memory: a rank loads its own tile columns
// of a panel, and sends them to the other ranks.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_PANELS_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_PANELS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "xla_ffi/engine/offload/transfer.h"

namespace jaxmg {

template <typename T>
class HostPanels {
 public:
  // One panel is multiplied while two are loaded.
  static constexpr int64_t kBuffers = 3;

  // `memory` has the buffers, each of `chunk` columns. `ring`: null if there is none.
  HostPanels(Flow& flow, const HostMatrix& host, HostRing* ring, T* memory, int64_t chunk)
      : flow_(flow), host_(host), ring_(ring), memory_(memory), chunk_(chunk) {}

  // Where panel i is, with columns HostShape::ld() elements apart, and what a step reads that uses
  // it.
  T* at(size_t i) const {
    return memory_ + static_cast<int64_t>(i % kBuffers) * chunk_ * host_.shape.ld();
  }
  Data& data(size_t i) { return data_[i % kBuffers]; }

  // Loads panel i: whole tile columns of block column k.
  void Load(size_t i, int64_t k, const HostPart& part) {
    const int rank = flow_.comm().rank();
    const int64_t ld = host_.shape.ld();
    Room& room = rooms_[i % kBuffers];
    RingStep<T> on(ring_, flow_, Stream::kLoad, "load panel", k);
    on.Gives(data(i)).AwaitsSent(room);
    if (!host_.shape.spread) return on.Load(host_.factor[k], part, at(i), ld);
    const Tiles tiles = host_.shape.tiles(k);
    const int64_t first = part.column / tiles.width(), end = part.column + part.columns;
    for (int64_t p = first; p < tiles.nonempty() && tiles.offset(p) < end; ++p) {
      if (tiles.owner(p) != rank) continue;
      on.Load(host_.factor[k], {part.row, part.rows, host_.StoredColumn(p), tiles.width(p)},
              at(i) + (tiles.offset(p) - part.column) * ld, ld);
    }
    for (int64_t p = first; p < tiles.nonempty() && tiles.offset(p) < end; ++p) {
      on.Broadcast(tiles.owner(p), Block(at(i) + (tiles.offset(p) - part.column) * ld, ld,
                                         part.rows, tiles.width(p)));
    }
    flow_.NoteSent(room);
  }

  // Makes a step that overwrites the buffer of panel i, or all buffers, wait until the other ranks
  // have taken what was sent from there.
  void AwaitTaken(StepBase& step, size_t i) { step.AwaitsSent(rooms_[i % kBuffers]); }
  void AwaitTaken(StepBase& step) {
    for (Room& room : rooms_) step.AwaitsSent(room);
  }

 private:
  Flow& flow_;
  const HostMatrix& host_;
  HostRing* const ring_;
  T* const memory_;
  const int64_t chunk_;
  std::array<Data, kBuffers> data_;
  std::array<Room, kBuffers> rooms_;  // what was sent from them
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_PANELS_H_
