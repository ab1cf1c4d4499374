// Kernels that all algorithms use: elementwise operations, copies, the outcome of a call.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CORE_KERNELS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CORE_KERNELS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/kernel.cuh"
#include "xla_ffi/device/cuda/core/outcome.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/tiles.cuh"

namespace jaxmg::kernels {

#define CORE_KERNELS(T, R, letter)                                                                 \
  KERNEL jaxmg_add_##letter(Index m, Index n, const T* a, Index lda, T* b, Index ldb) {            \
    for (Index i = FirstElement(); i < m * n; i += ElementStride()) {                              \
      T& sum = b[i / m * ldb + i % m];                                                             \
      sum = Plus(sum, a[i / m * lda + i % m]);                                                     \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_check_all_finite_##letter(Index m, Index n, const T* a, Index lda, int* info) {     \
    CheckAllFinite(m, n, a, lda, info);                                                            \
  }                                                                                                \
  KERNEL jaxmg_check_finite_##letter(Index m, Index n, const T* a, Index lda, Index offset,        \
                                     int* first) {                                                 \
    CheckFinite(m, n, a, lda, offset, first);                                                      \
  }                                                                                                \
  KERNEL jaxmg_conclude_##letter(const int* records, Index ranks, int* status, int* failure,       \
                                 R* log_det, T* sign, T* x, Index count) {                         \
    Conclude(records, ranks, status, failure, log_det, sign, x, count);                            \
  }                                                                                                \
  KERNEL jaxmg_conj_transpose_##letter(Index m, Index n, const T* a, Index lda, T* b, Index ldb) { \
    ConjTranspose(m, n, a, lda, b, ldb);                                                           \
  }                                                                                                \
  KERNEL jaxmg_conjugate_##letter(Index m, Index n, T* a, Index lda) {                             \
    for (Index i = FirstElement(); i < m * n; i += ElementStride()) {                              \
      a[i / m * lda + i % m] = Conj(a[i / m * lda + i % m]);                                       \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_from_real_##letter(Index m, Index n, const R* a, Index lda, T* b, Index ldb) {      \
    for (Index i = FirstElement(); i < m * n; i += ElementStride()) {                              \
      b[i / m * ldb + i % m] = FromReal<T>(a[i / m * lda + i % m]);                                \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_identity_##letter(Index n, T* a, Index lda) {                                       \
    for (Index i = FirstElement(); i < n * n; i += ElementStride()) {                              \
      a[i / n * lda + i % n] = FromReal<T>(i / n == i % n ? 1 : 0);                                \
    }                                                                                              \
  }                                                                                                \
  KERNEL jaxmg_mirror_lower_##letter(Index n, T* a, Index lda) { MirrorLower(n, a, lda); }         \
  KERNEL jaxmg_multiply_##letter(const T* factors, Index stride, Index count, T* product) {        \
    if (threadIdx.x != 0) return;                                                                  \
    T total = FromReal<T>(1);                                                                      \
    for (Index i = 0; i < count; ++i) total = Times(total, factors[i * stride]);                   \
    *product = total;                                                                              \
  }                                                                                                \
  KERNEL jaxmg_poison_if_##letter(const int* status, Index m, Index n, T* a, Index lda) {          \
    if (*status != 0) Fill(m, n, a, lda, Nan<T>());                                                \
  }                                                                                                \
  KERNEL jaxmg_sum_reals_##letter(const R* terms, Index stride, Index count, R* sum) {             \
    if (threadIdx.x != 0) return;                                                                  \
    R total = 0;                                                                                   \
    for (Index i = 0; i < count; ++i) total += terms[i * stride];                                  \
    *sum = total;                                                                                  \
  }

CORE_KERNELS(float, float, s)
CORE_KERNELS(double, double, d)
CORE_KERNELS(cuComplex, float, c)
CORE_KERNELS(cuDoubleComplex, double, z)
#undef CORE_KERNELS

// Copies columns of `height` bytes.
KERNEL jaxmg_copy_columns(char* target, Index target_pitch, const char* source, Index source_pitch,
                          Index height) {
  const Index all = reinterpret_cast<Index>(target) | reinterpret_cast<Index>(source) |
                    target_pitch | source_pitch | height;
  const Index segments = (height + kCopySegment - 1) / kCopySegment, column = blockIdx.x / segments;
  CopySegment(target + column * target_pitch, source + column * source_pitch,
              blockIdx.x % segments * kCopySegment, height, all);
}

// Uses `segments` blocks for each part; smaller parts need fewer.
KERNEL jaxmg_copy_to_parts(PartsToCopy parts, Index segments, const char* source) {
  const Index part = blockIdx.x / segments;
  char* const to = parts.to[part];
  const char* const from = source + parts.starts[part];
  const Index bytes = parts.starts[part + 1] - parts.starts[part];
  CopySegment(to, from, blockIdx.x % segments * kCopySegment, bytes,
              reinterpret_cast<Index>(to) | reinterpret_cast<Index>(from) | bytes);
}

KERNEL jaxmg_fill_int32(int* data, Index count, int value) {
  for (Index i = FirstElement(); i < count; i += ElementStride()) data[i] = value;
}

// Uses one block. `stale` is host memory, or null; `coordinates` may be null. Writes *info, then 0
// to the words after it, up to `words` words, except `one` to word `one_at`.
KERNEL jaxmg_init_info(const int* coordinates, int rank, int group, int* info, int* stale,
                       int words, int one_at, int one) {
  const int word = static_cast<int>(threadIdx.x);
  if (word > 0) {
    if (word < words) info[word] = word == one_at ? one : 0;
    return;
  }
  const bool misplaced =
      coordinates != nullptr && (coordinates[0] != rank || coordinates[1] != group);
  *info = misplaced ? kMisplaced : kNoInfo;
  if (misplaced && stale != nullptr) *stale = 1;
}

// Adds the digest, as the host device computes it, to *digest, which is initially 0. Integer sums
// don't depend on the order.
KERNEL jaxmg_digest(const unsigned* words, Index count, int* digest) {
  unsigned sum = 0;
  for (Index i = FirstElement(); i < count; i += ElementStride()) {
    sum += words[i] * static_cast<unsigned>(2 * i + 1);
  }
  atomicAdd(reinterpret_cast<unsigned*>(digest), sum);
}

KERNEL jaxmg_keep_negative(const int* status, int* failure) {
  if (threadIdx.x == 0) *failure = min(*status, 0);
}

KERNEL jaxmg_reduce_info(const int* pairs, Index stride, Index count, int* status) {
  if (threadIdx.x != 0) return;
  int least = kNoInfo;
  for (Index i = 0; i < count; ++i) {
    least = min(least, pairs[i * stride]);
    if (pairs[i * stride + 1] != pairs[1]) least = min(least, kDifferentOperands);
  }
  *status = least == kNoInfo ? 0 : least;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CORE_KERNELS_CUH_
