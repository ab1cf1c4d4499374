// The outcome of a call: checks for numbers that are not finite, and the combination of the ranks'
// records.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_OUTCOME_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_OUTCOME_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// *info := min(*info, kNotFinite) if an m x n block has NaN or infinity.
template <typename T>
__device__ void CheckAllFinite(Index m, Index n, const T* a, Index lda, int* info) {
  bool finite = true;
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) {
    finite &= Finite(a[i / m * lda + i % m]);
  }
  if (!finite) atomicMin(info, kNotFinite);
}

// Uses one block. Reduces the ranks' records (constants.h) as reduce_info, keep_negative, sum_reals
// and multiply do. Fills their results and x with NaN if the status is not 0 or, with a failure, if
// it is negative.
template <typename T>
__device__ void Conclude(const int* records, Index ranks, int* status, int* failure,
                         typename RealOf<T>::type* log_det, T* sign, T* x, Index count) {
  using R = typename RealOf<T>::type;
  __shared__ int spoils;
  if (threadIdx.x == 0) {
    int least = kNoInfo;
    R sum = 0;
    T product = FromReal<T>(1);
    for (Index i = 0; i < ranks; ++i) {
      const int* record = records + i * kRecordWords;
      least = min(least, record[0]);
      if (record[1] != records[1]) least = min(least, kDifferentOperands);
      sum += *reinterpret_cast<const R*>(record + kRecordLogDet);
      product = Times(product, *reinterpret_cast<const T*>(record + kRecordSign));
    }
    const int outcome = least == kNoInfo ? 0 : least;
    spoils = failure != nullptr ? min(outcome, 0) : outcome;
    *status = outcome;
    if (failure != nullptr) *failure = spoils;
    if (log_det != nullptr) *log_det = spoils != 0 ? Nan<R>() : sum;
    if (sign != nullptr) *sign = spoils != 0 ? Nan<T>() : product;
  }
  __syncthreads();
  if (spoils == 0) return;
  for (Index i = threadIdx.x; i < count; i += blockDim.x) x[i] = Nan<T>();
}

// *first := min(*first, offset + the first column, from 1, in which the lower trapezoid of an m x n
// block has NaN or infinity).
template <typename T>
__device__ void CheckFinite(Index m, Index n, const T* a, Index lda, Index offset, int* first) {
  for (Index i = FirstElement(); i < m * n; i += ElementStride()) {
    const Index row = i % m, column = i / m;
    if (row >= column && !Finite(a[column * lda + row])) {
      atomicMin(first, static_cast<int>(offset + column + 1));
    }
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_OUTCOME_CUH_
