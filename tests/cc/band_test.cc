// The reduction of a Hermitian matrix to a band: its backward error, and products with Q.
#include "xla_ffi/engine/eigen/band.h"

#include <algorithm>
#include <complex>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/redistribute.h"

namespace jaxmg {
namespace {

using namespace testing;

// Returns an n x n matrix, column-major.
template <typename T>
std::vector<T> Hermitian(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> m(n * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i <= j; ++i) {
      m[j * n + i] = Random<T>(random);
      if (i == j) m[j * n + i] = std::real(m[j * n + i]);
      m[i * n + j] = Conj(m[j * n + i]);
    }
  }
  return m;
}

template <typename T>
struct Reduction {
  std::vector<T> band, q;  // both dense
};

// Returns the dense band B and Q1. Q1 comes from each rank's part of a product with the identity.
template <typename T>
Reduction<T> Reduce(const std::vector<T>& m, int64_t n, int ranks, int64_t block, int64_t width,
                    const DeviceMaker& make = OnHost) {
  Reduction<T> reduced = {std::vector<T>(n * n), std::vector<T>(n * n)};
  const auto program = [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    const Tiles tiles(n, block, ranks, Tiles::EvenWidth(block, width));
    const int64_t begin = std::min(rank * block, n), columns = std::min(block, n - begin);
    std::vector<T> a(block * n, NaN<T>()), overflow(n * tiles.width(), NaN<T>());
    std::copy_n(m.data() + begin * n, columns * n, a.data());
    const Matrix<T> matrix = {tiles, rank, n, a.data(), overflow.data()};
    const int64_t ldb = BandRows(tiles);
    std::vector<T> factors(BandFactors(tiles), NaN<T>());
    std::vector<T> band(rank == kRoot ? ldb * n : 0, NaN<T>());
    std::vector<T> workspace(
        std::max(ReduceToBandWorkspace(tiles), ApplyBandWorkspace(tiles, columns)), NaN<T>());
    // The workspace is reused: the next algorithm must wait for operations that still use it.
    JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context, matrix, Region::kFull, workspace.data()));
    JAXMG_RETURN_IF_ERROR(
        ReduceToBand(context, matrix, factors.data(), band.data(), workspace.data()));
    std::vector<T> z(n * columns);
    for (int64_t j = 0; j < columns; ++j) z[(begin + j) * columns + j] = 1;
    JAXMG_RETURN_IF_ERROR(
        ApplyBand(context, matrix, factors.data(), columns, z.data(), workspace.data()));
    JAXMG_RETURN_IF_ERROR(context.device.Synchronize());
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < n; ++i) reduced.q[(begin + j) * n + i] = Conj(z[i * columns + j]);
    }
    for (int64_t j = 0; rank == kRoot && j < n; ++j) {
      EXPECT(std::imag(band[j * ldb]) == 0);
      for (int64_t i = 0; i < ldb; ++i) {
        const T x = band[j * ldb + i];
        if (i > tiles.width() || j + i >= n) {
          EXPECT(x == T(0)) << "n " << n << ", column " << j << ", row " << i;
          continue;
        }
        reduced.band[j * n + j + i] = x;
        reduced.band[(j + i) * n + j] = Conj(x);
      }
    }
    return context.comm.Agree(Status::Ok());
  };
  const auto statuses = RunRanks(ranks, program, kPatience, make);
  for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
  return reduced;
}

template <typename T>
std::vector<T> Product(int64_t n, const std::vector<T>& a, const std::vector<T>& b, bool adjoint) {
  std::vector<T> c(n * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < n; ++k) {
      const T x = adjoint ? Conj(b[k * n + j]) : b[j * n + k];
      for (int64_t i = 0; i < n; ++i) c[j * n + i] += a[k * n + i] * x;
    }
  }
  return c;
}

template <typename T>
Real<T> Distance(const std::vector<T>& a, const std::vector<T>& b) {
  Real<T> sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::norm(a[i] - b[i]);
  return std::sqrt(sum);
}

template <typename T>
void Check(const std::vector<T>& m, int64_t n, int ranks, int64_t block, int64_t width,
           const DeviceMaker& make = OnHost) {
  const Reduction<T> reduced = Reduce(m, n, ranks, block, width, make);
  std::vector<T> identity(n * n);
  for (int64_t i = 0; i < n; ++i) identity[i * n + i] = 1;
  const std::vector<T>& q = reduced.q;
  const Real<T> unit = kEps<T> * static_cast<Real<T>>(std::max<int64_t>(n, 1));
  const Real<T> size = Distance(m, std::vector<T>(n * n));
  const Real<T> residual = Distance(Product(n, Product(n, q, reduced.band, false), q, true), m);
  const Real<T> orthogonality = Distance(Product(n, q, q, true), identity);
  EXPECT(residual <= 4 * unit * size) << "n " << n << ", " << ranks << " ranks, block " << block
                                      << ", width " << width << ": " << residual / unit / size;
  EXPECT(orthogonality <= 4 * unit * std::sqrt(static_cast<Real<T>>(n)))
      << "n " << n << ", " << ranks << " ranks: " << orthogonality / unit;
}

template <typename T>
void CheckAll() {
  for (const int64_t n : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 24}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const int64_t padding : {0, 1, 3}) {
        const int64_t block = (n + ranks - 1) / ranks + padding;
        for (const int64_t width : {1, 2, 3, 8}) {
          if (block > 0) Check(Hermitian<T>(n, 1), n, ranks, block, width);
        }
      }
    }
  }
  for (const int64_t n : {50, 97}) {
    for (const int ranks : {1, 3, 4}) {
      Check(Hermitian<T>(n, 2), n, ranks, (n + ranks - 1) / ranks, 16);
      Check(Hermitian<T>(n, 2), n, ranks, (n + ranks - 1) / ranks + 2, 7);
    }
  }
}

TEST(BandsOfFloat32) { CheckAll<float>(); }
TEST(BandsOfFloat64) { CheckAll<double>(); }
TEST(BandsOfComplex64) { CheckAll<std::complex<float>>(); }
TEST(BandsOfComplex128) { CheckAll<std::complex<double>>(); }

// Returns a tuning with which a single rank works on a triangle, in blocks of columns. Tiles need
// not divide the blocks.
Tuning Triangular(int64_t columns) {
  Tuning tuning;
  tuning.eigen.triangle_columns = columns;
  return tuning;
}
DeviceMaker OnTriangular(int64_t columns) {
  return [=](int) -> std::unique_ptr<Device> {
    return NewAsyncDevice(NewHostDevice(), Triangular(columns));
  };
}

template <typename T>
void CheckTriangles() {
  for (const int64_t n : {1, 2, 7, 24, 50}) {
    for (const int64_t width : {1, 3, 8}) {
      for (const int64_t columns : {1, 4, 10, 24, 100}) {
        Check(Hermitian<T>(n, 2), n, 1, n, width, OnTriangular(columns));
      }
    }
  }
  // Several ranks store all of their columns.
  Check(Hermitian<T>(24, 2), 24, 3, 8, 3, OnTriangular(5));
}
TEST(TrianglesOfEveryType) {
  CheckTriangles<float>();
  CheckTriangles<double>();
  CheckTriangles<std::complex<float>>();
  CheckTriangles<std::complex<double>>();
}

// Elements above the blocks' diagonals are neither read nor written.
TEST(OnlyTheTriangleIsAccessed) {
  const int64_t n = 40, columns = 12;
  std::vector<double> m = Hermitian<double>(n, 3);
  const Reduction<double> whole = Reduce(m, n, 1, n, 4, OnTriangular(columns));
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < j / columns * columns; ++i) m[j * n + i] = NaN<double>();
  }
  const Reduction<double> triangle = Reduce(m, n, 1, n, 4, OnTriangular(columns));
  EXPECT(whole.band == triangle.band && whole.q == triangle.q);
}

// Panels that are zero, have low rank, or whose squares overflow or underflow.
TEST(RankDeficientAndBadlyScaledPanels) {
  const int64_t n = 40;
  std::vector<double> m(n * n);
  Check(m, n, 3, 14, 8);
  for (int64_t i = 0; i < n; ++i) m[i * n + i] = 1;
  Check(m, n, 3, 14, 8);
  for (double& x : m) x += 1;  // the identity plus a matrix of ones
  Check(m, n, 3, 14, 8);
  for (const double scale : {1e-290, 1e-160, 1e140}) {
    std::vector<double> scaled = Hermitian<double>(n, 3);
    for (double& x : scaled) x *= scale;
    const Reduction<double> reduced = Reduce(scaled, n, 3, 14, 8);
    // Compared after scaling back, because squares of norms would not be representable.
    std::vector<double> band = reduced.band, before = scaled;
    for (double& x : band) x /= scale;
    for (double& x : before) x /= scale;
    const auto again = Product(n, Product(n, reduced.q, band, false), reduced.q, true);
    EXPECT(Distance(again, before) <= 1e-12 * n) << scale << " " << Distance(again, before);
  }
}

TEST(ResultsAreReproducible) {
  const auto m = Hermitian<double>(60, 4);
  const auto first = Reduce(m, 60, 3, 21, 8), second = Reduce(m, 60, 3, 21, 8);
  EXPECT(first.band == second.band && first.q == second.q);
}

// Blocks with and without a remainder tile, more ranks than receiving streams, and so few columns
// that some rank has none after a panel.
struct BandCase {
  int64_t n;
  int ranks;
  int64_t padding, width;
  int64_t block() const { return (n + ranks - 1) / ranks + padding; }
};
const BandCase kCases[] = {{24, 1, 0, 4}, {26, 1, 2, 5}, {24, 2, 0, 4}, {30, 3, 1, 4},
                           {40, 4, 0, 5}, {42, 5, 2, 3}, {60, 6, 0, 5}, {9, 4, 3, 2}};

TEST(EveryAccessIsOrdered) {
  for (const BandCase& c : kCases) {
    for (const int64_t columns : {0, 7}) {
      Recording recording(c.ranks);
      Reduce(Hermitian<double>(c.n, 5), c.n, c.ranks, c.block(), c.width, [&](int rank) {
        return NewRecordingDevice(NewHostDevice(), Triangular(columns), recording, rank);
      });
      const std::string race = recording.FirstRace();
      EXPECT(race.empty()) << "n " << c.n << ", " << c.ranks << " ranks: " << race;
    }
  }
}

// The look-ahead: a panel's factorization overlaps the trailing update if its owner updates more
// than the next panel.
TEST(PanelsAreFactoredDuringUpdates) {
  const int64_t n = 32, width = 4, tiles = n / width;
  for (const int ranks : {1, 2, 4}) {
    Recording recording(ranks);
    Reduce(Hermitian<double>(n, 7), n, ranks, n / ranks, width, [&](int rank) {
      return NewRecordingDevice(NewHostDevice(), Tuning(), recording, rank);
    });
    const int64_t concurrent = recording.CountConcurrent("qr", "gemm");
    EXPECT(concurrent == tiles - 1 - ranks) << concurrent << " panels on " << ranks << " ranks";
  }
}

TEST(ResultsDoNotDependOnStreams) {
  const auto make = [](int) -> std::unique_ptr<Device> {
    return NewAsyncDevice(NewHostDevice(), Tuning());
  };
  for (const BandCase& c : kCases) {
    using Z = std::complex<double>;
    const auto m = Hermitian<Z>(c.n, 6);
    const auto now = Reduce(m, c.n, c.ranks, c.block(), c.width);
    const auto later = Reduce(m, c.n, c.ranks, c.block(), c.width, make);
    EXPECT(now.band == later.band && now.q == later.q)
        << "n " << c.n << ", " << c.ranks << " ranks";
  }
}

}  // namespace
}  // namespace jaxmg
