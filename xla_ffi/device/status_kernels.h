// How a call's outcome comes about on the devices, without a word of the host: what each rank has
// found becomes one status, and results that are not to be used become NaN.
#ifndef JAXMG_XLA_FFI_DEVICE_STATUS_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_STATUS_KERNELS_H_

#include <complex>
#include <cstdint>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

// Infos, digests and statuses are numbers in device memory; constants.h says what they mean.
class StatusKernels {
 public:
  virtual ~StatusKernels() = default;

  // *info := what a rank has found before it has begun: kNoInfo, but where the device can tell that
  // this rank is another than its host took it for, kMisplaced.
  virtual Status InitInfo(Stream stream, int32_t* info) = 0;
  // *digest := a number that differs where `count` 32-bit words do, almost surely.
  virtual Status Digest(Stream stream, const void* words, int64_t count, int32_t* digest) = 0;
  // Of `count` pairs (info, digest), `stride` numbers apart: *status := the smallest info, or 0
  // where that is kNoInfo, but kDifferentOperands where the digests are not all the same.
  virtual Status ReduceInfo(Stream stream, const int32_t* pairs, int64_t stride, int64_t count,
                            int32_t* status) = 0;
  // *failure := *status where that is negative, else 0: for results that are NaN only then.
  virtual Status KeepNegative(Stream stream, const int32_t* status, int32_t* failure) = 0;
  // *sum := terms[0] + terms[stride] + ..., `count` of them, in this order.
  virtual Status SumReals(Stream stream, const float* terms, int64_t stride, int64_t count,
                          float* sum) = 0;
  virtual Status SumReals(Stream stream, const double* terms, int64_t stride, int64_t count,
                          double* sum) = 0;
  // *product := factors[0] * factors[stride] * ..., likewise.
  virtual Status Multiply(Stream stream, const float* factors, int64_t stride, int64_t count,
                          float* product) = 0;
  virtual Status Multiply(Stream stream, const double* factors, int64_t stride, int64_t count,
                          double* product) = 0;
  virtual Status Multiply(Stream stream, const std::complex<float>* factors, int64_t stride,
                          int64_t count, std::complex<float>* product) = 0;
  virtual Status Multiply(Stream stream, const std::complex<double>* factors, int64_t stride,
                          int64_t count, std::complex<double>* product) = 0;

  // Fills an m x n block with NaN if *status is not 0.
  virtual Status PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n, float* a,
                          int64_t lda) = 0;
  virtual Status PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n, double* a,
                          int64_t lda) = 0;
  virtual Status PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n,
                          std::complex<float>* a, int64_t lda) = 0;
  virtual Status PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n,
                          std::complex<double>* a, int64_t lda) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STATUS_KERNELS_H_
