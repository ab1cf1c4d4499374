// ChaseKernels on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_CHASE_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_CHASE_H_

#include <cstdint>

#include "xla_ffi/device/cuda/blas.h"
#include "xla_ffi/device/eigen/chase_kernels.h"

namespace jaxmg {

class CudaDevice;

template <typename T>
class CudaChase : public ChaseKernels<T> {
  using R = Real<T>;

 public:
  CudaChase(CudaDevice& device, CudaBlas<T>& blas) : device_(device), blas_(blas) {}

  Status Chase(Stream stream, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first,
               int64_t sweeps, T* v, int64_t ldv, T* tau, int64_t ldtau) override;
  Status TakeTridiagonal(Stream stream, int64_t n, const T* band, int64_t ldb, R* d, R* e) override;
  Status ExpandReflectors(Stream stream, int64_t n, int64_t b, int64_t first, int64_t sweeps,
                          const T* v, int64_t ldv, const T* tau, int64_t ldtau, T* blocks,
                          T* weighted) override;
  Status ApplyGroups(Stream stream, const SweepGroups& groups, int64_t columns, int64_t at_once,
                     const T* blocks, const T* weighted, T* z, int64_t ldz, T* products) override;

 private:
  // Uses a kernel, if one exists and the device has enough shared memory.
  Status ApplyByTensorCores(Stream stream, const SweepGroups& groups, int64_t columns,
                            const T* blocks, const T* weighted, T* z, int64_t ldz, bool* done);

  CudaDevice& device_;
  CudaBlas<T>& blas_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_CHASE_H_
