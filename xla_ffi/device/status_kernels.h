// StatusKernels: computes a call's outcome on the devices, without waiting on the host. The infos
// of the ranks are reduced to one status, and invalid results are filled with NaN.
#ifndef JAXMG_XLA_FFI_DEVICE_STATUS_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_STATUS_KERNELS_H_

#include <complex>
#include <cstdint>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

class Device;

// The results of StatusKernels::Conclude, which reduces the records of all ranks. Null pointers:
// not computed.
template <typename T>
struct Conclusion {
  const int32_t* records;  // kRecordWords each
  int64_t ranks;
  int32_t* status;
  int32_t* failure = nullptr;  // the status if that is negative, else 0
  Real<T>* log_det = nullptr;
  T* sign = nullptr;
  T* x = nullptr;  // a result of `count` elements
  int64_t count = 0;

  // Results become NaN if this number is not 0.
  const int32_t* spoils() const { return failure != nullptr ? failure : status; }
};

// Infos, digests and statuses are numbers in device memory; constants.h defines their values.
class StatusKernels {
 public:
  virtual ~StatusKernels() = default;

  // *info := kMisplaced if the device detects that the host has assumed wrong rank coordinates,
  // else kNoInfo.
  virtual Status InitInfo(Stream stream, int32_t* info) = 0;
  // *digest := a hash of `count` 32-bit words: different words almost surely have different
  // digests.
  virtual Status Digest(Stream stream, const void* words, int64_t count, int32_t* digest) = 0;
  // Reduces `count` pairs (info, digest), `stride` numbers apart: *status := kDifferentOperands if
  // the digests differ, else the smallest info, or 0 if that is kNoInfo.
  virtual Status ReduceInfo(Stream stream, const int32_t* pairs, int64_t stride, int64_t count,
                            int32_t* status) = 0;
  // *failure := *status if that is negative, else 0: for results that become NaN only then.
  virtual Status KeepNegative(Stream stream, const int32_t* status, int32_t* failure) = 0;
  // *sum := the sum of `count` terms: terms[0] + terms[stride] + ..., in this order.
  virtual Status SumReals(Stream stream, const float* terms, int64_t stride, int64_t count,
                          float* sum) = 0;
  virtual Status SumReals(Stream stream, const double* terms, int64_t stride, int64_t count,
                          double* sum) = 0;
  // *product := factors[0] * factors[stride] * ..., in this order.
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

  // Combinations of the above, for devices on which each launch takes time.
  // InitRecord: a record := InitInfo, the sign 1, and zeros. Word `one_at` receives the value `one`
  // for the sign.
  virtual Status InitRecord(Device& device, Stream stream, int32_t* record, int one_at,
                            int32_t one);
  // ReduceInfo, and KeepNegative, SumReals and Multiply if their results are requested. These
  // results and x are NaN if the failure, or the status if no failure is requested, is not 0.
#define JAXMG_CONCLUDE(T)                                                   \
  virtual Status Conclude(Stream stream, const Conclusion<T>& conclusion) { \
    return ConcludeInSteps(stream, conclusion);                             \
  }
  JAXMG_FOR_EACH_DTYPE(JAXMG_CONCLUDE)
#undef JAXMG_CONCLUDE

 protected:
  template <typename T>
  Status ConcludeInSteps(Stream stream, const Conclusion<T>& of) {
    JAXMG_RETURN_IF_ERROR(ReduceInfo(stream, of.records, kRecordWords, of.ranks, of.status));
    if (of.failure != nullptr) {
      JAXMG_RETURN_IF_ERROR(KeepNegative(stream, of.status, of.failure));
    }
    if (of.log_det != nullptr) {
      const auto* terms = reinterpret_cast<const Real<T>*>(of.records + kRecordLogDet);
      constexpr int64_t kStride = kRecordWords * sizeof(int32_t) / sizeof(Real<T>);
      JAXMG_RETURN_IF_ERROR(SumReals(stream, terms, kStride, of.ranks, of.log_det));
      JAXMG_RETURN_IF_ERROR(PoisonIf(stream, of.spoils(), 1, 1, of.log_det, 1));
    }
    if (of.sign != nullptr) {
      const auto* factors = reinterpret_cast<const T*>(of.records + kRecordSign);
      constexpr int64_t kStride = kRecordWords * sizeof(int32_t) / sizeof(T);
      JAXMG_RETURN_IF_ERROR(Multiply(stream, factors, kStride, of.ranks, of.sign));
      JAXMG_RETURN_IF_ERROR(PoisonIf(stream, of.spoils(), 1, 1, of.sign, 1));
    }
    if (of.count == 0) return Status::Ok();
    return PoisonIf(stream, of.spoils(), of.count, 1, of.x, of.count);
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STATUS_KERNELS_H_
