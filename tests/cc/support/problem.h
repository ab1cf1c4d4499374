// Shared by the tests of the engine: matrices distributed by rows, and devices that differ from the
// host in one property.
#ifndef JAXMG_TESTS_CC_SUPPORT_PROBLEM_H_
#define JAXMG_TESTS_CC_SUPPORT_PROBLEM_H_

#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "xla_ffi/device/device.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg::testing {

struct Case {
  int64_t n;
  int ranks;
  int64_t tile;
  int64_t extra_rows = 0;  // padding rows on each rank beyond those that n needs
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

// An n x n Hermitian matrix, row-major, and its blocks of rows. Elements that no routine may read,
// below the diagonal and in the padding, are NaN.
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

// Forwards all calls to another device. Subclasses override single functions.
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

// A device whose allocations fail.
class NoMemory : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Allocate(size_t, std::unique_ptr<Buffer>*) override {
    return Error(Code::kResourceExhausted, "out of memory on purpose");
  }
};

// A device with another tuning. Doesn't own the real device.
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

// Returns the tuning of a GPU: panels out of place, in pieces, sent along a chain.
inline Tuning LikeGpu(int64_t update_depth = 9) {
  Tuning tuning;
  tuning.cholesky.panel_block = 3;
  tuning.chain = true;
  tuning.cholesky.group_columns = 9;
  tuning.cholesky.update_depth = update_depth;
  tuning.cholesky.inverse_order = 5;
  tuning.cholesky.update_block = 3;
  tuning.lu.swap_bytes = 600;
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

#endif  // JAXMG_TESTS_CC_SUPPORT_PROBLEM_H_
