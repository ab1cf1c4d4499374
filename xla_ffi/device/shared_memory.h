// MemorySource: a platform's interface to memory that several processes of a host map.
// comm/processes/links/segments.h manages the segments.
#ifndef JAXMG_XLA_FFI_DEVICE_SHARED_MEMORY_H_
#define JAXMG_XLA_FFI_DEVICE_SHARED_MEMORY_H_

#include <cstddef>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Lives as long as the process. Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  // Gives device `ordinal` of this process access to all present and future segments.
  virtual Status Serve(int ordinal) = 0;
  // Creates a segment of device `ordinal` with at least `*bytes` bytes, sets `*bytes` to its size,
  // and returns a file descriptor for it, which the caller must close.
  virtual Status Make(int ordinal, size_t* bytes, void** data, int* file) = 0;
  // Maps the segment of another process, given its file descriptor.
  virtual Status Map(int file, size_t bytes, void** data) = 0;
  // Unmaps a segment of either kind.
  virtual void Unmap(void* data, size_t bytes) noexcept = 0;

  // Returns whether the host can access the memory, so that its blocks can be sent through sockets.
  virtual bool IsHost() const = 0;

  // Allows streams to set and wait for words in this host memory (Device::RecordShared).
  virtual Status Register(void* words, size_t bytes) = 0;
};

// The source of host memory, which has no name in any file system.
MemorySource& HostMemorySource();

// Creates and maps a segment of host memory. The caller must close `file`.
Status MakeHostSegment(size_t bytes, void** data, int* file);
Status MapHostSegment(int file, size_t bytes, void** data);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_SHARED_MEMORY_H_
