// Shared by the tests of the engine: matrices that are distributed by rows, and devices that differ
// from the host in one property.
#ifndef JAXMG_TESTS_CC_PROBLEM_H_
#define JAXMG_TESTS_CC_PROBLEM_H_

#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/forwarding_blas.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg::testing {

struct Case {
  int64_t n;
  int ranks;
  int64_t tile;
  int64_t extra_rows = 0;  // padding on each rank beyond what n needs
};

template <typename T>
T Random(std::mt19937_64& random) {
  std::normal_distribution<Real<T>> normal;
  if constexpr (kIsComplex<T>) {
    const Real<T> real = normal(random);
    return T(real, normal(random));
  } else {
    return normal(random);
  }
}

template <typename T>
T NaN() {
  return T(std::numeric_limits<Real<T>>::quiet_NaN());
}

// An n x n Hermitian matrix, row-major, and its blocks of rows, with NaN in all elements that no
// routine may read: below the diagonal and in the padding.
template <typename T>
struct Problem {
  explicit Problem(const Case& c, bool definite = true)
      : n(c.n), block((c.n + c.ranks - 1) / c.ranks + c.extra_rows), ranks(c.ranks), a(n * n) {
    std::mt19937_64 random(n * 131 + ranks);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) {
        T value = Random<T>(random);
        if (i == j) value = std::real(value) + (definite ? 4 * std::sqrt(Real<T>(n)) + 4 : 0);
        a[i * n + j] = value;
        a[j * n + i] = Conj(value);
      }
    }
    Scatter();
  }

  void Scatter() {
    blocks.assign(ranks, std::vector<T>(block * n, NaN<T>()));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) blocks[i / block][(i % block) * n + j] = a[i * n + j];
    }
  }

  T block_at(int64_t i, int64_t j) const { return blocks[i / block][(i % block) * n + j]; }

  Operand<T> operand(int rank, int64_t tile, int32_t* status) {
    return {n, n, block, tile, blocks[rank].data(), status};
  }

  Real<T> norm() const {
    Real<T> sum = 0;
    for (const T& x : a) sum += std::norm(x);
    return std::sqrt(sum);
  }

  const int64_t n, block;
  const int ranks;
  std::vector<T> a;
  std::vector<std::vector<T>> blocks;
};

// Forwards to another device; subclasses override single functions.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& real) : real_(real) { OfferAllOf(real); }
  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    return real_.Allocate(bytes, buffer);
  }
  Status AllocateOnHost(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    return real_.AllocateOnHost(bytes, buffer);
  }
  Status NewEvent(std::shared_ptr<Event>* event) override { return real_.NewEvent(event); }
  Status Record(Stream stream, Event* event) override { return real_.Record(stream, event); }
  Status Wait(Stream stream, const Event& event) override { return real_.Wait(stream, event); }
  Status AwaitOnHost(const Event& event) override { return real_.AwaitOnHost(event); }
  Status Synchronize() override { return real_.Synchronize(); }
  Status Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) override {
    return real_.Copy(stream, target, source);
  }
  Status FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) override {
    return real_.FillInt32(stream, data, count, value);
  }

 private:
  Device& real_;
};

// A device on which allocations fail.
class NoMemory : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Allocate(size_t, std::unique_ptr<Buffer>*) override {
    return Error(Code::kResourceExhausted, "out of memory on purpose");
  }
};

// The host with another tuning.
class Tuned : public ForwardingDevice {
 public:
  Tuned(Device& real, const Tuning& tuning) : ForwardingDevice(real), tuning_(tuning) {}
  Tuning tuning() const override { return tuning_; }

 private:
  const Tuning tuning_;
};

// The host device with another tuning. Owns the host device.
class TunedHost : public Tuned {
 public:
  explicit TunedHost(const Tuning& tuning) : TunedHost(NewHostDevice(), tuning) {}

 private:
  TunedHost(std::unique_ptr<Device> host, const Tuning& tuning)
      : Tuned(*host, tuning), host_(std::move(host)) {}
  const std::unique_ptr<Device> host_;
};

// Computes products with factors rounded to TF32; fails for every other operation.
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
  // Copies m x n elements, rounded to 10 bits behind the binary point.
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

// A device with TF32 products.
class WithTf32 : public Tuned {
 public:
  WithTf32(Device& real, const Tuning& tuning)
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

// The tuning of a GPU: panels out of place, in pieces, sent along a chain.
Tuning LikeGpu(int64_t update_depth = 9) {
  Tuning tuning;
  tuning.panel_block = 3;
  tuning.chain = true;
  tuning.group_columns = 9;
  tuning.update_depth = update_depth;
  tuning.inverse_order = 5;
  tuning.swap_bytes = 600;
  return tuning;
}

template <typename T>
constexpr Real<T> kEps = std::numeric_limits<Real<T>>::epsilon();

// Returns the matrix with these elements.
template <typename T>
Problem<T> Of(int64_t n, int ranks, const std::function<T(int64_t, int64_t)>& element) {
  Problem<T> problem({n, ranks, 0});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) problem.a[i * n + j] = element(i, j);
  }
  problem.Scatter();
  return problem;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_PROBLEM_H_
