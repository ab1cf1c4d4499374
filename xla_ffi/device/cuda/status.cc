#include "xla_ffi/device/cuda/status.h"

#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {

Status CudaStatus::InitInfo(Stream stream, int32_t* info) { return Init(stream, info, 1, 0, 0); }

Status CudaStatus::InitRecord(Device&, Stream stream, int32_t* record, int one_at, int32_t one) {
  return Init(stream, record, kRecordWords, one_at, one);
}

Status CudaStatus::Init(Stream stream, int32_t* info, int words, int one_at, int32_t one) {
  int* stale = device_.resources().StaleFlag();
  return device_.LaunchOne(Kernel::init_info, 's', stream, coordinates_, expected_[0], expected_[1],
                           info, stale, words, one_at, one);
}

// A block fills a few elements with NaN in less time than another launch takes.
template <typename T>
Status CudaStatus::ConcludeAtOnce(Stream stream, const Conclusion<T>& of) {
  constexpr int64_t kFew = int64_t{1} << 15;
  const bool few = of.count <= kFew;
  JAXMG_RETURN_IF_ERROR(device_.LaunchOne(Kernel::conclude, CudaType<T>::kLetter, stream,
                                          of.records, of.ranks, of.status, of.failure, of.log_det,
                                          of.sign, of.x, few ? of.count : int64_t{0}));
  return few ? Status::Ok() : PoisonIf(stream, of.spoils(), of.count, 1, of.x, of.count);
}

#define JAXMG_CONCLUDE(T)                                               \
  Status CudaStatus::Conclude(Stream stream, const Conclusion<T>& of) { \
    return ConcludeAtOnce(stream, of);                                  \
  }
JAXMG_FOR_EACH_DTYPE(JAXMG_CONCLUDE)
#undef JAXMG_CONCLUDE

Status CudaStatus::Digest(Stream stream, const void* words, int64_t count, int32_t* digest) {
  JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, digest, 1, 0));
  return device_.LaunchElements(Kernel::digest, 's', stream, count, words, count, digest);
}

Status CudaStatus::ReduceInfo(Stream stream, const int32_t* pairs, int64_t stride, int64_t count,
                              int32_t* status) {
  return device_.LaunchOne(Kernel::reduce_info, 's', stream, pairs, stride, count, status);
}

Status CudaStatus::KeepNegative(Stream stream, const int32_t* status, int32_t* failure) {
  return device_.LaunchOne(Kernel::keep_negative, 's', stream, status, failure);
}

Status CudaStatus::SumReals(Stream stream, const float* terms, int64_t stride, int64_t count,
                            float* sum) {
  return device_.LaunchOne(Kernel::sum_reals, 's', stream, terms, stride, count, sum);
}

Status CudaStatus::SumReals(Stream stream, const double* terms, int64_t stride, int64_t count,
                            double* sum) {
  return device_.LaunchOne(Kernel::sum_reals, 'd', stream, terms, stride, count, sum);
}

#define JAXMG_MULTIPLY(T)                                                                     \
  Status CudaStatus::Multiply(Stream stream, const T* factors, int64_t stride, int64_t count, \
                              T* product) {                                                   \
    return device_.LaunchOne(Kernel::multiply, CudaType<T>::kLetter, stream, factors, stride, \
                             count, product);                                                 \
  }
JAXMG_FOR_EACH_DTYPE(JAXMG_MULTIPLY)
#undef JAXMG_MULTIPLY

#define JAXMG_POISON_IF(T)                                                                        \
  Status CudaStatus::PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n, T* a,   \
                              int64_t lda) {                                                      \
    return device_.LaunchElements(Kernel::poison_if, CudaType<T>::kLetter, stream, m * n, status, \
                                  m, n, a, lda);                                                  \
  }
JAXMG_FOR_EACH_DTYPE(JAXMG_POISON_IF)
#undef JAXMG_POISON_IF

template <typename T>
Status CudaStatus::CheckFactor(Stream stream, int64_t n, const T* a, int64_t lda, int64_t offset,
                               const int32_t* solver_info, int32_t* failed, int32_t* info,
                               Real<T>* sum) {
  return device_.LaunchOne(Kernel::check_factor, CudaType<T>::kLetter, stream, n, a, lda, offset,
                           solver_info, failed, info, sum);
}

template <typename T>
Status CudaStatus::CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                               int64_t offset, int32_t* first) {
  return device_.LaunchElements(Kernel::check_finite, CudaType<T>::kLetter, stream, m * n, m, n, a,
                                lda, offset, first);
}

template <typename T>
Status CudaStatus::CheckAllFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                                  int32_t* info) {
  return device_.LaunchElements(Kernel::check_all_finite, CudaType<T>::kLetter, stream, m * n, m, n,
                                a, lda, info);
}

template <typename T>
Status CudaStatus::CheckLuFactor(Stream stream, int64_t n, const T* a, int64_t lda, int64_t offset,
                                 const int64_t* from_one, int32_t* pivots, int32_t* info) {
  return device_.LaunchOne(Kernel::check_lu_factor, CudaType<T>::kLetter, stream, n, a, lda, offset,
                           from_one, pivots, info);
}

#define JAXMG_INSTANTIATE(T)                                                                    \
  template Status CudaStatus::CheckFactor(Stream, int64_t, const T*, int64_t, int64_t,          \
                                          const int32_t*, int32_t*, int32_t*, Real<T>*);        \
  template Status CudaStatus::CheckFinite(Stream, int64_t, int64_t, const T*, int64_t, int64_t, \
                                          int32_t*);                                            \
  template Status CudaStatus::CheckAllFinite(Stream, int64_t, int64_t, const T*, int64_t,       \
                                             int32_t*);                                         \
  template Status CudaStatus::CheckLuFactor(Stream, int64_t, const T*, int64_t, int64_t,        \
                                            const int64_t*, int32_t*, int32_t*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
