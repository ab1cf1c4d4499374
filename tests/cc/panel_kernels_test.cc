// The kernels of panel.cuh and register_panel.cuh, run on the host.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cc/support/host_cuda/cooperative.h"
#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/engine/routines.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/qr/panel.cuh"
#include "xla_ffi/device/cuda/qr/register_panel.cuh"
#pragma GCC diagnostic pop

namespace jaxmg {
namespace {

using namespace testing;
using host_cuda::Cast;
using host_cuda::GlobalMemory;
using host_cuda::Launch;
using host_cuda::LaunchCooperative;

template <typename T>
using Cuda = host_cuda::CudaType<T>;

// Few threads, so that each processes several elements. As many threads as on a GPU would only take
// longer.
constexpr int kLanes = 4;
constexpr unsigned kFew = 3 * kLanes;

enum class Kind { kNormal, kZeroColumns, kSameColumns, kSmallRest, kRealDiagonal };

struct Case {
  int64_t m, n;
  unsigned blocks = 1;
  Kind kind = Kind::kNormal;
};

std::string Describe(const Case& c, double scale) {
  return std::to_string(c.m) + " x " + std::to_string(c.n) + " in " + std::to_string(c.blocks) +
         " blocks, kind " + std::to_string(static_cast<int>(c.kind)) + " times " +
         std::to_string(std::log10(scale));
}

template <typename T>
struct PanelFactors {
  PanelFactors(int64_t m, int64_t n)
      : m(m), n(n), k(std::min(m, n)), lda(m + 3), ldt(k + 2), a(lda * n, kMargin), t(ldt * k) {
    std::fill(t.begin(), t.end(), kMargin);
  }
  T& operator()(int64_t i, int64_t j) { return a[i + j * lda]; }

  static constexpr T kMargin = T(-77);
  const int64_t m, n, k, lda, ldt;
  std::vector<T> a, t;
};

template <typename T>
PanelFactors<T> RandomPanel(const Case& c, double scale) {
  PanelFactors<T> input(c.m, c.n);
  std::mt19937_64 random(c.m * 1009 + c.n);
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < c.m; ++i) {
      T x = Random<T>(random);
      if (c.kind == Kind::kZeroColumns && j % 3 != 1) x = 0;
      if (c.kind == Kind::kSameColumns && j > 1) x = input(i, j % 2) / Real<T>(scale);
      if (c.kind == Kind::kSmallRest && i > j) x *= std::numeric_limits<Real<T>>::min();
      if (c.kind == Kind::kRealDiagonal) x = i > j ? T(0) : i == j ? T(std::real(x)) : x;
      input(i, j) = x * Real<T>(scale);
    }
  }
  return input;
}

template <typename T>
PanelFactors<T> ByKernel(const Case& c, PanelFactors<T> panel) {
  const int64_t owners = c.blocks > 1 ? c.blocks - 1 : 1;
  GlobalMemory<unsigned> arrivals(1, 0);
  GlobalMemory<T> a(panel.a), t(panel.t), sums(2 * c.n * (1 + owners), NaN<T>());
  GlobalMemory<Real<T>> largest(2 * owners, NaN<Real<T>>());
  LaunchCooperative(c.blocks, kFew, [&] {
    kernels::PanelFactor<Cuda<T>, kLanes>(c.m, static_cast<int>(c.n), Cast(a.data()), panel.lda,
                                          Cast(t.data()), panel.ldt, arrivals.data(),
                                          Cast(sums.data()), largest.data())
        .Run();
  });
  panel.a.assign(a.data(), a.data() + panel.a.size());
  panel.t.assign(t.data(), t.data() + panel.t.size());
  return panel;
}

// Launches blocks with one warp for each kWarpColumns columns.
template <typename T>
PanelFactors<T> ByRegisters(const Case& c, PanelFactors<T> panel) {
  const int64_t owners = c.blocks > 1 ? c.blocks - 1 : 1;
  EXPECT(c.m <= owners * 32 * kernels::RegisterPanel<Cuda<T>>::kRows);
  T nothing;
  std::memset(&nothing, 0xff, sizeof(nothing));
  GlobalMemory<T> a(panel.a), t(panel.t), numbers(panel.k * (c.n + 1) * (owners + 1), nothing);
  const int64_t warps = (c.n + kWarpColumns - 1) / kWarpColumns;
  LaunchCooperative(c.blocks, static_cast<unsigned>(32 * warps), [&] {
    kernels::RegisterPanel<Cuda<T>>(c.m, static_cast<int>(c.n), Cast(a.data()), panel.lda,
                                    Cast(t.data()), panel.ldt, Cast(numbers.data()))
        .Run();
  });
  panel.a.assign(a.data(), a.data() + panel.a.size());
  panel.t.assign(t.data(), t.data() + panel.t.size());
  return panel;
}

template <typename T>
PanelFactors<T> ByHost(PanelFactors<T> panel) {
  const auto device = NewHostDevice();
  EXPECT(device->eigen<T>()
             .panel
             ->QrPanel(Stream::kMain, panel.m, panel.n, panel.a.data(), panel.lda, panel.t.data(),
                       panel.ldt)
             .ok());
  return panel;
}

template <typename T>
using Wide = std::conditional_t<kIsComplex<T>, std::complex<double>, double>;

// Checks the panel's Q: the errors of Q R - A, relative to the norm of each column, and of Q^H Q -
// I, in units of rounding.
template <typename T>
void CheckFactors(PanelFactors<T>& input, PanelFactors<T>& actual, double scale,
                  const std::string& what) {
  using W = Wide<T>;
  const int64_t m = input.m, n = input.n, k = input.k;
  std::vector<W> v(m * k), q(m * m);
  for (int64_t j = 0; j < k; ++j) {
    for (int64_t i = j; i < m; ++i) v[i + j * m] = i == j ? W(1) : W(actual(i, j));
    for (int64_t i = k; i < actual.ldt; ++i) EXPECT(actual.t[i + j * actual.ldt] == T(-77)) << what;
    for (int64_t i = j + 1; i < k; ++i) EXPECT(actual.t[i + j * actual.ldt] == T(0)) << what;
    EXPECT(std::imag(actual(j, j)) == 0) << what;
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = m; i < actual.lda; ++i) EXPECT(actual(i, j) == T(-77)) << what;
  }
  // Q x = x - V (T (V^H x)).
  auto times_q = [&](std::vector<W> x) {
    std::vector<W> w(k), u(k);
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t i = l; i < m; ++i) w[l] += Conj(v[i + l * m]) * x[i];
    }
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t i = 0; i <= l; ++i) u[i] += W(actual.t[i + l * actual.ldt]) * w[l];
    }
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t i = l; i < m; ++i) x[i] -= v[i + l * m] * u[l];
    }
    return x;
  };
  auto norm = [](const std::vector<W>& x) {
    double sum = 0;
    for (const W& value : x) sum += std::norm(value);
    return std::sqrt(sum);
  };
  const double unit = static_cast<double>(kEps<T>) * (8 + std::sqrt(m) + n);
  double backward = 0, orthogonal = 0;
  for (int64_t j = 0; j < n; ++j) {
    std::vector<W> r(m), a(m);
    for (int64_t i = 0; i < m; ++i) {
      a[i] = W(input(i, j)) / scale;
      if (i <= j) r[i] = W(actual(i, j)) / scale;
    }
    std::vector<W> difference = times_q(r);
    for (int64_t i = 0; i < m; ++i) difference[i] -= a[i];
    // Denormal numbers are rounded to the smallest one.
    const double absolute =
        static_cast<double>(std::numeric_limits<Real<T>>::denorm_min()) / scale * m;
    backward = std::max(backward, norm(difference) / (norm(a) * unit + absolute + 1e-300));
  }
  for (int64_t j = 0; j < std::min<int64_t>(m, k + 2); ++j) {
    std::vector<W> e(m);
    e[j] = 1;
    e = times_q(e);
    orthogonal = std::max(orthogonal, std::abs(norm(e) - 1) / unit);
  }
  EXPECT(backward < 2 && orthogonal < 2) << what << ": " << backward << ", " << orthogonal;
}

template <typename T>
using Kernel = PanelFactors<T> (*)(const Case&, PanelFactors<T>);

template <typename T>
void Check(Kernel<T> kernel, const Case& c, double scale = 1) {
  const std::string what = Describe(c, scale);
  PanelFactors<T> input = RandomPanel<T>(c, scale), actual = kernel(c, input);
  CheckFactors(input, actual, scale, what);
  if (c.kind != Kind::kNormal && c.kind != Kind::kRealDiagonal) return;
  // The reflectors are unique, so they must equal the host's.
  PanelFactors<T> expected = ByHost(input);
  double difference = 0;
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < c.m; ++i) {
      const double size = i > j ? 1 : scale;
      difference = std::max<double>(difference, std::abs(actual(i, j) - expected(i, j)) / size);
    }
  }
  for (int64_t j = 0; j < actual.k; ++j) {
    for (int64_t i = 0; i < actual.k; ++i) {
      const int64_t place = i + j * actual.ldt;
      difference = std::max<double>(difference, std::abs(actual.t[place] - expected.t[place]));
    }
  }
  EXPECT(difference < 3000 * kEps<T>) << what << ": " << difference / kEps<T>;
}

template <typename T>
void CheckAll() {
  const double huge = static_cast<double>(std::numeric_limits<Real<T>>::max()) / 1e8;
  const double tiny = static_cast<double>(std::numeric_limits<Real<T>>::min()) * 1e2;
  for (const Case& c : {Case{1, 1},
                        {1, 3},
                        {2, 1},
                        {2, 2},
                        {3, 7},
                        {8, 8},
                        {40, 64},
                        {65, 64},
                        {64, 17},
                        {300, 1},
                        {300, 33}}) {
    Check<T>(ByKernel<T>, c);
    Check<T>(ByKernel<T>, c, huge);
    Check<T>(ByKernel<T>, c, tiny);
  }
  for (const Kind kind :
       {Kind::kZeroColumns, Kind::kSameColumns, Kind::kSmallRest, Kind::kRealDiagonal}) {
    for (unsigned blocks : {1, 3}) {
      Check<T>(ByKernel<T>, {50, 20, blocks, kind});
      Check<T>(ByKernel<T>, {20, 50, blocks, kind});
    }
  }
  // Blocks without rows, and blocks that finish before others.
  for (unsigned blocks : {2, 3, 6}) {
    for (double scale : {1.0, huge, tiny}) Check<T>(ByKernel<T>, {7, 5, blocks}, scale);
    Check<T>(ByKernel<T>, {2, 4, blocks});
    Check<T>(ByKernel<T>, {100, 64, blocks});
    Check<T>(ByKernel<T>, {40, 48, blocks});
  }
  std::mt19937_64 random(sizeof(T));
  for (int i = 0; i < 20; ++i) {
    const int64_t m = 1 + static_cast<int64_t>(random() % 300);
    const int64_t n = 1 + static_cast<int64_t>(random() % kPanelColumns);
    Check<T>(ByKernel<T>, {m, n, i % 4 == 0 ? 4u : 1u}, i % 5 == 1 ? huge : i % 5 == 2 ? tiny : 1);
  }
  // Results are reproducible.
  const PanelFactors<T> input = RandomPanel<T>({90, 30, 4}, 1);
  const PanelFactors<T> once = ByKernel<T>({90, 30, 4}, input),
                        again = ByKernel<T>({90, 30, 4}, input);
  EXPECT(once.a == again.a && once.t == again.t);
}

// Few columns are enough, because a warp processes four columns.
template <typename T>
void CheckRegisters() {
  const double huge = static_cast<double>(std::numeric_limits<Real<T>>::max()) / 1e8;
  const double tiny = static_cast<double>(std::numeric_limits<Real<T>>::min()) * 1e2;
  auto check = [](const Case& c, double scale = 1) { Check<T>(ByRegisters<T>, c, scale); };
  for (const Case& c : {Case{1, 1}, {1, 3}, {2, 1}, {3, 7}, {8, 8}}) check(c);
  // The largest number of rows of a block, and about half of it.
  const int64_t most = 32 * kernels::RegisterPanel<Cuda<T>>::kRows;
  for (const int64_t m : {most / 2, most / 2 + 1, most}) check({m, 2});
  check({2 * most - 5, 3, 3});
  for (const Kind kind :
       {Kind::kZeroColumns, Kind::kSameColumns, Kind::kSmallRest, Kind::kRealDiagonal}) {
    // The kernel for complex128 fails this case, so it isn't used (device/cuda/qr/panel.cc).
    if (kind == Kind::kSmallRest && sizeof(T) == 2 * sizeof(double)) continue;
    check({50, 6, 3, kind});
    check({3, 6, 1, kind});
  }
  // Blocks without rows, blocks of very different sizes, and more blocks than a warp has lanes.
  for (double scale : {1.0, huge, tiny}) check({7, 4, 4}, scale);
  check({7, 5, 2});
  check({2, 4, 5});
  check({150, 2, 41});
  const PanelFactors<T> input = RandomPanel<T>({90, 4, 4}, 1);
  const PanelFactors<T> once = ByRegisters<T>({90, 4, 4}, input);
  const PanelFactors<T> again = ByRegisters<T>({90, 4, 4}, input);
  EXPECT(once.a == again.a && once.t == again.t);
}

TEST(QrPanelFloat) { CheckAll<float>(); }
TEST(QrPanelDouble) { CheckAll<double>(); }
TEST(QrPanelComplexFloat) { CheckAll<std::complex<float>>(); }
TEST(QrPanelComplexDouble) { CheckAll<std::complex<double>>(); }

TEST(QrPanelInRegistersFloat) { CheckRegisters<float>(); }
TEST(QrPanelInRegistersDouble) { CheckRegisters<double>(); }
TEST(QrPanelInRegistersComplexFloat) { CheckRegisters<std::complex<float>>(); }
TEST(QrPanelInRegistersComplexDouble) { CheckRegisters<std::complex<double>>(); }

// For a column (0, x), R is -x and T is 1, even for the smallest x.
template <typename T>
void CheckSmallestNumber() {
  for (const Kernel<T> kernel : {ByKernel<T>, ByRegisters<T>}) {
    const Case c = {2, 1};
    PanelFactors<T> input(c.m, c.n);
    input(0, 0) = T(0);
    input(1, 0) = std::numeric_limits<Real<T>>::denorm_min();
    PanelFactors<T> actual = kernel(c, input);
    EXPECT(actual(0, 0) == -input(1, 0) && actual.t[0] == T(1)) << actual(0, 0);
  }
}

TEST(QrPanelOfTheSmallestNumber) {
  CheckSmallestNumber<float>();
  CheckSmallestNumber<double>();
  CheckSmallestNumber<std::complex<float>>();
  CheckSmallestNumber<std::complex<double>>();
}

// NaN propagates to all results. No block waits forever for a NaN whose bits mark a number that has
// not arrived.
TEST(QrPanelOfNan) {
  const Case c = {30, 4, 3};
  double all_ones;
  std::memset(&all_ones, 0xff, sizeof(all_ones));
  for (const double nan : {NaN<double>(), all_ones}) {
    for (const Kernel<double> kernel : {ByKernel<double>, ByRegisters<double>}) {
      PanelFactors<double> first = RandomPanel<double>(c, 1), second = first;
      first(20, 0) = nan;
      PanelFactors<double> actual = kernel(c, first);
      EXPECT(std::isnan(actual(0, 0)) && std::isnan(actual(3, 3)) && std::isnan(actual(29, 3)));
      second(1, 1) = nan;  // sent unchanged
      EXPECT(std::isnan(kernel(c, second)(3, 3)));
    }
  }
}

// Replaces the host's kernels. Ranks are threads, but the shared memory of a block is a single
// variable in this process, so only one rank runs at a time.
template <typename T>
class Kernels : public PanelKernels<T> {
  using R = Real<T>;
  static const Cuda<T>* Cast(const T* data) { return reinterpret_cast<const Cuda<T>*>(data); }
  static Cuda<T>* Cast(T* data) { return reinterpret_cast<Cuda<T>*>(data); }
  static Status Run(unsigned blocks, const std::function<void()>& kernel) {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    Launch(blocks, kFew, 1, kernel);
    return Status::Ok();
  }

 public:
  Status QrPanel(Stream, int64_t m, int64_t n, T* a, int64_t lda, T* t, int64_t ldt) override {
    unsigned arrivals = 0;
    std::vector<T> sums(4 * n);
    std::vector<R> largest(2);
    return Run(1, [&] {
      kernels::PanelFactor<Cuda<T>, kLanes>(m, static_cast<int>(n), Cast(a), lda, Cast(t), ldt,
                                            &arrivals, Cast(sums.data()), largest.data())
          .Run();
    });
  }
  Status UnpackReflectors(Stream, int64_t m, int64_t k, const T* a, int64_t lda, T* v,
                          int64_t ldv) override {
    return Run(2, [&] { kernels::UnpackReflectors(m, k, Cast(a), lda, Cast(v), ldv); });
  }
  Status PackBand(Stream, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, T* band,
                  int64_t ldb) override {
    return Run(2, [&] { kernels::PackBand(m, n, k, Cast(a), lda, Cast(band), ldb); });
  }
  Status CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, int64_t offset,
                     int32_t* first) override {
    return host->CheckFinite(stream, m, n, a, lda, offset, first);
  }
  Status FromReal(Stream stream, int64_t m, int64_t n, const R* a, int64_t lda, T* b,
                  int64_t ldb) override {
    return host->FromReal(stream, m, n, a, lda, b, ldb);
  }

  PanelKernels<T>* host = nullptr;
};

template <typename T>
void CheckUnpackAndPack() {
  const auto device = NewHostDevice();
  PanelKernels<T>& host = *device->eigen<T>().panel;
  Kernels<T> kernels;
  constexpr Stream kMain = Stream::kMain;
  for (const auto& [m, k] : {std::pair<int64_t, int64_t>{9, 4}, {4, 4}, {1, 1}}) {
    const PanelFactors<T> panel = RandomPanel<T>({m, k}, 1);
    const T* a = panel.a.data();
    std::vector<T> v((m + 1) * k, T(3)), expected = v;
    EXPECT(kernels.UnpackReflectors(kMain, m, k, a, panel.lda, v.data(), m + 1).ok());
    EXPECT(host.UnpackReflectors(kMain, m, k, a, panel.lda, expected.data(), m + 1).ok());
    EXPECT(v == expected) << m << ", " << k;
  }
  struct Packed {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Packed{5, 5, 5}, {5, 5, 2}, {3, 3, 0}, {5, 4, 3}, {1, 1, 1}}) {
    const PanelFactors<T> tile = RandomPanel<T>({m + k, n}, 1);
    const T* a = tile.a.data();
    std::vector<T> band(2 * m * n, T(3)), expected = band;
    EXPECT(kernels.PackBand(kMain, m, n, k, a, tile.lda, band.data(), 2 * m).ok());
    EXPECT(host.PackBand(kMain, m, n, k, a, tile.lda, expected.data(), 2 * m).ok());
    EXPECT(band == expected) << m << ", " << n << ", " << k;
  }
}

TEST(UnpackReflectorsAndPackBand) {
  CheckUnpackAndPack<float>();
  CheckUnpackAndPack<double>();
  CheckUnpackAndPack<std::complex<float>>();
  CheckUnpackAndPack<std::complex<double>>();
}

// The host device with these kernels for panels. All ranks share an eigenproblem.
class KernelDevice : public ForwardingDevice {
 public:
  explicit KernelDevice(std::unique_ptr<Device> host)
      : ForwardingDevice(*host), host_(std::move(host)) {
    std::apply([this](auto&... kernels) { (Replace(kernels), ...); }, kernels_);
  }
  Tuning tuning() const override {
    Tuning tuning;
    tuning.eigen.ShareFrom(1);
    tuning.eigen.band_width = tuning.eigen.band_width_complex128 = 8;
    return tuning;
  }

 private:
  template <typename T>
  void Replace(Kernels<T>& kernels) {
    EigenKernels<T> eigen = host_->eigen<T>();
    kernels.host = eigen.panel;
    eigen.panel = &kernels;
    Offer<T>(host_->by_precision<T>(), host_->solver<T>(), eigen);
  }

  const std::unique_ptr<Device> host_;
  PerDtype<Kernels> kernels_;
};

template <typename T>
void CheckEigenvalues(int64_t n, int ranks) {
  Problem<T> problem({n, ranks, 0}, false);
  std::vector<std::vector<Real<T>>> w(ranks, std::vector<Real<T>>(n));
  std::vector<int32_t> status(ranks, -1);
  const auto outcomes = RunRanks(
      ranks,
      [&](const RankContext& context) {
        const int rank = context.comm.rank();
        return SyevdRoutine(context, problem.operand(rank, 0, &status[rank]), true, w[rank].data());
      },
      kPatience, [](int) { return std::make_unique<KernelDevice>(NewHostDevice()); });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int64_t k = 0; k < n; ++k) {
    Real<T> residual = 0;
    auto v = [&](int64_t i) {
      return problem.blocks[i / problem.block][(i % problem.block) * n + k];
    };
    for (int64_t i = 0; i < n; ++i) {
      T sum = -v(i) * w[0][k];
      for (int64_t j = 0; j < n; ++j) sum += problem.a[i * n + j] * v(j);
      residual += std::norm(sum);
    }
    EXPECT(std::sqrt(residual) < 10 * n * kEps<T> * problem.norm()) << n << ", " << k;
  }
}

TEST(EigensolverWithTheseKernels) {
  for (const int64_t n : {11, 41}) {
    CheckEigenvalues<float>(n, 2);
    CheckEigenvalues<double>(n, 3);
    CheckEigenvalues<std::complex<float>>(n, 3);
    CheckEigenvalues<std::complex<double>>(n, 2);
  }
}

}  // namespace
}  // namespace jaxmg
