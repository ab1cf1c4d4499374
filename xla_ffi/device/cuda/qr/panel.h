// Panels of orthogonal reductions on one NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_QR_PANEL_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_QR_PANEL_H_

#include <cstdint>

#include "xla_ffi/device/panel_kernels.h"

namespace jaxmg {

class CudaDevice;

template <typename T>
class CudaPanel : public PanelKernels<T> {
  using R = Real<T>;

 public:
  explicit CudaPanel(CudaDevice& device) : device_(device) {}

  // Panels have at most kPanelColumns columns.
  Status QrPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t,
                 int64_t ldt) override;
  Status UnpackReflectors(Stream stream, int64_t m, int64_t k, const T* a, int64_t lda, T* v,
                          int64_t ldv) override;
  Status PackBand(Stream stream, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, T* band,
                  int64_t ldb) override;
  Status CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, int64_t offset,
                     int32_t* first) override;
  Status FromReal(Stream stream, int64_t m, int64_t n, const R* a, int64_t lda, T* b,
                  int64_t ldb) override;

 private:
  // QrPanel for panels whose rows fit into the registers of all multiprocessors.
  Status InRegisters(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t, int64_t ldt,
                     int multiprocessors);

  CudaDevice& device_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_QR_PANEL_H_
