// MatrixSolver on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_SOLVER_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_SOLVER_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <new>
#include <vector>

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/host/lapack_checks.h"
#include "xla_ffi/device/matrix_solver.h"

namespace jaxmg {

template <typename T>
class HostSolver : public MatrixSolver<T> {
  using R = Real<T>;

 public:
  Status Syevd(Stream, bool vectors, int64_t n, T* a, int64_t lda, R* w, int32_t* info) override {
    *info = 0;
    if (n == 0) return Status::Ok();
    // LAPACK may not terminate for a matrix with NaN or infinity.
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) {
        if (!std::isfinite(std::real(a[j * lda + i])) ||
            !std::isfinite(std::imag(a[j * lda + i]))) {
          *info = static_cast<int32_t>(j + 1);
          return Status::Ok();
        }
      }
    }
    char jobz = vectors ? 'V' : 'N', uplo = 'L';
    LapackInts ints(n, lda);
    JAXMG_RETURN_IF_ERROR(ints.Check("syevd"));
    // Computes the workspace sizes as LAPACK documents them. LAPACK's queries return floating-point
    // numbers, which float32 rounds down from 2^24 on.
    const int64_t nn = n;
    const int64_t iwork_size = vectors ? 3 + 5 * nn : 1;
    int64_t work_size, rwork_size;
    if constexpr (kIsComplex<T>) {
      work_size = vectors ? 2 * nn + nn * nn : nn + 1;
      rwork_size = vectors ? 1 + 5 * nn + 2 * nn * nn : nn;
      work_size = std::max(work_size, nn * 65);  // for blocked code with 64 columns
    } else {
      work_size = vectors ? 1 + 6 * nn + 2 * nn * nn : 2 * nn + 1;
      work_size = std::max(work_size, nn * 66);
      rwork_size = 0;
    }
    LapackInts sizes(work_size, rwork_size, iwork_size);
    JAXMG_RETURN_IF_ERROR(sizes.Check("syevd workspace"));
    try {
      std::vector<T> work(std::max<int64_t>(work_size, 1));
      std::vector<R> rwork(std::max<int64_t>(rwork_size, 1));
      std::vector<int> iwork(std::max<int64_t>(iwork_size, 1));
      int failed = 0;
      const BlasThreadsOfAll threads;
      if constexpr (kIsComplex<T>) {
        JAXMG_CHECK_LAPACK(heevd, sizes);
        HostLapack<T>().heevd(&jobz, &uplo, ints[0], a, ints[1], w, work.data(), sizes[0],
                              rwork.data(), sizes[1], iwork.data(), sizes[2], &failed);
      } else {
        JAXMG_CHECK_LAPACK(syevd, sizes);
        HostLapack<T>().syevd(&jobz, &uplo, ints[0], a, ints[1], w, work.data(), sizes[0],
                              iwork.data(), sizes[2], &failed);
      }
      *info = failed;
    } catch (const std::bad_alloc&) {
      return Error(Code::kResourceExhausted, "out of memory: syevd of order ", n, " needs ",
                   (work_size * sizeof(T) + rwork_size * sizeof(R)) >> 20, " MiB of workspace");
    }
    return Status::Ok();
  }

  // Scales the matrix by a power of two, because LAPACK would scale by another number, and not
  // always.
  Status Gesvd(Stream, bool vectors, int64_t m, int64_t n, T* a, int64_t lda, R* s, T* u,
               int64_t ldu, T* vh, int64_t ldvh, int32_t* info) override {
    *info = 0;
    const int64_t k = std::min(m, n), longer = std::max(m, n);
    if (k == 0) return Status::Ok();
    R largest = 0;
    if (!LargestOf(m, n, a, lda, &largest)) {
      *info = kNotFinite;
      return Status::Ok();
    }
    const int exponent = largest > 0 ? std::ilogb(largest) : 0;
    Scale(m, n, -exponent, a, lda);
    char jobz = vectors ? 'S' : 'N';
    LapackInts ints(m, n, lda, vectors ? ldu : 1, vectors ? ldvh : 1);
    JAXMG_RETURN_IF_ERROR(ints.Check("gesdd"));
    // The size that LAPACK documents, and the size for blocked code with 64 columns.
    const int64_t blocked = 64 * (m + n);
    const int64_t work_size =
        blocked + (!vectors ? 3 * k + std::max(longer, 7 * k)
                            : (kIsComplex<T> ? k * k + 3 * k : 4 * k * k + 7 * k) + longer);
    const int64_t rwork_size = !kIsComplex<T> ? 0
                               : vectors
                                   ? std::max(5 * k * k + 5 * k, 2 * longer * k + 2 * k * k + k)
                                   : 7 * k;
    LapackInts sizes(work_size, rwork_size);
    JAXMG_RETURN_IF_ERROR(sizes.Check("gesdd workspace"));
    try {
      std::vector<T> work(work_size);
      std::vector<R> rwork(rwork_size);
      std::vector<int> iwork(8 * k);
      int failed = 0;
      if constexpr (kIsComplex<T>) {
        JAXMG_CHECK_LAPACK(complex_gesdd, sizes);
        HostLapack<T>().complex_gesdd(&jobz, ints[0], ints[1], a, ints[2], s, u, ints[3], vh,
                                      ints[4], work.data(), sizes[0], rwork.data(), iwork.data(),
                                      &failed);
      } else {
        JAXMG_CHECK_LAPACK(gesdd, sizes);
        HostLapack<T>().gesdd(&jobz, ints[0], ints[1], a, ints[2], s, u, ints[3], vh, ints[4],
                              work.data(), sizes[0], iwork.data(), &failed);
      }
      *info = failed;
    } catch (const std::bad_alloc&) {
      return Error(Code::kResourceExhausted, "out of memory: gesdd of ", m, " x ", n, " needs ",
                   (work_size * sizeof(T) + rwork_size * sizeof(R)) >> 20, " MiB of workspace");
    }
    for (int64_t i = 0; i < k; ++i) s[i] = std::ldexp(s[i], exponent);
    if (!vectors) std::reverse(s, s + k);
    return Status::Ok();
  }

  Status Qr(Stream, bool with_q, int64_t m, int64_t n, T* a, int64_t lda, T* r, int64_t ldr,
            int32_t* info) override {
    *info = 0;
    if (n == 0) return Status::Ok();
    R largest = 0;
    if (!LargestOf(m, n, a, lda, &largest)) {
      *info = kNotFinite;
      return Status::Ok();
    }
    const int64_t work_size = 64 * n;  // for blocked code with 64 columns
    LapackInts ints(m, n, lda, work_size);
    JAXMG_CHECK_LAPACK(geqrf, ints);
    try {
      std::vector<T> taus(n), work(work_size);
      int failed = 0;
      HostLapack<T>().geqrf(ints[0], ints[1], a, ints[2], taus.data(), work.data(), ints[3],
                            &failed);
      for (int64_t j = 0; j < n; ++j) {
        std::copy_n(a + j * lda, j + 1, r + j * ldr);
        std::fill_n(r + j * ldr + j + 1, n - j - 1, T(0));
      }
      if (!with_q) return Status::Ok();
      JAXMG_CHECK_LAPACK(orgqr, ints);
      HostLapack<T>().orgqr(ints[0], ints[1], ints[1], a, ints[2], taus.data(), work.data(),
                            ints[3], &failed);
    } catch (const std::bad_alloc&) {
      return Error(Code::kResourceExhausted, "out of memory: geqrf of ", m, " x ", n);
    }
    return Status::Ok();
  }

 private:
  // *largest := the largest magnitude of a real or imaginary part. Returns whether all elements are
  // finite.
  static bool LargestOf(int64_t m, int64_t n, const T* a, int64_t lda, R* largest) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        const R real = std::abs(std::real(a[j * lda + i]));
        const R imaginary = std::abs(std::imag(a[j * lda + i]));
        if (!std::isfinite(real) || !std::isfinite(imaginary)) return false;
        *largest = std::max({*largest, real, imaginary});
      }
    }
    return true;
  }

  // A := 2^exponent A, exact unless it underflows.
  static void Scale(int64_t m, int64_t n, int exponent, T* a, int64_t lda) {
    const R half = std::ldexp(R(1), exponent / 2), rest = std::ldexp(R(1), exponent - exponent / 2);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) a[j * lda + i] = a[j * lda + i] * half * rest;
    }
  }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_SOLVER_H_
