// The outcome of a call on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STATUS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STATUS_H_

#include <array>
#include <complex>
#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/status_kernels.h"

namespace jaxmg {

class CudaDevice;

class CudaStatus : public StatusKernels {
 public:
  explicit CudaStatus(CudaDevice& device) : device_(device) {}

  // Sets the address of the rank coordinates in device memory, and the coordinates that the host
  // expects. InitInfo compares the two.
  void ExpectCoordinates(const int32_t* coordinates, int32_t rank, int32_t group) {
    coordinates_ = coordinates;
    expected_ = {rank, group};
  }

  Status InitInfo(Stream stream, int32_t* info) override;
  Status InitRecord(Device& device, Stream stream, int32_t* record, int one_at,
                    int32_t one) override;
  Status Digest(Stream stream, const void* words, int64_t count, int32_t* digest) override;
  Status ReduceInfo(Stream stream, const int32_t* pairs, int64_t stride, int64_t count,
                    int32_t* status) override;
  Status KeepNegative(Stream stream, const int32_t* status, int32_t* failure) override;
  Status SumReals(Stream stream, const float* terms, int64_t stride, int64_t count,
                  float* sum) override;
  Status SumReals(Stream stream, const double* terms, int64_t stride, int64_t count,
                  double* sum) override;
#define JAXMG_MULTIPLY(T)                                                                     \
  Status Multiply(Stream stream, const T* factors, int64_t stride, int64_t count, T* product) \
      override;
  JAXMG_FOR_EACH_DTYPE(JAXMG_MULTIPLY)
#undef JAXMG_MULTIPLY
#define JAXMG_POISON_IF(T)                                                                       \
  Status PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n, T* a, int64_t lda) \
      override;
  JAXMG_FOR_EACH_DTYPE(JAXMG_POISON_IF)
#undef JAXMG_POISON_IF
#define JAXMG_CONCLUDE(T) Status Conclude(Stream stream, const Conclusion<T>& of) override;
  JAXMG_FOR_EACH_DTYPE(JAXMG_CONCLUDE)
#undef JAXMG_CONCLUDE

  // The check of Blas::Potrf after cuSOLVER: records in *info a tile that has failed, or whose
  // diagonal is not finite. Sets *failed, in device memory, to the order of the leading minor in
  // the tile, or 0. Adds to *sum, unless it is null, as Blas::AddLogDet.
  template <typename T>
  Status CheckFactor(Stream stream, int64_t n, const T* a, int64_t lda, int64_t offset,
                     const int32_t* solver_info, int32_t* failed, int32_t* info,
                     Real<T>* sum = nullptr);
  // *first := min(*first, offset + k), where k is the first column (from 1) in which the lower
  // trapezoid of an m x n block is not finite.
  template <typename T>
  Status CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, int64_t offset,
                     int32_t* first);
  // *info := min(*info, kNotFinite) if an m x n block has NaN or infinity.
  template <typename T>
  Status CheckAllFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                        int32_t* info);
  // *info becomes the minimum of *info and offset + k for the first k (from 1) for which U's
  // diagonal element is zero, or kNotFinite. pivots[j] := offset + from_one[j] - 1.
  template <typename T>
  Status CheckLuFactor(Stream stream, int64_t n, const T* a, int64_t lda, int64_t offset,
                       const int64_t* from_one, int32_t* pivots, int32_t* info);

 private:
  Status Init(Stream stream, int32_t* info, int words, int one_at, int32_t one);
  template <typename T>
  Status ConcludeAtOnce(Stream stream, const Conclusion<T>& of);

  CudaDevice& device_;
  const int32_t* coordinates_ = nullptr;  // [rank, group]; null: no comparison
  std::array<int32_t, 2> expected_{};
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STATUS_H_
