// Work on large ranges of host memory, on several threads.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_RANGES_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_RANGES_H_

#include <cstddef>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Writes one byte of each page, so that the system provides them. For fresh
// memory only.
Status TouchPages(void* address, size_t bytes, int threads);

// Copies rows of bytes from host memory to host memory.
struct HostRows {
  void* target;
  const void* source;
  size_t rows, row_bytes, target_pitch, source_pitch;
};
Status CopyOnHost(const HostRows& rows, int threads);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_RANGES_H_
