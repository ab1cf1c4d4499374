// The kernels of lu.cuh, run on the host and compared to LAPACK's results.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/support/host_cuda/cooperative.h"
#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/lu/lu.cuh"
#include "xla_ffi/device/cuda/lu/lu_panel.cuh"
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

constexpr unsigned kFew = 12;    // threads, so that each processes several elements
constexpr unsigned kWarps = 64;  // threads, two warps
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

// Number of rows of a block with kWarps threads.
template <typename T, int kColumns>
constexpr int kBlockRows = kWarps * kernels::LuPanel<Cuda<T>, kColumns>::kRows;

// Factors the panel with kernels that process kColumns columns at a time.
template <typename T, int kColumns = 32>
Panel<T> ByKernel(Panel<T> panel) {
  const int n = static_cast<int>(panel.n), k = static_cast<int>(std::min(panel.m, panel.n));
  constexpr unsigned kMostBlocks = 3;
  GlobalMemory<kernels::TaggedWord> slots(2 * kMostBlocks * kLuSlotWords, {{~0ull, ~0ull}});
  GlobalMemory<T> a(panel.a);
  GlobalMemory<int> pivots(panel.pivots), info(1, kNoInfo), moves(4 * panel.pivots.size() + 1, -7);
  unsigned tag = 100;
  const auto device = NewHostDevice();
  Blas<T>& blas = device->blas<T>();
  auto at = [&](int i, int j) { return a.data() + i + j * panel.lda; };
  auto leaf = [&](int begin, int columns) {
    const int64_t rows = panel.m - begin;
    constexpr int kRows = kBlockRows<T, kColumns>;
    const auto blocks = static_cast<unsigned>((rows + kRows - 1) / kRows);
    EXPECT(blocks <= kMostBlocks);
    LaunchCooperative(blocks, kWarps, [&] {
      kernels::LuPanel<Cuda<T>, kColumns>(rows, columns, Cast(at(begin, begin)), panel.lda,
                                          kOffset + begin, pivots.data() + begin, info.data(),
                                          slots.data(), tag, moves.data() + 4 * begin)
          .Run();
    });
    tag += static_cast<unsigned>(columns);
  };
  auto step = [&](int first, int last, int right) {
    const int begin = first * kColumns, end = std::min(last * kColumns, k);
    auto run = [&](int column, int columns) {
      Launch(static_cast<unsigned>(columns + kLuStepColumns - 1) / kLuStepColumns, kWarps, 1, [&] {
        kernels::LuStep<Cuda<T>>(k, Cast(a.data()), panel.lda, kColumns, first, last, column, right,
                                 moves.data())
            .Run();
      });
    };
    if (last - first > 1) run(begin, end - begin);
    run(end, right);
  };
  const std::function<void(int, int)> leaves = [&](int first, int last) {
    const int begin = first * kColumns, end = std::min(last * kColumns, k);
    if (last - first == 1) return leaf(begin, end - begin);
    const int middle = first + (last - first + 1) / 2, row = middle * kColumns;
    leaves(first, middle);
    step(first, middle, end - row);
    EXPECT(blas.Gemm(Stream::kMain, Op::kNone, Op::kNone, panel.m - row, end - row, row - begin, -1,
                     at(row, begin), panel.lda, at(begin, row), panel.lda, 1, at(row, row),
                     panel.lda)
               .ok());
    leaves(middle, last);
  };
  if (n <= kColumns) {
    leaf(0, n);
  } else {
    leaves(0, (k + kColumns - 1) / kColumns);
    step(0, (k + kColumns - 1) / kColumns, n - k);
  }
  panel.a.assign(a.data(), a.data() + panel.a.size());
  panel.pivots.assign(pivots.data(), pivots.data() + panel.pivots.size());
  panel.info = *info.data();
  return panel;
}

template <typename T>
void Compare(const Panel<T>& actual, const Panel<T>& expected, const std::string& what) {
  EXPECT(actual.pivots == expected.pivots) << what << ": pivots";
  EXPECT(actual.info == expected.info) << what << ": " << actual.info << " for " << expected.info;
  Real<T> difference = 0;
  for (size_t i = 0; i < actual.a.size(); ++i) {
    difference = std::max<Real<T>>(difference, std::abs(actual.a[i] - expected.a[i]));
  }
  EXPECT(difference < 2000 * kEps<T>) << what << ": " << difference / kEps<T>;
}

template <typename T, int kColumns>
void CheckPanels(const std::vector<std::pair<int64_t, int64_t>>& shapes) {
  for (const auto& [m, n] : shapes) {
    const Panel<T> panel = RandomPanel<T>(m, n);
    Compare(ByKernel<T, kColumns>(panel), ByHost(panel),
            std::to_string(m) + " x " + std::to_string(n) + " by " + std::to_string(kColumns));
  }
}

// One, two and three blocks; full and partial leaves of the recursion.
template <typename T>
void CheckPanels() {
  const int64_t rows = kBlockRows<T, 32>;
  CheckPanels<T, 32>({{1, 3}, {40, 32}, {2 * rows + 1, 9}});
  CheckPanels<T, 8>({{20, 50}, {40, 27}});
  CheckPanels<T, 4>({{7, 11}});
}

TEST(PanelsAreLapacks) {
  CheckPanels<float>();
  CheckPanels<double>();
  CheckPanels<std::complex<float>>();
  CheckPanels<std::complex<double>>();
}

// Equal magnitudes, of which the first is the pivot; columns of zeros; non-finite elements. With
// one block and with two.
TEST(SpecialPanels) {
  for (int64_t m : {int64_t{30}, int64_t{kBlockRows<double, 32> + 30}}) {
    Panel<double> panel = RandomPanel<double>(m, 8);
    for (size_t i = 0; i < panel.a.size(); ++i) panel.a[i] = i % 3 == 0 ? -1 : 1;
    Compare(ByKernel(panel), ByHost(panel), "equal sizes");
    panel = RandomPanel<double>(m, 8);
    std::fill_n(panel.a.begin() + 4 * panel.lda, panel.lda, 0);
    const Panel<double> actual = ByKernel(panel);
    Compare(actual, ByHost(panel), "a column of zeros");
    EXPECT(actual.info == kOffset + 5) << actual.info;
    for (double bad : {NaN<double>(), std::numeric_limits<double>::infinity()}) {
      panel = RandomPanel<double>(m, 8);
      panel.a[3 * panel.lda + 17] = bad;
      EXPECT(ByKernel(panel).info == kNotFinite) << bad;
    }
    panel.a[17] = NaN<double>();
    panel.a[m - 1] = panel.a[3] = std::numeric_limits<double>::infinity();
    EXPECT(ByKernel(panel).pivots[0] == kOffset + 3);
    panel = RandomPanel<double>(m, 8);
    for (double& x : panel.a) x *= 1e-310;  // small enough that reciprocals are infinite
    const Panel<double> small = ByKernel(panel);
    EXPECT(small.info == kNoInfo);
    for (int64_t i = 1; i < m; ++i) EXPECT(std::abs(small.a[i]) <= 1) << small.a[i];
  }
}

// Computes the result of PlanSwaps, one interchange after the other.
void PlanInTurn(Order order, int64_t count, const std::vector<int32_t>& rows,
                std::vector<int>* from, std::vector<int>* to) {
  std::vector<int64_t> place(count), content(2 * count);
  for (int64_t i = 0; i < 2 * count; ++i) content[i] = i;
  for (int64_t i = 0; i < count; ++i) {
    const auto first = std::find(rows.begin(), rows.end(), rows[i]) - rows.begin();
    place[i] = rows[i] < count ? rows[i] : count + first;
  }
  for (int64_t step = 0; step < count; ++step) {
    const int64_t i = order == Order::kBackward ? count - 1 - step : step;
    std::swap(content[i], content[place[i]]);
  }
  auto row_of = [&](int64_t at) { return static_cast<int>(at < count ? at : rows[at - count]); };
  for (int64_t i = 0; i < 2 * count; ++i) {
    from->push_back(content[i] != i ? row_of(content[i]) : -1);
    to->push_back(content[i] != i ? row_of(i) : -1);
  }
}

// Interchanges among many rows, few rows, and hardly more rows than are interchanged; no
// interchange, all with the last row, and all with the next row.
TEST(PlannedSwapsAreTheInterchanges) {
  using Rows = std::function<int64_t(int64_t i, int64_t count)>;
  std::mt19937_64 random(3);
  auto below = [&](int64_t begin, int64_t end) {
    return begin + static_cast<int64_t>(random() % (end - begin));
  };
  const Rows kinds[] = {[&](int64_t i, int64_t count) { return below(i, 1000 * count); },
                        [&](int64_t i, int64_t count) { return below(i, count + count / 8 + 1); },
                        [&](int64_t i, int64_t count) { return below(i, count); },
                        [&](int64_t i, int64_t count) { return std::max(i, below(0, count)); },
                        [](int64_t i, int64_t) { return i; },
                        [](int64_t, int64_t count) { return count; },
                        [](int64_t, int64_t count) { return count - 1; },
                        [](int64_t i, int64_t) { return i + 1; },
                        [](int64_t i, int64_t count) { return std::min(i + 1, count - 1); }};
  for (int64_t count : {1, 2, 3, 8, 33, 100, kLuSwaps}) {
    for (const Rows& kind : kinds) {
      std::vector<int32_t> rows(count), pivots(count);
      for (int64_t i = 0; i < count; ++i) {
        rows[i] = static_cast<int32_t>(kind(i, count));
        pivots[i] = static_cast<int32_t>(kOffset + rows[i]);
      }
      for (Order order : {Order::kForward, Order::kBackward}) {
        std::vector<int> from(2 * count), to(2 * count), expected_from, expected_to;
        PlanInTurn(order, count, rows, &expected_from, &expected_to);
        Launch(1, kFew, 1, [&] {
          kernels::PlanSwaps(order == Order::kBackward, static_cast<int>(count), kOffset,
                             pivots.data(), from.data(), to.data());
        });
        const auto what = std::to_string(count) + ", kind " + std::to_string(&kind - kinds);
        EXPECT(from == expected_from) << what;
        EXPECT(to == expected_to) << what;
      }
    }
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
      Launch(3, kThreads, 1, [&] {
        kernels::MoveRows<Cuda<T>>(n, static_cast<int>(count), from.data(), to.data(),
                                   Cast(panel.a.data()), 1, panel.lda);
      });
      Launch(3, kThreads, 1, [&] {
        kernels::MoveRows<Cuda<T>>(n, static_cast<int>(count), from.data(), to.data(),
                                   Cast(turned.a.data()), turned.lda, 1);
      });
      EXPECT(panel.a == rows.a) << "rows, " << count;
      EXPECT(turned.a == columns.a) << "columns, " << count;
    }
  }
}

TEST(RowsAreTakenFromACopyOfColumns) {
  using T = std::complex<float>;
  const int64_t m = 2 * kTakenRows + 7, n = 3, first = 4;
  Panel<T> panel = RandomPanel<T>(m, n);
  std::vector<int> sources(m);
  for (int64_t i = 0; i < m; ++i) sources[i] = static_cast<int>(first + (i * 5 + 2) % m);
  std::vector<T> buffer(m * n), expected = panel.a;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      buffer[j * m + i] = panel.a[j * panel.lda + i];
      expected[j * panel.lda + i] = panel.a[j * panel.lda + sources[i] - first];
    }
  }
  Launch(3 * n, kWarps, 1, [&] {
    kernels::TakeRows<Cuda<T>>(m, first, sources.data(), Cast(buffer.data()), Cast(panel.a.data()),
                               panel.lda);
  });
  EXPECT(panel.a == expected);
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

}  // namespace
}  // namespace jaxmg
