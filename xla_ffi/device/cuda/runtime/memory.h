// GPU memory that several processes map: allocations of the driver that are shared through file
// descriptors. XLA's memory can't be shared this way.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_MEMORY_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_MEMORY_H_

#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {

// Requires that CudaDriver and CudaRuntime have been opened.
MemorySource& CudaMemorySource();

// Returns whether this is memory of a segment. Kernels of all devices that the source serves can
// read it.
bool IsSharedSegment(const void* data);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_MEMORY_H_
