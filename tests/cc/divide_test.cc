// Divide and conquer on several ranks: LAPACK's kinds of tridiagonal matrices, every small order,
// subsets of the eigenvectors, eigenvalues only, and problems that don't converge.
#include "xla_ffi/engine/eigen/divide/divide.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "tests/cc/support/tridiagonal.h"
#include "xla_ffi/engine/eigen/divide/deflation.h"

namespace jaxmg {
namespace {

using namespace testing;

thread_local DeviceMaker make_device = OnHost;

struct Layout {
  int ranks;
  int64_t extra_rows = 0;  // in each rank's block
  DivideTuning tuning = {};
};

// Allocates exactly `count` elements, filled with NaN.
template <typename X>
std::unique_ptr<X[]> Filled(int64_t count) {
  std::unique_ptr<X[]> data(new X[count]);
  std::memset(static_cast<void*>(data.get()), 0xff, count * sizeof(X));
  return data;
}

template <typename R>
struct Outcome {
  int32_t info;
  std::vector<R> d, q;  // q: n x columns, column-major
};

// Returns the eigenvalues and, if first >= 0, the eigenvectors [first, last).
template <typename R>
Outcome<R> Solve(const Tridiagonal<R>& t, const Layout& layout, int64_t first, int64_t last) {
  const int64_t n = t.n(), block = (n + layout.ranks - 1) / layout.ranks + layout.extra_rows;
  const bool vectors = first >= 0;
  const DivideBytes bytes = DivideWorkspace<R>(n, block, vectors, layout.tuning);
  std::vector<Outcome<R>> outcomes(layout.ranks);
  std::vector<std::unique_ptr<R[]>> q(layout.ranks), work(layout.ranks);
  std::vector<std::unique_ptr<char[]>> device(layout.ranks), host(layout.ranks);
  std::vector<int64_t> ld(layout.ranks);
  const auto statuses = RunRanks(
      layout.ranks,
      [&](const RankContext& context) {
        const int r = context.comm.rank();
        const int64_t rows = std::min((r + 1) * block, n) - std::min(r * block, n);
        // Tests both layouts of a shorter last block: with and without padding.
        ld[r] = layout.extra_rows > 0 ? block : std::max<int64_t>(rows, 1);
        const int64_t room = rows > 0 ? ld[r] * (n - 1) + rows : 0;
        q[r] = Filled<R>(room);
        work[r] = Filled<R>(room);
        device[r] = Filled<char>(bytes.device);
        host[r] = Filled<char>(bytes.host);
        outcomes[r] = {-1, t.d, {}};
        const EigenvectorRows<R> mine = {first, last, q[r].get(), work[r].get(), ld[r]};
        JAXMG_RETURN_IF_ERROR(DivideAndConquer<R>(
            context, n, block, outcomes[r].d.data(), t.e.data(), vectors ? &mine : nullptr,
            {device[r].get(), host[r].get()}, &outcomes[r].info, layout.tuning));
        // The caller may reuse the workspace from here on.
        return context.device.FillInt32(Stream::kMain, reinterpret_cast<int32_t*>(device[r].get()),
                                        bytes.device / sizeof(int32_t), 1);
      },
      kPatience, make_device);
  for (int r = 0; r < layout.ranks; ++r) {
    EXPECT(statuses[r].ok()) << statuses[r].message();
    outcomes[0].info = std::max(outcomes[0].info, outcomes[r].info);
  }
  for (int r = 0; r < layout.ranks; ++r) {
    EXPECT(outcomes[0].info != 0 || outcomes[r].d == outcomes[0].d) << "ranks differ";
  }
  Outcome<R> whole = outcomes[0];
  for (int64_t j = 0; vectors && j < last - first; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      whole.q.push_back(q[i / block][i % block + j * ld[i / block]]);
    }
  }
  return whole;
}

// Errors in units of rounding. Residuals and orthogonality are divided by n; residuals and values
// are divided by the norm.
struct Errors {
  double residual = 0, orthogonality = 0, values = 0;
};

template <typename R>
Errors ErrorsOf(const Tridiagonal<R>& t, const Outcome<R>& actual, bool check_values) {
  const int64_t n = t.n(), columns = actual.q.size() / std::max<int64_t>(n, 1);
  const long double eps = std::numeric_limits<R>::epsilon();
  const long double norm = t.norm() > 0 ? t.norm() : 1;
  Errors errors;
  for (int64_t i = 0; check_values && i < n; ++i) {
    const long double error = std::abs(actual.d[i] - Bisect(t, i));
    errors.values = std::max<double>(errors.values, error / (norm * eps));
  }
  // The largest column sums of |T Q - Q L| and |Q^T Q - I|, as in LAPACK's tests.
  for (int64_t j = 0; j < columns; ++j) {
    const R* q = &actual.q[j * n];
    long double residual = 0;
    double orthogonality = 0;
    for (int64_t i = 0; i < n; ++i) {
      residual +=
          std::abs((t.d[i] - static_cast<long double>(actual.d[j])) * q[i] +
                   (i > 0 ? t.off(i - 1) * q[i - 1] : 0) + (i + 1 < n ? t.off(i) * q[i + 1] : 0));
    }
    for (int64_t c = 0; c < columns; ++c) {
      double dot = c == j ? -1 : 0;
      const R* other = &actual.q[c * n];
      for (int64_t i = 0; i < n; ++i) dot += static_cast<double>(q[i]) * other[i];
      orthogonality += std::abs(dot);
    }
    errors.residual = std::max<double>(errors.residual, residual / (norm * n * eps));
    errors.orthogonality = std::max<double>(errors.orthogonality, orthogonality / (n * eps));
  }
  // Checked separately, because a maximum would discard NaN.
  for (const R& x : actual.q) {
    if (!std::isfinite(x)) errors.orthogonality = std::numeric_limits<double>::infinity();
  }
  return errors;
}

std::string Describe(const std::string& kind, int64_t n, const Layout& layout) {
  return kind + " n " + std::to_string(n) + " ranks " + std::to_string(layout.ranks) + " extra " +
         std::to_string(layout.extra_rows) + " leaf " + std::to_string(layout.tuning.leaf);
}

void ExpectSmall(const Errors& errors, int64_t n, const std::string& what) {
  const double bound = n < 10 ? 10 : 5;
  EXPECT(errors.residual < bound) << what << " residual " << errors.residual;
  EXPECT(errors.orthogonality < bound) << what << " orthogonality " << errors.orthogonality;
  EXPECT(errors.values < 10 + n / 20.0) << what << " eigenvalues " << errors.values;
}

template <typename R>
void CheckSorted(const Outcome<R>& actual, const std::string& what) {
  for (size_t i = 1; i < actual.d.size(); ++i) EXPECT(actual.d[i - 1] <= actual.d[i]) << what;
}

template <typename R>
bool SameBits(const std::vector<R>& a, const std::vector<R>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(R)) == 0;
}

// Checks all vectors and, if `parts`, eigenvalues only and subsets of the vectors.
template <typename R>
Errors Check(const Kind<R>& kind, int64_t n, const Layout& layout, bool parts = true) {
  std::mt19937_64 random(n * 31 + 7);
  const Tridiagonal<R> t = kind.make(n, random);
  const std::string what = Describe(kind.name, n, layout);
  const Outcome<R> all = Solve(t, layout, 0, n);
  EXPECT(all.info == 0) << what;
  CheckSorted(all, what);
  const Errors errors = ErrorsOf(t, all, n <= 300);
  ExpectSmall(errors, n, what);
  if (!parts) return errors;

  const Outcome<R> values = Solve(t, layout, -1, -1);
  EXPECT(values.info == 0) << what;
  CheckSorted(values, what);
  const double eps = std::numeric_limits<R>::epsilon();
  for (int64_t i = 0; i < n; ++i) {
    const double difference = std::abs(static_cast<double>(values.d[i]) - all.d[i]);
    EXPECT(difference <= 20 * eps * t.norm())
        << what << " alone " << difference / (eps * static_cast<double>(t.norm()));
  }
  const int64_t first = n / 3, last = std::min(n, n / 3 + 1 + n / 4);
  const Outcome<R> part = Solve(t, layout, first, last);
  EXPECT(SameBits(part.d, all.d)) << what;
  EXPECT(SameBits(part.q, std::vector<R>(all.q.begin() + first * n, all.q.begin() + last * n)))
      << what << " part";
  return errors;
}

Layout Small(int ranks, int64_t extra_rows, int64_t leaf, int64_t panel) {
  Layout layout = {ranks, extra_rows};
  layout.tuning.leaf = leaf;
  layout.tuning.panel = panel;
  return layout;
}

template <typename R>
void CheckEveryOrder() {
  for (const Kind<R>& kind : Kinds<R>()) {
    for (int64_t n = 0; n <= 40; ++n) {
      // Tests each order with one number of ranks, and each number of ranks with several kinds.
      const int ranks = 1 + (n + kind.name.size()) % 5;
      Check(kind, n, Small(ranks, n % 3, 1 + n % 5, 1 + n % 7), (n + ranks) % 3 == 0);
    }
  }
}

template <typename R>
void CheckEveryRankCount() {
  for (const Kind<R>& kind : Kinds<R>()) {
    if (kind.name != "uniform" && kind.name != "glued Wilkinson") continue;
    for (int64_t n = 0; n <= 40; ++n) {
      for (int ranks = 1; ranks <= 5; ++ranks) {
        Check(kind, n, Small(ranks, 0, 3, 4), (n + ranks) % 4 == 0);
      }
    }
  }
}

template <typename R>
void CheckLarger() {
  for (const Kind<R>& kind : Kinds<R>()) {
    const int64_t n = std::min<int64_t>(kind.largest, 130);
    Check(kind, n, Layout{3});
    Check(kind, n + 1, Small(4, 9, 16, 50), false);
  }
}

template <typename R>
void CheckLargest() {
  for (const Kind<R>& kind : Kinds<R>()) {
    if (kind.name != "uniform" && kind.name != "1-2-1" && kind.name != "glued Wilkinson") continue;
    Check(kind, 257, Layout{2});
    if (kind.name == "1-2-1") Check(kind, 300, Layout{1});
    if (kind.name == "uniform") Check(kind, 1000, Layout{4}, false);
  }
}

#define JAXMG_TEST_EACH_REAL(Name, Check) \
  TEST(Name##Float32) { Check<float>(); } \
  TEST(Name##Float64) { Check<double>(); }

JAXMG_TEST_EACH_REAL(EveryKindOfEveryOrder, CheckEveryOrder)
JAXMG_TEST_EACH_REAL(OnEveryNumberOfRanks, CheckEveryRankCount)
JAXMG_TEST_EACH_REAL(EveryKindLarger, CheckLarger)
JAXMG_TEST_EACH_REAL(Large, CheckLargest)

TEST(ResultsAreReproducibleAndEqualOnRanks) {
  for (const Kind<double>& kind : Kinds<double>()) {
    std::mt19937_64 random(5);
    const Tridiagonal<double> t = kind.make(60, random);
    const Layout layout = Small(3, 1, 7, 10);
    const Outcome<double> one = Solve(t, layout, 0, 60), two = Solve(t, layout, 0, 60);
    EXPECT(SameBits(one.d, two.d) && SameBits(one.q, two.q)) << kind.name;
    // Results don't depend on the ranks if products don't depend on their number of rows.
    const Outcome<double> alone = Solve(t, Small(1, 0, 7, 10), 0, 60);
    EXPECT(SameBits(one.d, alone.d) && SameBits(one.q, alone.q)) << kind.name;
  }
}

// Subsets of the vectors: none, one, all but one.
TEST(AnySubsetOfTheVectors) {
  for (const Kind<double>& kind : Kinds<double>()) {
    if (kind.name != "uniform" && kind.name != "glued Wilkinson" && kind.name != "zero") continue;
    std::mt19937_64 random(5);
    const int64_t n = 33;
    const Tridiagonal<double> t = kind.make(n, random);
    for (int64_t leaf : {4, 64}) {
      const Layout layout = Small(2, 0, leaf, 5);
      const Outcome<double> all = Solve(t, layout, 0, n);
      for (int64_t first = 0; first <= n; first += 3) {
        for (int64_t last : {first, std::min(first + 1, n), n}) {
          const Outcome<double> part = Solve(t, layout, first, last);
          EXPECT(SameBits(part.d, all.d)) << kind.name;
          EXPECT(SameBits(part.q, {all.q.begin() + first * n, all.q.begin() + last * n}))
              << kind.name << " [" << first << ", " << last << ")";
        }
      }
    }
  }
}

TEST(ManyRanksWithFewRowsOrNone) {
  for (const Kind<double>& kind : Kinds<double>()) {
    for (int64_t n : {1, 2, 3, 5, 9, 17}) {
      Check(kind, n, Small(7, 0, 2, 3), n < 9);
      Check(kind, n, Small(4, n, 2, 3), n < 9);  // all rows on the first rank
    }
  }
}

TEST(StreamsWaitForEachOther) {
  make_device = [](int) { return NewAsyncDevice(NewHostDevice(), NewHostDevice()->tuning()); };
  for (const Kind<double>& kind : Kinds<double>()) {
    Check(kind, 37, Small(4, 1, 3, 4));
  }
  make_device = OnHost;
}

// Blocks that are sent don't change before the receiver has copied them.
TEST(EveryAccessIsOrdered) {
  for (const Kind<double>& kind : Kinds<double>()) {
    for (int ranks : {2, 5, 6}) {
      if (ranks == 2 && kind.name != "uniform") continue;
      for (int64_t first : {-1, 5}) {
        Recording recording(ranks);
        make_device = [&](int rank) {
          const Tuning tuning = NewHostDevice()->tuning();
          return NewRecordingDevice(NewHostDevice(), tuning, recording, rank);
        };
        std::mt19937_64 random(5);
        (void)Solve(kind.make(36, random), Small(ranks, 0, 4, 9), first, 30);
        EXPECT(recording.FirstRace().empty()) << kind.name << ": " << recording.FirstRace();
      }
    }
  }
  make_device = OnHost;
}

// Poles that differ only by rounding, as in clusters.
TEST(DeflationSeparatesPolesAndKeepsTheMatrix) {
  constexpr double kEps = std::numeric_limits<double>::epsilon();
  std::mt19937_64 random(1);
  auto uniform = [&] { return std::uniform_real_distribution<double>(-1, 1)(random); };
  for (int64_t n : {2, 3, 10, 50}) {
    for (int sample = 0; sample < 200; ++sample) {
      std::vector<double> d(n), z(n);
      for (double& x : d) x = random() % 4 + kEps * (random() % 8);
      double norm = 0;
      for (double& x : z) x = uniform() * std::pow(kEps, std::abs(uniform())), norm += x * x;
      for (double& x : z) x /= std::sqrt(norm);
      std::vector<char> memory(MergeTables<double>::Bytes(n));
      const MergeTables<double> tables(memory.data(), n);
      const auto actual = Deflate(n, n / 2, 0.5, d.data(), z.data(), tables);

      // Applies the rotations to z and to the matrix's diagonal.
      for (int64_t i = 0; actual.chains > 0 && i < tables.starts[actual.chains]; ++i) {
        const int32_t x = tables.first[i], y = tables.second[i];
        const double c = tables.c[i], s = tables.s[i], dx = d[x], dy = d[y], zx = z[x], zy = z[y];
        z[x] = c * zx + s * zy;
        z[y] = c * zy - s * zx;
        d[x] = c * c * dx + s * s * dy;
        d[y] = c * c * dy + s * s * dx;
      }
      std::vector<bool> seen(n, false);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT(!seen[tables.columns[i]]);
        seen[tables.columns[i]] = true;
        const int32_t column = tables.columns[i];
        if (i < actual.k) {
          EXPECT(tables.d[tables.order[i]] == tables.grouped[i]);
          EXPECT(std::abs(tables.grouped[i] - d[column]) <= 4 * kEps * 4);
          EXPECT(std::abs(tables.z[tables.order[i]] - z[column]) <= 4 * kEps);
          EXPECT(i == 0 || tables.d[i - 1] < tables.d[i]);
        } else {
          EXPECT(std::abs(z[column]) <= 100 * kEps) << z[column];
          EXPECT(std::abs(tables.deflated[i - actual.k] - d[column]) <= 4 * kEps * 4);
          EXPECT(i == actual.k ||
                 tables.deflated[i - actual.k - 1] <= tables.deflated[i - actual.k]);
        }
      }
      EXPECT(0 <= actual.top && actual.top <= actual.bottom && actual.bottom <= actual.k);
    }
  }
}

TEST(NonFiniteInputIsReportedInInfo) {
  for (double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (int64_t bad : {0, 7, 18}) {
      std::mt19937_64 random(5);
      for (bool diagonal : {true, false}) {
        Tridiagonal<double> t = Kinds<double>()[2].make(20, random);
        (diagonal ? t.d : t.e)[bad] = value;
        EXPECT(Solve(t, Small(3, 0, 4, 4), 0, 0).info == bad + 1);
        EXPECT(Solve(t, Small(3, 0, 4, 4), -1, -1).info == bad + 1);
      }
    }
  }
}

TEST(MissingConvergenceIsReportedInInfo) {
  std::mt19937_64 random(5);
  for (const Kind<double>& kind : Kinds<double>()) {
    if (kind.name != "uniform") continue;
    const Tridiagonal<double> t = kind.make(50, random);
    for (bool leaves : {true, false}) {
      Layout layout = Small(3, 0, 6, 8);
      (leaves ? layout.tuning.leaf_sweeps : layout.tuning.evaluations) = 0;
      EXPECT(Solve(t, layout, 0, 50).info > 0);
      EXPECT(Solve(t, layout, -1, -1).info > 0);
    }
    Layout layout = Small(3, 0, 64, 8);
    layout.tuning.leaf_sweeps = 0;
    EXPECT(Solve(t, layout, 0, 50).info > 0);
  }
}

}  // namespace
}  // namespace jaxmg
