// StackElements on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_ELEMENTS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_ELEMENTS_H_

#include <cstdint>

#include "xla_ffi/device/cuda/kernels.h"
#include "xla_ffi/device/stacks/stack_elements.h"

namespace jaxmg {

class CudaDevice;

template <typename T>
class CudaElements : public StackElements<T> {
  using R = Real<T>;

 public:
  explicit CudaElements(CudaDevice& device) : device_(device) {}

  Status Scale(Stream stream, int64_t count, int64_t size, int64_t step, const T* a, T* scaled,
               int32_t* exponents) override;
  Status Sum(Stream stream, StackedSum what, int64_t count, int64_t size, int64_t n, const T* x,
             const T* y, double* sums) override;
  Status DivideByRoots(Stream stream, int64_t count, int64_t size, const double* sums, const T* a,
                       T* x) override;
  Status Combine(Stream stream, int64_t count, int64_t size, int64_t n,
                 const StackedTerms<T>& terms, T* out) override;
  Status MakeHermitian(Stream stream, int64_t count, int64_t n, T* a) override;

 private:
  // Launches the kernel with a block for each piece of a matrix.
  template <typename... Arguments>
  Status Launch(Kernel kernel, Stream stream, int64_t count, int64_t size, Arguments... arguments);

  CudaDevice& device_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_ELEMENTS_H_
