// The kernels of chase.cuh, run on the host.
#include <algorithm>
#include <complex>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "tests/cc/support/chase_problem.h"
#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/eigen/chase.cuh"
#include "xla_ffi/device/cuda/eigen/groups.cuh"
#pragma GCC diagnostic pop

namespace jaxmg {
namespace {

using namespace testing;
using host_cuda::Cast;
using host_cuda::Launch;

// Few threads, so that each processes several elements.
constexpr unsigned kFew = 5;

// Groups of up to 8 sweeps over bands of up to 8 kSteps subdiagonals.
template <bool kComplex, int kSteps>
struct SmallShape : GroupLayout<kComplex ? 1 : 2, kSteps, 1, 1> {};

template <typename T>
class Kernels : public ChaseKernels<T> {
  using C = host_cuda::CudaType<T>;

 public:
  Status Chase(Stream, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first, int64_t sweeps,
               T* v, int64_t ldv, T* tau, int64_t ldtau) override {
    std::vector<unsigned> progress(sweeps + 1);
    auto chase = [&](auto rows) {
      constexpr int kRows = decltype(rows)::value, kGroups = 2;
      Launch(2, kRows * kGroups, 1, [&] {
        kernels::Chaser<C, kRows, kGroups>(n, b, Cast(band), ldb, first, sweeps, Cast(v), ldv,
                                           Cast(tau), ldtau, progress.data())
            .Run();
      });
    };
    // Includes cases with more rows than lanes.
    if (b <= 4) {
      chase(std::integral_constant<int, 4>());
    } else if (b <= 8) {
      chase(std::integral_constant<int, 8>());
    } else {
      chase(std::integral_constant<int, 36>());
    }
    for (int64_t k = 0; k < sweeps; ++k) {
      EXPECT(progress[1 + k] == (n - 1 - first - k + b - 1) / b);
    }
    return Status::Ok();
  }
  Status TakeTridiagonal(Stream, int64_t n, const T* band, int64_t ldb, Real<T>* d,
                         Real<T>* e) override {
    Launch(2, kFew, 1, [&] { kernels::TakeTridiagonal(n, Cast(band), ldb, d, e); });
    return Status::Ok();
  }
  Status ExpandReflectors(Stream, int64_t n, int64_t b, int64_t first, int64_t sweeps, const T* v,
                          int64_t ldv, const T* tau, int64_t ldtau, T* blocks,
                          T* weighted) override {
    Launch(static_cast<unsigned>((n - 1 - first + b - 1) / b), static_cast<unsigned>(b + sweeps), 1,
           [&] {
             kernels::ExpandReflectors<C, 64, 32>(n, b, first, static_cast<int>(sweeps), Cast(v),
                                                  ldv, Cast(tau), ldtau, Cast(blocks),
                                                  Cast(weighted));
           });
    return Status::Ok();
  }
  Status ApplyGroups(Stream stream, const SweepGroups& groups, int64_t columns, int64_t at_once,
                     const T* blocks, const T* weighted, T* z, int64_t ldz, T* products) override {
    if constexpr (std::is_same_v<Real<T>, double>) {
      auto apply = [&](auto shift) {
        using Shape = SmallShape<kIsComplex<T>, decltype(shift)::value>;
        EXPECT(groups.height() <= Shape::kRows && groups.width <= Shape::kSweeps);
        const kernels::Groups of = {groups.n,     groups.b,      groups.first, groups.group,
                                    groups.width, groups.stride, groups.begin, groups.end};
        const int64_t strips = (columns + Shape::kColumns - 1) / Shape::kColumns;
        std::vector<unsigned> progress(1 + strips * (groups.end - groups.begin));
        Launch(2, Shape::kThreads, 1, [&] {
          kernels::GroupApplier<C, Shape>(
              {of, columns, Cast(blocks), Cast(weighted), Cast(z), ldz, progress.data()})
              .Run();
        });
      };
      if (groups.width > 8)
        return host->ApplyGroups(stream, groups, columns, at_once, blocks, weighted, z, ldz,
                                 products);
      if (groups.b <= 8) {
        apply(std::integral_constant<int, 1>());
      } else {
        apply(std::integral_constant<int, 4>());
      }
      return Status::Ok();
    } else {
      return host->ApplyGroups(stream, groups, columns, at_once, blocks, weighted, z, ldz,
                               products);
    }
  }

  ChaseKernels<T>* host = nullptr;
};

// The host device with these kernels.
class KernelDevice : public ForwardingDevice {
 public:
  explicit KernelDevice(std::unique_ptr<Device> host)
      : ForwardingDevice(*host), host_(std::move(host)) {
    std::apply([this](auto&... kernels) { (Replace(kernels), ...); }, kernels_);
  }

 private:
  template <typename T>
  void Replace(Kernels<T>& kernels) {
    kernels.host = host_->eigen<T>().chase;
    Offer<T>(host_->by_precision<T>(), host_->solver<T>(), {nullptr, &kernels, nullptr});
  }

  const std::unique_ptr<Device> host_;
  PerDtype<Kernels> kernels_;
};

// One rank, because shared memory is a single variable of the program here.
constexpr ChaseCase kCases[] = {{1, 1, 1, 1},
                                {2, 1, 1, 1},
                                {7, 1, 3, 1},
                                {5, 30, 2, 1},
                                {9, 2, 4, 1},
                                {12, 5, 5, 1},
                                {20, 3, 8, 1},
                                {25, 30, 7, 1},
                                {36, 4, 32, 1},
                                // Several groups at a time, both full and partial ones.
                                {30, 8, 8, 1, 24},
                                {24, 5, 4, 1, 12}};

template <typename T>
void CheckAll() {
  const DeviceMaker make = [](int) { return std::make_unique<KernelDevice>(NewHostDevice()); };
  for (const ChaseCase& c : kCases) {
    Check(c, BandMatrix<T>::Normal(c), "", make);
    if (c.n > 12) continue;  // larger ones take too long
    const Real<T> largest = std::numeric_limits<Real<T>>::max();
    Check(c, BandMatrix<T>::Normal(c, largest / Real<T>(1e8)), "huge", make);
    Check(c, BandMatrix<T>::Normal(c, Real<T>(1e8) * std::numeric_limits<Real<T>>::min()), "tiny",
          make);
    Check(c, BandMatrix<T>(c.n, c.b), "zero", make);
  }
}

TEST(ChaseFloat) { CheckAll<float>(); }
TEST(ChaseDouble) { CheckAll<double>(); }
TEST(ChaseComplexFloat) { CheckAll<std::complex<float>>(); }
TEST(ChaseComplexDouble) { CheckAll<std::complex<double>>(); }

}  // namespace
}  // namespace jaxmg
