// Memory that several processes of a host map: what a platform has to give for that. Which segments
// there are, and who has mapped them, is comm/processes/segments.h's.
#ifndef JAXMG_XLA_FFI_DEVICE_SHARED_MEMORY_H_
#define JAXMG_XLA_FFI_DEVICE_SHARED_MEMORY_H_

#include <cstddef>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Lives as long as the process. Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  // Device `ordinal` of this process works with all segments from now on, those that are there
  // already too.
  virtual Status Serve(int ordinal) = 0;
  // A new segment of device `ordinal`, of `*bytes` or a little more, and a file that stands for it,
  // which is the caller's to close.
  virtual Status Make(int ordinal, size_t* bytes, void** data, int* file) = 0;
  // The segment of another process that a file of its stands for.
  virtual Status Map(int file, size_t bytes, void** data) = 0;
  // Of either.
  virtual void Unmap(void* data, size_t bytes) noexcept = 0;

  // Whether the host reads and writes it too, so that blocks of it may pass through sockets.
  virtual bool IsHost() const = 0;

  // Streams may signal and wait for words of this memory of the host (Device::Signal).
  virtual Status Register(void* words, size_t bytes) = 0;
};

// The host's own: memory without a name in any file system.
MemorySource& HostMemorySource();

// A segment of the host's memory. `file` is the caller's to close.
Status MakeHostSegment(size_t bytes, void** data, int* file);
Status MapHostSegment(int file, size_t bytes, void** data);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_SHARED_MEMORY_H_
