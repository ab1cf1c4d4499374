// LU panels, row interchanges and determinants on one NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_H_

#include <cstdint>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/lu_kernels.h"

namespace jaxmg {

class CudaDevice;

template <typename T>
class CudaLu : public LuKernels<T> {
  using R = Real<T>;

 public:
  CudaLu(CudaDevice& device, Blas<T>& blas) : device_(device), blas_(blas) {}

  Status FactorPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                     int32_t* pivots, int32_t* info) override;
  Status SwapRows(Stream stream, Order order, int64_t n, T* a, int64_t lda, int64_t offset,
                  int64_t count, const int32_t* pivots) override;
  Status SwapColumns(Stream stream, Order order, int64_t m, T* a, int64_t lda, int64_t count,
                     const int32_t* pivots) override;
  Status AddDeterminant(Stream stream, int64_t n, const T* u, int64_t ldu, int64_t offset,
                        const int32_t* pivots, R* log_abs, T* sign) override;

 private:
  // A panel that one kernel factors, of at most `columns` columns; and how many it can have.
  Status FactorColumns(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                       int32_t* pivots, int32_t* info);
  Status MostColumns(int64_t m, int64_t* columns) const;
  Status Blocks(int64_t m, int64_t* blocks) const;
  // Interchanges i and pivots[i] - offset of lines that are `line` elements apart, of which each
  // has n elements `element` elements apart.
  Status Swap(Stream stream, Order order, int64_t n, T* a, int64_t line, int64_t element,
              int64_t offset, int64_t count, const int32_t* pivots);

  CudaDevice& device_;
  Blas<T>& blas_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_H_
