// CUDA's number types, implemented with the host's types.
#ifndef JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_CUDA_TYPES_H_
#define JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_CUDA_TYPES_H_

#include <complex>

#include "tests/cc/support/host_cuda/cuComplex.h"

namespace host_cuda {

template <typename T>
struct CudaTypeOf {
  using type = T;
};
template <>
struct CudaTypeOf<std::complex<float>> {
  using type = cuComplex;
};
template <>
struct CudaTypeOf<std::complex<double>> {
  using type = cuDoubleComplex;
};
template <typename T>
using CudaType = typename CudaTypeOf<T>::type;

template <typename T>
CudaType<T>* Cast(T* data) {
  return reinterpret_cast<CudaType<T>*>(data);
}
template <typename T>
const CudaType<T>* Cast(const T* data) {
  return reinterpret_cast<const CudaType<T>*>(data);
}

}  // namespace host_cuda

#endif  // JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_CUDA_TYPES_H_
