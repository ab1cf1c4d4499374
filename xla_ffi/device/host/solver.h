// MatrixSolver on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_SOLVER_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_SOLVER_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <new>
#include <vector>

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
    // Computes the sizes of workspaces as LAPACK documents them. LAPACK returns them as
    // floating-point numbers, which float32 rounds down from 2^24 on.
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
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_SOLVER_H_
