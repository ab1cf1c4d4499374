// SecularKernels on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_SECULAR_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_SECULAR_H_

#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/eigen/secular_kernels.h"

namespace jaxmg {

class CudaDevice;

// Uses the kernels of T's real dtype.
template <typename T>
class CudaSecular : public SecularKernels<T> {
  using R = Real<T>;

 public:
  explicit CudaSecular(CudaDevice& device) : device_(device) {}

  Status Roots(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z, R rho,
               int limit, R* origin, R* tau, R* roots, int32_t* info) override;
  Status RefineZ(Stream stream, int64_t k, int64_t begin, int64_t end, const int32_t* order,
                 const R* d, const R* z, R rho, const R* origin, const R* tau, R* refined) override;
  Status Vectors(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z,
                 const R* origin, const R* tau, R* u, int64_t ldu) override;
  Status RotateColumns(Stream stream, int64_t rows, int64_t chains, const int32_t* starts,
                       const int32_t* first, const int32_t* second, const R* c, const R* s, R* q,
                       int64_t ldq) override;
  Status CopyColumns(Stream stream, int64_t rows, int64_t columns, const int32_t* from,
                     const R* source, int64_t lds, const int32_t* to, R* target,
                     int64_t ldt) override;

 private:
  CudaDevice& device_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_SECULAR_H_
