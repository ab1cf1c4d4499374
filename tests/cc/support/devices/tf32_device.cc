#include "tests/cc/support/devices/tf32_device.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/support/devices/forwarding_blas.h"
#include "tests/cc/support/problem.h"

namespace jaxmg::testing {
namespace {

template <typename T>
class Tf32Products : public ForwardingBlas<T> {
  using R = Real<T>;

 public:
  using ForwardingBlas<T>::ForwardingBlas;

  Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override {
    const std::vector<T> x = op_a == Op::kNone ? Rounded(m, k, a, lda) : Rounded(k, m, a, lda);
    const std::vector<T> y = op_b == Op::kNone ? Rounded(k, n, b, ldb) : Rounded(n, k, b, ldb);
    return this->real_.Gemm(stream, op_a, op_b, m, n, k, alpha, x.data(), lda, y.data(), ldb, beta,
                            c, ldc);
  }
  Status Herk(Stream stream, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override {
    return this->real_.Herk(stream, n, k, alpha, Rounded(n, k, a, lda).data(), lda, beta, c, ldc);
  }

 protected:
  Status Run(Stream, const char*, std::vector<MemoryAccess>, const std::string&,
             std::function<Status()>) override {
    return Error(Code::kInternal, "not a product");
  }

 private:
  // Copies m x n elements, rounded to 10 bits after the binary point.
  static std::vector<T> Rounded(int64_t m, int64_t n, const T* a, int64_t lda) {
    std::vector<T> copy(lda * n);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        copy[j * lda + i] = a[j * lda + i];
        auto* part = reinterpret_cast<R*>(&copy[j * lda + i]);
        for (size_t p = 0; p < sizeof(T) / sizeof(R); ++p) {
          int exponent;
          const R fraction = std::frexp(part[p], &exponent);
          part[p] = std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
        }
      }
    }
    return copy;
  }
};

class Tf32Device : public Tuned {
 public:
  Tf32Device(Device& real, const Tuning& tuning)
      : Tuned(real, tuning),
        float_(real.blas<float>()),
        complex_(real.blas<std::complex<float>>()) {
    using Complex = std::complex<float>;
    OfferTf32<float>(real, float_);
    OfferTf32<Complex>(real, complex_);
  }

 private:
  template <typename T>
  void OfferTf32(Device& real, Blas<T>& tf32) {
    BlasByPrecision<T> blas = real.by_precision<T>();
    blas[static_cast<int>(Precision::kTf32)] = &tf32;
    Offer<T>(blas, real.solver<T>(), real.eigen<T>(), &real.lu<T>());
  }

  Tf32Products<float> float_;
  Tf32Products<std::complex<float>> complex_;
};

}  // namespace

std::unique_ptr<Device> WithTf32(Device& real, const Tuning& tuning) {
  return std::make_unique<Tf32Device>(real, tuning);
}

}  // namespace jaxmg::testing
