// HostRing: pinned memory through which blocks of pageable host memory are copied to and from a
// device. A copy from pageable memory by the driver takes one core's time for all bytes; here all
// cores copy to a slot of the ring, from which the device copies at the speed of the link.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_RING_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_RING_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "xla_ffi/device/device.h"

namespace jaxmg {

// Pinned memory of the caller for the rings of all ranks, and the number of threads that copy. No
// bytes: there is no ring, and the driver copies pageable memory.
struct HostRingMemory {
  void* data = nullptr;
  size_t bytes = 0;
  int threads = 1;
};

// A rank's part of the ring, for one call. Load and Store block the calling thread while they copy
// on the host and until a slot is free. A store is in its place after Drain.
class HostRing {
 public:
  HostRing(Device& device, const HostRingMemory& memory, int rank, int ranks);

  // Creates the events.
  Status Prepare();
  // Whether there is memory for a ring.
  bool works() const { return !slots_.empty(); }

  // As Device::Copy, from or to host memory.
  Status Load(Stream stream, const Bytes2D& target, const Bytes2D& source);
  Status Store(Stream stream, const Bytes2D& target, const Bytes2D& source);
  // Waits for all stores, and copies them to their places.
  Status Drain();

 private:
  struct Slot {
    char* data;
    std::shared_ptr<Event> event;
    bool used = false;    // whether a copy from or to it may be under way
    Bytes2D target = {};  // where a store goes; no data: it was a load, or is complete
  };

  // Calls part(target, source) for parts that fit in a slot.
  template <typename Part>
  Status ForParts(const Bytes2D& target, const Bytes2D& source, const Part& part);
  // Waits until a slot is free, and returns it in *slot.
  Status Take(Slot** slot);
  Status Complete(Slot& slot);

  Device& device_;
  const int threads_;
  size_t bytes_ = 0;  // of a slot
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_RING_H_
