// Hermitian and symmetric matrices that need not be definite, on the host: LAPACK's factorization
// of Bunch and Kaufman. Matrices are row-major. Included only by stacks.h.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_STACKS_INDEFINITE_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_STACKS_INDEFINITE_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/host/lapack_checks.h"

namespace jaxmg {

template <typename T>
class HostIndefinite {
 public:
  HostIndefinite(bool hermitian, int64_t n)
      : hermitian_(hermitian && kIsComplex<T>), n_(n), ints_(n), pivots_(n) {}

  // b := A^-1 b, n x nrhs. Overwrites A.
  Status Solve(int64_t nrhs, T* a, T* b) {
    LapackInts sizes(n_, nrhs);
    JAXMG_CHECK_LAPACK(sysv, sizes);
    const auto function = hermitian_ ? HostLapack<T>().hesv : HostLapack<T>().sysv;
    // To LAPACK, A is its transpose: the conjugate of a Hermitian matrix.
    turned_.resize(nrhs * n_);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < nrhs; ++j) turned_[j * n_ + i] = ConjugateIf(b[i * nrhs + j]);
    }
    char uplo = 'U';
    int failed = 1;
    if (IsFinite(a)) {
      WithWork([&](T* work, int* size) {
        function(&uplo, sizes[0], sizes[1], a, sizes[0], pivots_.data(), turned_.data(), sizes[0],
                 work, size, &failed);
      });
    }
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < nrhs; ++j) {
        b[i * nrhs + j] = failed == 0 ? ConjugateIf(turned_[j * n_ + i]) : T(kNan);
      }
    }
    return Status::Ok();
  }

  // Overwrites A with L and d with D of A = L D L^*, of which one triangle is read; row i of the
  // triangle is row order[i] of L.
  Status Factor(bool lower, T* a, T* d, int32_t* order) {
    JAXMG_CHECK_LAPACK(sytrf, ints_);
    const auto function = hermitian_ ? HostLapack<T>().hetrf : HostLapack<T>().sytrf;
    std::iota(order, order + n_, 0);
    if (!IsFinite(lower, a)) {
      std::fill_n(a, n_ * n_, T(kNan));
      std::fill_n(d, n_ * n_, T(kNan));
      return Status::Ok();
    }
    turned_.resize(n_ * n_);
    Turn(a, turned_.data());
    char uplo = lower ? 'L' : 'U';
    int singular = 0;
    WithWork([&](T* work, int* size) {
      function(&uplo, ints_[0], turned_.data(), ints_[0], pivots_.data(), work, size, &singular);
    });
    Turn(turned_.data(), a);
    std::fill_n(d, n_ * n_, T(0));
    // LAPACK goes from the triangle's corner, and leaves earlier columns where they are.
    for (int64_t step = 0; step < n_;) {
      const int64_t k = lower ? step : n_ - 1 - step;
      const int64_t next = lower ? k + 1 : k - 1;  // of a block of two rows
      const bool two = pivots_[k] < 0 && 0 <= next && next < n_;
      TakeBlock(k, two ? next : k, a, d);
      const int64_t row = two ? next : k, other = std::abs(pivots_[k]) - 1;
      if (other != row && 0 <= other && other < n_) {
        const int64_t begin = lower ? 0 : k + 1, end = lower ? k : n_;
        std::swap_ranges(a + row * n_ + begin, a + row * n_ + end, a + other * n_ + begin);
        std::swap(order[row], order[other]);
      }
      step += two ? 2 : 1;
    }
    std::copy_n(a, n_ * n_, turned_.data());
    for (int64_t i = 0; i < n_; ++i) {
      T* const row = a + order[i] * n_;
      std::copy_n(&turned_[i * n_], n_, row);
      std::fill(row + (lower ? i + 1 : 0), row + (lower ? n_ : i), T(0));
      row[i] = 1;
    }
    return Status::Ok();
  }

 private:
  static constexpr Real<T> kNan = std::numeric_limits<Real<T>>::quiet_NaN();

  T ConjugateIf(const T& x) const { return hermitian_ ? Conj(x) : x; }

  // Moves the block of D with rows k and other, which may be k, from A to d.
  void TakeBlock(int64_t k, int64_t other, T* a, T* d) const {
    for (int64_t i : {k, other}) {
      T x = a[i * n_ + i];
      if (hermitian_) x = std::real(x);
      d[i * n_ + i] = x;
    }
    if (other == k) return;
    T& beside = a[other * n_ + k];  // (k + 1, k) or (k - 1, k)
    d[other * n_ + k] = beside;
    d[k * n_ + other] = ConjugateIf(beside);
    beside = 0;
  }

  static bool IsFinite(const T& x) {
    return std::isfinite(std::real(x)) && std::isfinite(std::imag(x));
  }
  bool IsFinite(const T* a) const {
    return std::all_of(a, a + n_ * n_, [](const T& x) { return IsFinite(x); });
  }
  // Looks at one triangle.
  bool IsFinite(bool lower, const T* a) const {
    for (int64_t i = 0; i < n_; ++i) {
      const T* const row = a + i * n_;
      const auto finite = [](const T& x) { return IsFinite(x); };
      if (!std::all_of(row + (lower ? 0 : i), row + (lower ? i + 1 : n_), finite)) return false;
    }
    return true;
  }

  // b := A^T
  void Turn(const T* a, T* b) const {
    constexpr int64_t kBlock = 32;
    for (int64_t i0 = 0; i0 < n_; i0 += kBlock) {
      for (int64_t j0 = 0; j0 < n_; j0 += kBlock) {
        for (int64_t i = i0; i < std::min(i0 + kBlock, n_); ++i) {
          for (int64_t j = j0; j < std::min(j0 + kBlock, n_); ++j) b[j * n_ + i] = a[i * n_ + j];
        }
      }
    }
  }

  // Calls call(work, size) with the workspace that LAPACK asks for.
  template <typename Call>
  void WithWork(const Call& call) {
    T wanted = 0;
    int size = -1;
    call(&wanted, &size);
    size = std::max(1, static_cast<int>(std::real(wanted)));
    work_.resize(size);
    call(work_.data(), &size);
  }

  const bool hermitian_;
  const int64_t n_;
  LapackInts ints_;
  std::vector<int> pivots_;
  std::vector<T> turned_, work_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_STACKS_INDEFINITE_H_
