// PanelKernels on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_PANEL_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_PANEL_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/host/reflector.h"
#include "xla_ffi/device/panel_kernels.h"

namespace jaxmg {

template <typename T>
class HostPanel : public PanelKernels<T> {
  using R = Real<T>;

 public:
  explicit HostPanel(Blas<T>& blas) : blas_(blas) {}

  // Recursive, like LAPACK's xGEQRT3, so that products do most operations.
  Status QrPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t,
                 int64_t ldt) override {
    const int64_t k = std::min(m, n);
    for (int64_t j = 0; j < k; ++j) std::fill_n(t + j * ldt, k, T(0));
    JAXMG_RETURN_IF_ERROR(Factor(stream, m, k, a, lda, t, ldt));
    if (n == k) return Status::Ok();
    return Apply(stream, m, k, n - k, a, lda, t, ldt, a + k * lda);
  }

  Status UnpackReflectors(Stream, int64_t m, int64_t k, const T* a, int64_t lda, T* v,
                          int64_t ldv) override {
    for (int64_t j = 0; j < k; ++j) {
      std::fill_n(v + j * ldv, j, T(0));
      v[j * ldv + j] = 1;
      std::copy(a + j * lda + j + 1, a + j * lda + m, v + j * ldv + j + 1);
    }
    return Status::Ok();
  }

  Status PackBand(Stream, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, T* band,
                  int64_t ldb) override {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t rows = m - j + std::min(j + 1, k);
      T* column = band + j * ldb;
      std::copy_n(a + j * lda + j, rows, column);
      column[0] = std::real(column[0]);
      std::fill(column + rows, column + ldb, T(0));
    }
    return Status::Ok();
  }

  Status CheckFinite(Stream, int64_t m, int64_t n, const T* a, int64_t lda, int64_t offset,
                     int32_t* first) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < m; ++i) {
        const T x = a[j * lda + i];
        if (std::isfinite(std::real(x)) && std::isfinite(std::imag(x))) continue;
        *first = std::min(*first, static_cast<int32_t>(offset + j + 1));
        return Status::Ok();
      }
    }
    return Status::Ok();
  }

  Status FromReal(Stream, int64_t m, int64_t n, const R* a, int64_t lda, T* b,
                  int64_t ldb) override {
    for (int64_t j = 0; j < n; ++j) std::copy_n(a + j * lda, m, b + j * ldb);
    return Status::Ok();
  }

 private:
  // Requires m >= n.
  Status Factor(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t, int64_t ldt) {
    if (n == 0) return Status::Ok();
    if (n == 1) {
      MakeReflector(m, a, t);
      return Status::Ok();
    }
    const int64_t half = n / 2, rest = n - half;
    T* right = a + half * lda;
    T* t12 = t + half * ldt;
    T* t22 = t12 + half;
    JAXMG_RETURN_IF_ERROR(Factor(stream, m, half, a, lda, t, ldt));
    JAXMG_RETURN_IF_ERROR(Apply(stream, m, half, rest, a, lda, t, ldt, right));
    JAXMG_RETURN_IF_ERROR(Factor(stream, m - half, rest, right + half, lda, t22, ldt));
    // T12 = -T1 (V1^H V2) T2. V2 begins with a unit triangle at row `half`.
    for (int64_t j = 0; j < rest; ++j) {
      for (int64_t i = 0; i < half; ++i) t12[j * ldt + i] = Conj(a[i * lda + half + j]);
    }
    JAXMG_RETURN_IF_ERROR(blas_.Trmm(stream, Side::kRight, Op::kNone, half, rest, right + half, lda,
                                     t12, ldt, {Uplo::kLower, Diag::kUnit}));
    JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kConjTrans, Op::kNone, half, rest, m - n, 1, a + n,
                                     lda, right + n, lda, 1, t12, ldt));
    JAXMG_RETURN_IF_ERROR(
        blas_.Trmm(stream, Side::kLeft, Op::kNone, half, rest, t, ldt, t12, ldt, {Uplo::kUpper}));
    JAXMG_RETURN_IF_ERROR(blas_.Trmm(stream, Side::kRight, Op::kNone, half, rest, t22, ldt, t12,
                                     ldt, {Uplo::kUpper}));
    for (int64_t j = 0; j < rest; ++j) {
      for (int64_t i = 0; i < half; ++i) t12[j * ldt + i] = -t12[j * ldt + i];
    }
    return Status::Ok();
  }

  // C := Q^H C = C - V (T^H (V^H C)), C m x n. Processes as many columns at a time as fit into w.
  Status Apply(Stream stream, int64_t m, int64_t k, int64_t n, const T* v, int64_t ldv, const T* t,
               int64_t ldt, T* c) {
    const Triangle unit = {Uplo::kLower, Diag::kUnit};
    T w[kMostColumns * kMostColumns];
    const int64_t step = std::max<int64_t>(1, kMostColumns * kMostColumns / k);
    for (int64_t j0 = 0; j0 < n; j0 += step) {
      const int64_t columns = std::min(step, n - j0);
      T* to = c + j0 * ldv;
      for (int64_t j = 0; j < columns; ++j) std::copy_n(to + j * ldv, k, w + j * k);
      JAXMG_RETURN_IF_ERROR(
          blas_.Trmm(stream, Side::kLeft, Op::kConjTrans, k, columns, v, ldv, w, k, unit));
      if (m > k) {
        JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kConjTrans, Op::kNone, k, columns, m - k, 1,
                                         v + k, ldv, to + k, ldv, 1, w, k));
      }
      JAXMG_RETURN_IF_ERROR(blas_.Trmm(stream, Side::kLeft, Op::kConjTrans, k, columns, t, ldt, w,
                                       k, {Uplo::kUpper}));
      if (m > k) {
        JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kNone, Op::kNone, m - k, columns, k, -1, v + k,
                                         ldv, w, k, 1, to + k, ldv));
      }
      JAXMG_RETURN_IF_ERROR(
          blas_.Trmm(stream, Side::kLeft, Op::kNone, k, columns, v, ldv, w, k, unit));
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t i = 0; i < k; ++i) to[j * ldv + i] -= w[j * k + i];
      }
    }
    return Status::Ok();
  }

  static constexpr int64_t kMostColumns = 64;
  Blas<T>& blas_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_PANEL_H_
