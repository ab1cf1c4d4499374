// Page-locked host memory of the caller.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_PINNED_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_PINNED_H_

#include <cstddef>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Registers memory for all devices, and undoes that.
Status RegisterOnCuda(void* address, size_t bytes);
Status UnregisterOnCuda(void* address);
// Sets *registered to whether the memory is page-locked, by whoever.
Status IsRegisteredOnCuda(const void* address, bool* registered);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_PINNED_H_
