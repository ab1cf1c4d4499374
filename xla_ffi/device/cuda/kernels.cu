// The engine's own kernels: the device's operations that cuBLAS and cuSOLVER don't provide. NVRTC
// compiles this file without the standard library. Matrices are column-major, if nothing else is
// said. kernels.h lists the kernels.
#include "xla_ffi/device/cuda/cholesky/kernels.cuh"
#include "xla_ffi/device/cuda/core/kernels.cuh"
#include "xla_ffi/device/cuda/eigen/kernels.cuh"
#include "xla_ffi/device/cuda/lu/kernels.cuh"
#include "xla_ffi/device/cuda/products/kernels.cuh"
#include "xla_ffi/device/cuda/qr/kernels.cuh"
#include "xla_ffi/device/cuda/stacks/kernels.cuh"
