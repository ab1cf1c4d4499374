// The host as a Device: calls run immediately on the calling thread, with the routines of lapack.h.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_DEVICE_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "xla_ffi/device/device.h"

namespace jaxmg {

// Uses `allocate` and `free` for workspace, unless they are null.
struct HostAllocator {
  std::function<Status(size_t bytes, void** data)> allocate;
  std::function<void(void* data)> free;
};
std::unique_ptr<Device> NewHostDevice(HostAllocator allocator = {});

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_DEVICE_H_
