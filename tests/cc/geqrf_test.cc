// QR factorization on the host, on an AsyncDevice and on a RecordingDevice.
#include "xla_ffi/engine/qr/geqrf.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/distributed.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

const Shape kShapes[] = {
    {1, 1, 1, 1},   {1, 1, 3, 1},   {2, 2, 2, 1},      {5, 5, 8, 2},      {7, 7, 2, 3},
    {17, 17, 4, 2}, {33, 33, 3, 5}, {40, 40, 1, 7},    {63, 63, 5, 9},    {40, 13, 3, 4},
    {50, 31, 1, 6}, {13, 40, 3, 4}, {29, 50, 4, 11},   {3, 61, 2, 5},     {61, 3, 2, 5},
    {1, 9, 2, 2},   {9, 1, 2, 1},   {90, 150, 1, 100}, {150, 150, 2, 70}, {180, 140, 1, 140},
};

// The factorization of a distributed matrix, Q^H B of further columns B, and the results on all
// ranks.
template <typename T>
struct Result {
  std::vector<T> qr;
  std::vector<std::vector<T>> factors, tau;
  std::vector<std::vector<T>> b;  // Q^H B in row form
};

template <typename T>
Result<T> Factor(const Shape& shape, const std::vector<T>& a, const std::vector<T>& b,
                 const DeviceMaker& make) {
  Distributed<T> distributed(shape, a);
  const int64_t further = static_cast<int64_t>(b.size()) / shape.rows;
  const int64_t count = std::min(shape.rows, shape.columns);
  Result<T> result;
  result.factors.assign(shape.ranks, std::vector<T>(kPanelColumns * count, NaN<T>()));
  result.tau.assign(shape.ranks, std::vector<T>(count, NaN<T>()));
  result.b.assign(shape.ranks, b);
  const auto outcomes = RunRanks(
      shape.ranks,
      [&](const RankContext& context) -> Status {
        const int rank = context.comm.rank();
        const Matrix<T> matrix = distributed.matrix(rank);
        std::vector<T> workspace(GeqrfWorkspace(matrix.tiles, matrix.rows, further), NaN<T>());
        JAXMG_RETURN_IF_ERROR(
            Geqrf<T>(context, Precision::kHighest, matrix, {further, result.b[rank].data()},
                     result.factors[rank].data(), result.tau[rank].data(), workspace.data()));
        // Waits, because the memory must live until all ranks have finished.
        return context.comm.Agree(context.device.Synchronize());
      },
      kPatience, make);
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  result.qr = distributed.Gather();
  return result;
}

// Computes C := Q C or Q^H C, one reflector after the other; C is m x columns.
template <typename T>
void Multiply(const Result<T>& result, bool adjoint, int64_t m, int64_t columns, T* c) {
  const std::vector<T>& tau = result.tau[0];
  const int64_t count = static_cast<int64_t>(tau.size());
  for (int64_t step = 0; step < count; ++step) {
    const int64_t k = adjoint ? step : count - 1 - step;
    auto v = [&](int64_t i) { return i == k ? T(1) : result.qr[k * m + i]; };
    for (int64_t j = 0; j < columns; ++j) {
      T product = 0;
      for (int64_t i = k; i < m; ++i) product += Conj(v(i)) * c[j * m + i];
      product *= adjoint ? Conj(tau[k]) : tau[k];
      for (int64_t i = k; i < m; ++i) c[j * m + i] -= v(i) * product;
    }
  }
}

template <typename T>
Real<T> Largest(const std::vector<T>& a) {
  Real<T> largest = 0;
  for (const T& x : a) largest = std::max<Real<T>>(largest, std::abs(x));
  return largest;
}

// Checks |A - Q R| relative to |A|, and that the reflectors are unitary and have LAPACK's form.
template <typename T>
void CheckFactors(const Shape& shape, const std::vector<T>& a, const Result<T>& result) {
  const int64_t m = shape.rows, n = shape.columns, count = std::min(m, n);
  const Real<T> unit = 20 * (m + 1) * kEps<T>;
  std::vector<T> product(m * n);
  for (int64_t j = 0; j < n; ++j) {
    std::copy_n(&result.qr[j * m], std::min(j + 1, m), &product[j * m]);
  }
  Multiply(result, false, m, n, product.data());
  const Real<T> norm = Largest(a);
  for (int64_t i = 0; i < m * n; ++i) {
    const Real<T> error = std::abs(product[i] - a[i]);
    EXPECT(error <= unit * norm) << Name<T>(shape) << "element " << i << " is off by " << error;
  }
  for (int64_t k = 0; k < count; ++k) {
    const T tau = result.tau[0][k];
    EXPECT(std::imag(result.qr[k * m + k]) == 0) << Name<T>(shape) << "R's diagonal, " << k;
    Real<T> squares = 1;
    for (int64_t i = k + 1; i < m; ++i) squares += std::norm(result.qr[k * m + i]);
    // H^H H = I, and the sign of beta avoids cancellation.
    EXPECT(std::abs(2 * std::real(tau) - std::norm(tau) * squares) <= unit)
        << Name<T>(shape) << "H " << k << " is not unitary";
    EXPECT(tau == T(0) || (std::real(tau) >= 1 - unit && std::real(tau) <= 2 + unit))
        << Name<T>(shape) << "tau " << k << ": " << tau;
  }
}

// Checks every column of each panel's T: T of (I - tau v v^H) ... as LAPACK's xLARFT defines it.
template <typename T>
void CheckPanelFactors(const Shape& shape, const Result<T>& result) {
  const int64_t m = shape.rows;
  const int64_t block = (shape.columns + shape.ranks - 1) / shape.ranks;
  const Tiles tiles(shape.columns, block, shape.ranks, shape.tile);
  const std::vector<T>& factors = result.factors[0];
  auto v = [&](int64_t i, int64_t k) {
    return i < k ? T(0) : i == k ? T(1) : result.qr[k * m + i];
  };
  for (int64_t p = 0; p < TilesWithReflectors(tiles, m); ++p) {
    const TileReflectors tile(tiles, m, p);
    ForPanels(tile, [&](int64_t first, int64_t columns) {
      const int64_t begin = tile.begin + first;
      const T* t = &factors[begin * kPanelColumns];
      for (int64_t j = 0; j < columns; ++j) {
        const T tau = result.tau[0][begin + j];
        for (int64_t i = 0; i < kPanelColumns; ++i) {
          T expected = i == j ? tau : T(0);
          for (int64_t l = i; i < j && l < j; ++l) {
            T product = 0;
            for (int64_t r = 0; r < m; ++r) product += Conj(v(r, begin + l)) * v(r, begin + j);
            expected -= tau * t[l * kPanelColumns + i] * product;
          }
          EXPECT(std::abs(t[j * kPanelColumns + i] - expected) <= 100 * (m + 1) * kEps<T>)
              << Name<T>(shape) << "T(" << i << ", " << j << ") from " << begin;
        }
      }
    });
  }
}

template <typename T>
void CheckShape(const Shape& shape, int64_t further, const DeviceMaker& make) {
  const int64_t m = shape.rows, n = shape.columns;
  const std::vector<T> a = RandomMatrix<T>(m * n, m * 7 + n);
  const std::vector<T> b = RandomMatrix<T>(m * further, 5);
  const Result<T> result = Factor(shape, a, b, make);
  CheckFactors(shape, a, result);
  CheckPanelFactors(shape, result);
  for (int rank = 1; rank < shape.ranks; ++rank) {
    EXPECT(result.factors[rank] == result.factors[0]) << Name<T>(shape) << "ranks' T differ";
    EXPECT(result.tau[rank] == result.tau[0]) << Name<T>(shape) << "ranks' tau differ";
    EXPECT(result.b[rank] == result.b[0]) << Name<T>(shape) << "ranks' further columns differ";
  }
  std::vector<T> columns(m * further);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t r = 0; r < further; ++r) columns[r * m + i] = b[i * further + r];
  }
  Multiply(result, true, m, further, columns.data());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t r = 0; r < further; ++r) {
      const Real<T> error = std::abs(columns[r * m + i] - result.b[0][i * further + r]);
      EXPECT(error <= 40 * (m + 1) * kEps<T> * Largest(b))
          << Name<T>(shape) << "row " << i << " of Q^H b: " << error;
    }
  }
}

std::unique_ptr<Device> OnThreads(int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); }

template <typename T>
void CheckEveryDevice() {
  for (const Shape& shape : kShapes) {
    for (int64_t further : {0, 1, 5}) {
      if (further == 1 && shape.rows > 64) continue;
      CheckShape<T>(shape, further, OnHost);
      CheckShape<T>(shape, further, OnThreads);
    }
  }
}

TEST(FactorsAndFurtherColumns) {
  CheckEveryDevice<float>();
  CheckEveryDevice<double>();
  CheckEveryDevice<std::complex<float>>();
  CheckEveryDevice<std::complex<double>>();
}

// Columns of zeros, equal columns, and badly scaled columns: H = I if a column is zero below its
// diagonal, and no square overflows.
TEST(HardMatrices) {
  const Shape shape = {40, 30, 3, 4};
  const int64_t m = shape.rows, n = shape.columns;
  std::vector<double> zero(m * n, 0);
  CheckFactors<double>(shape, zero, Factor<double>(shape, zero, {}, OnHost));
  std::vector<double> equal = RandomMatrix<double>(m * n, 3);
  for (int64_t j = 1; j < n; j += 2) std::copy_n(&equal[(j - 1) * m], m, &equal[j * m]);
  for (int64_t j = 4; j < n; j += 7) std::fill_n(&equal[j * m], m, 0.0);
  CheckFactors<double>(shape, equal, Factor<double>(shape, equal, {}, OnHost));
  for (const double size : {1e150, 1e-150, 1e-300}) {
    std::vector<double> scaled = RandomMatrix<double>(m * n, 4);
    for (double& x : scaled) x *= size;
    CheckFactors<double>(shape, scaled, Factor<double>(shape, scaled, {}, OnHost));
  }
}

TEST(StreamsWaitForEachOther) {
  for (const Shape& shape : kShapes) {
    const int64_t m = shape.rows, n = shape.columns;
    Recording recording(shape.ranks);
    Factor<double>(
        shape, RandomMatrix<double>(m * n, 1), RandomMatrix<double>(m * 3, 2),
        [&](int rank) { return NewRecordingDevice(NewHostDevice(), LikeGpu(), recording, rank); });
    const std::string race = recording.FirstRace();
    EXPECT(race.empty()) << Name<double>(shape) << race;
  }
}

}  // namespace
}  // namespace jaxmg
