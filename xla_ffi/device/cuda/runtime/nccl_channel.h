// NCCL channels between GPUs of different processes (nccl_channel.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_NCCL_CHANNEL_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_NCCL_CHANNEL_H_

#include "xla_ffi/device/nccl_channel.h"

namespace jaxmg {

// Returns the process's single instance. Loads the NCCL library when it is first opened.
ChannelSource& NcclChannelSource();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_NCCL_CHANNEL_H_
