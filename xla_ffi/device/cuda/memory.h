// GPU memory that several processes map: allocations of the driver that are shared by file
// descriptor. XLA's memory can't be shared this way.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_MEMORY_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_MEMORY_H_

#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {

// Call after CudaDriver and CudaRuntime have been opened.
MemorySource& CudaMemorySource();

// Whether this is memory of a segment, which kernels of all devices that the source serves can
// read.
bool IsSharedSegment(const void* data);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_MEMORY_H_
