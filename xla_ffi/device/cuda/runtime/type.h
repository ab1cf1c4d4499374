// NVIDIA's names for the dtypes.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_TYPE_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_TYPE_H_

#include <complex>

#include "xla_ffi/device/cuda/runtime/library.h"

namespace jaxmg {

// NVIDIA's constants for a dtype.
template <typename T>
struct CudaType;
template <>
struct CudaType<float> {
  static constexpr char kLetter = 's';
  static constexpr cudaDataType kValue = CUDA_R_32F;
};
template <>
struct CudaType<double> {
  static constexpr char kLetter = 'd';
  static constexpr cudaDataType kValue = CUDA_R_64F;
};
template <>
struct CudaType<std::complex<float>> {
  static constexpr char kLetter = 'c';
  static constexpr cudaDataType kValue = CUDA_C_32F;
};
template <>
struct CudaType<std::complex<double>> {
  static constexpr char kLetter = 'z';
  static constexpr cudaDataType kValue = CUDA_C_64F;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_TYPE_H_
