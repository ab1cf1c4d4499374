// The host as a Device: calls run at once, on the calling thread, through the routines of
// lapack.h.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_H_

#include <memory>

#include "xla_ffi/device/device.h"

namespace jaxmg {

std::unique_ptr<Device> NewHostDevice();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_H_
