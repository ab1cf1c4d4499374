// NCCL as what carries blocks between GPUs of different processes (wire.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_WIRE_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_WIRE_H_

#include "xla_ffi/device/wire.h"

namespace jaxmg {

// The process's only one. Opens the library when it is first asked for wires.
WireSource& NcclWires();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_WIRE_H_
