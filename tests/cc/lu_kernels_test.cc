// The kernels of lu.cuh, on the host, against LAPACK's results.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/host_cuda/cuda_types.h"
#include "tests/cc/host_cuda/host_cuda.h"
#include "tests/cc/host_cuda/together.h"
#include "tests/cc/problem.h"
#include "tests/cc/reference_lapack.h"
#include "tests/cc/testing.h"
#include "xla_ffi/device/host/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/lu.cuh"
#pragma GCC diagnostic pop

namespace jaxmg {
namespace {

using namespace testing;
using host_cuda::Cast;
using host_cuda::Launch;
using host_cuda::LaunchTogether;
using host_cuda::Together;

template <typename T>
using Cuda = host_cuda::CudaType<T>;

constexpr unsigned kFew = 12;  // threads, so that each has several turns
constexpr int64_t kOffset = 5;

template <typename T>
struct Panel {
  int64_t m, n, lda;
  std::vector<T> a;
  std::vector<int32_t> pivots;
  int32_t info = kNoInfo;
};

template <typename T>
Panel<T> RandomPanel(int64_t m, int64_t n) {
  Panel<T> panel = {m, n, m + 3, std::vector<T>((m + 3) * n), std::vector<int32_t>(std::min(m, n))};
  std::mt19937_64 random(m * 100 + n);
  for (T& x : panel.a) x = Random<T>(random);
  return panel;
}

template <typename T>
Panel<T> ByHost(Panel<T> panel) {
  const auto device = NewHostDevice();
  EXPECT(device->lu<T>()
             .FactorPanel(Stream::kMain, panel.m, panel.n, panel.a.data(), panel.lda, kOffset,
                          panel.pivots.data(), &panel.info)
             .ok());
  return panel;
}

template <typename T>
Panel<T> ByKernel(Panel<T> panel, unsigned blocks) {
  const int n = static_cast<int>(panel.n);
  Together<unsigned> met(1, 0);
  Together<T> a(panel.a), rows(2 * n * (blocks + 1), NaN<T>());
  Together<Real<T>> sizes(2 * blocks, NaN<Real<T>>());
  Together<int> pivots(panel.pivots), places(2 * blocks, -7), info(1, kNoInfo);
  LaunchTogether(blocks, kFew, [&] {
    kernels::LuPanel<Cuda<T>>(panel.m, n, Cast(a.data()), panel.lda, kOffset, pivots.data(),
                              info.data(), met.data(), Cast(rows.data()), sizes.data(),
                              places.data())
        .Run();
  });
  panel.a.assign(a.data(), a.data() + panel.a.size());
  panel.pivots.assign(pivots.data(), pivots.data() + panel.pivots.size());
  panel.info = *info.data();
  return panel;
}

template <typename T>
void Compare(const Panel<T>& found, const Panel<T>& expected, const std::string& what) {
  EXPECT(found.pivots == expected.pivots) << what << ": pivots";
  EXPECT(found.info == expected.info) << what << ": " << found.info << " for " << expected.info;
  Real<T> difference = 0;
  for (size_t i = 0; i < found.a.size(); ++i) {
    difference = std::max<Real<T>>(difference, std::abs(found.a[i] - expected.a[i]));
  }
  EXPECT(difference < 2000 * kEps<T>) << what << ": " << difference / kEps<T>;
}

template <typename T>
void CheckPanels() {
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 1}, {1, 3}, {3, 3}, {17, 5}, {40, 32}, {20, 32}, {57, 13}}) {
    for (unsigned blocks : {1, 2, 3}) {
      if (blocks > m) continue;
      const Panel<T> panel = RandomPanel<T>(m, n);
      Compare(ByKernel(panel, blocks), ByHost(panel),
              std::to_string(m) + " x " + std::to_string(n) + " in " + std::to_string(blocks));
    }
  }
}

TEST(PanelsAreLapacks) {
  CheckPanels<float>();
  CheckPanels<double>();
  CheckPanels<std::complex<float>>();
  CheckPanels<std::complex<double>>();
}

// Equal sizes, of which the first counts; columns of zeros; what is not finite.
TEST(SpecialPanels) {
  for (unsigned blocks : {1, 3}) {
    Panel<double> panel = RandomPanel<double>(30, 8);
    for (size_t i = 0; i < panel.a.size(); ++i) panel.a[i] = i % 3 == 0 ? -1 : 1;
    Compare(ByKernel(panel, blocks), ByHost(panel), "equal sizes");
    panel = RandomPanel<double>(30, 8);
    std::fill_n(panel.a.begin() + 4 * panel.lda, panel.lda, 0);
    const Panel<double> found = ByKernel(panel, blocks);
    Compare(found, ByHost(panel), "a column of zeros");
    EXPECT(found.info == kOffset + 5) << found.info;
    for (double bad : {NaN<double>(), std::numeric_limits<double>::infinity()}) {
      panel = RandomPanel<double>(30, 8);
      panel.a[3 * panel.lda + 17] = bad;
      EXPECT(ByKernel(panel, blocks).info == kNotFinite) << bad;
    }
    panel = RandomPanel<double>(30, 8);
    for (double& x : panel.a) x *= 1e-310;  // whose reciprocals are infinite
    const Panel<double> small = ByKernel(panel, blocks);
    EXPECT(small.info == kNoInfo);
    for (int64_t i = 1; i < 30; ++i) EXPECT(std::abs(small.a[i]) <= 1) << small.a[i];
  }
}

TEST(MovesOfRowsAndColumnsAreTheInterchanges) {
  using T = std::complex<float>;
  const int64_t m = 50, n = 7;
  for (int64_t count : {1, 5, 30}) {
    for (Order order : {Order::kForward, Order::kBackward}) {
      Panel<T> panel = RandomPanel<T>(m, n), turned = RandomPanel<T>(n, m);
      std::mt19937_64 random(count);
      panel.pivots.resize(count);
      for (int64_t i = 0; i < count; ++i) {
        panel.pivots[i] = static_cast<int32_t>(kOffset + i + random() % (m - i));
      }
      std::vector<int32_t> from_zero = panel.pivots;
      for (int32_t& pivot : from_zero) pivot -= kOffset;
      Panel<T> rows = panel, columns = turned;
      const auto device = NewHostDevice();
      LuKernels<T>& lu = device->lu<T>();
      EXPECT(lu.SwapRows(Stream::kMain, order, n, rows.a.data(), rows.lda, kOffset, count,
                         panel.pivots.data())
                 .ok());
      EXPECT(lu.SwapColumns(Stream::kMain, order, n, columns.a.data(), columns.lda, count,
                            from_zero.data())
                 .ok());
      std::vector<int> from(2 * count), to(2 * count);
      Launch(1, kFew, 1, [&] {
        kernels::PlanSwaps(order == Order::kBackward, static_cast<int>(count), kOffset,
                           panel.pivots.data(), from.data(), to.data());
      });
      Launch(3, kFew, 1, [&] {
        kernels::MoveRows<Cuda<T>>(n, static_cast<int>(count), from.data(), to.data(),
                                   Cast(panel.a.data()), 1, panel.lda);
      });
      Launch(3, kFew, 1, [&] {
        kernels::MoveRows<Cuda<T>>(n, static_cast<int>(count), from.data(), to.data(),
                                   Cast(turned.a.data()), turned.lda, 1);
      });
      EXPECT(panel.a == rows.a) << "rows, " << count;
      EXPECT(turned.a == columns.a) << "columns, " << count;
    }
  }
}

template <typename T>
void CheckDeterminant() {
  const int64_t n = 40, ldu = 43;
  Panel<T> panel = RandomPanel<T>(n, n);
  std::vector<int32_t> pivots(n);
  for (int64_t i = 0; i < n; ++i) pivots[i] = static_cast<int32_t>(kOffset + i + (i % 3 == 0));
  Real<T> expected_log = 1, log = 1;
  T expected_sign = T(-1), sign = T(-1);
  const auto device = NewHostDevice();
  EXPECT(device->lu<T>()
             .AddDeterminant(Stream::kMain, n, panel.a.data(), ldu, kOffset, pivots.data(),
                             &expected_log, &expected_sign)
             .ok());
  Launch(1, kFew, 1, [&] {
    kernels::AddDeterminant<Cuda<T>>(n, Cast(panel.a.data()), ldu, kOffset, pivots.data(), &log,
                                     Cast(&sign));
  });
  EXPECT(std::abs(log - expected_log) < 100 * kEps<T> * std::abs(expected_log)) << log;
  EXPECT(std::abs(sign - expected_sign) < 100 * kEps<T>) << sign;
}

TEST(Determinants) {
  CheckDeterminant<float>();
  CheckDeterminant<double>();
  CheckDeterminant<std::complex<float>>();
  CheckDeterminant<std::complex<double>>();
}

struct InstallLapack {
  InstallLapack() { testing::InstallReferenceLapack(); }
} install_lapack;

}  // namespace
}  // namespace jaxmg
