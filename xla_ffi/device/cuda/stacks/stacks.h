// StackKernels on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_STACKS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_STACKS_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/stacks/stack_factor.h"
#include "xla_ffi/device/stacks/stack_kernels.h"

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
  Status ReduceToTridiagonal(Stream stream, int64_t count, int64_t n, R* a, R* d, R* e,
                             R* tau) override;
  Status ApplyReflectors(Stream stream, int64_t count, int64_t n, int64_t columns,
                         const T* reflectors, const T* tau, T* x) override;
  Status Merge(Stream stream, const StackedMerges<R>& merges, const MergedPairs<R>& pairs) override;
  Status FactorLu(Stream stream, int64_t count, int64_t n, T* a, int32_t* pivots) override;
  Status InvertSmall(Stream stream, int64_t count, int64_t n, const T* a, T* inverse) override;
  Status SolveSmall(Stream stream, int64_t count, int64_t n, int64_t nrhs, const T* a, const T* b,
                    T* x) override;
  Status FactorQr(Stream stream, int64_t count, int64_t m, int64_t n, T* a, T* q) override;
  Status MapSingularValues(Stream stream, int64_t count, int64_t m, int64_t n,
                           Polynomials polynomials, T* x) override;
  Status MapSingularValues(Stream stream, PartFormat format, int64_t count, int64_t m, int64_t n,
                           Polynomials polynomials, Part* x) override;
  Status FactorCholesky(Stream stream, bool upper, int64_t count, int64_t n, T* a) override;
  Status InvertTriangle(Stream stream, bool upper, int64_t count, int64_t n, T* a) override;
  Status SolveTriangle(Stream stream, StackedTriangle triangle, int64_t count, int64_t n,
                       int64_t nrhs, const T* a, T* b) override;
  Status MultiplyTriangle(Stream stream, int64_t count, int64_t n, const T* x, T* product) override;
  Status Multiply(Stream stream, Op op_x, Op op_y, int64_t count, int64_t m, int64_t n, int64_t k,
                  const T* x, const T* y, T* product) override;

 private:
  // C := alpha op(X) op(Y) + beta C for row-major matrices.
  Status MultiplyRows(Stream stream, int64_t count, int64_t m, int64_t n, int64_t k, R alpha,
                      const StackedFactor<T>& x, const StackedFactor<T>& y, R beta, T* product,
                      int64_t ld, int64_t size);
  // Copies contiguous elements.
  template <typename Element>
  Status Copy(Stream stream, const Element* source, Element* target, int64_t count);
  // Sets *bytes to the dynamic shared memory that a block may use, in addition to the kernel's own.
  Status SharedBytes(int* bytes) const;

  CudaDevice& device_;
  CudaBlas<T>& blas_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_STACKS_H_
