// Memory of GPUs that several processes map: allocations of the driver's own kind, by file
// descriptor. Never XLA's memory.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_MEMORY_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_MEMORY_H_

#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {

// After CudaDriver and CudaRuntime have been opened.
MemorySource& CudaMemorySource();

// Whether it is memory of a segment, which kernels of all devices that the source serves may read.
bool IsSharedSegment(const void* data);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_MEMORY_H_
