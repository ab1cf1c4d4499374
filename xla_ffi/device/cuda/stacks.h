// StackKernels on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/stack_kernels.h"

namespace jaxmg {

class CudaDevice;
template <typename T>
class CudaBlas;

template <typename T>
class CudaStacks : public StackKernels<T> {
  using R = Real<T>;

 public:
  CudaStacks(CudaDevice& device, CudaBlas<T>& blas) : device_(device), blas_(blas) {}

  Status SolveTridiagonal(Stream stream, int64_t count, int64_t n, const R* d, const R* e, R* w,
                          R* v) override;
  Status Merge(Stream stream, const StackedMerges<R>& merges, const MergedPairs<R>& pairs) override;
  Status FactorLu(Stream stream, int64_t count, int64_t n, T* a, int32_t* pivots) override;
  Status InvertSmall(Stream stream, int64_t count, int64_t n, const T* a, T* inverse) override;
  Status SolveSmall(Stream stream, int64_t count, int64_t n, int64_t nrhs, const T* a, const T* b,
                    T* x) override;
  Status FactorCholesky(Stream stream, bool upper, int64_t count, int64_t n, T* a) override;
  Status InvertTriangle(Stream stream, bool upper, int64_t count, int64_t n, T* a) override;
  Status SolveTriangle(Stream stream, StackedTriangle triangle, int64_t count, int64_t n,
                       int64_t nrhs, const T* a, T* b) override;
  Status MultiplyTriangle(Stream stream, int64_t count, int64_t n, const T* x, T* product) override;
  Status Multiply(Stream stream, bool transposed, int64_t count, int64_t m, int64_t n, int64_t k,
                  const T* x, const T* y, T* product) override;

 private:
  // The dynamic shared memory that a block may have, beside what its kernel declares.
  Status SharedBytes(int* bytes) const;

  CudaDevice& device_;
  CudaBlas<T>& blas_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_H_
