// The reduction of a general matrix to a band, and its singular values.
#include "xla_ffi/engine/svd/bidiagonal_band.h"

#include <algorithm>
#include <cmath>
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
#include "xla_ffi/engine/eigen/band.h"
#include "xla_ffi/engine/svd/gesvd.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
std::vector<T> General(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> m(n * n);
  for (T& x : m) x = Random<T>(random);
  return m;
}

// Returns the dense Hermitian band matrix of order 2 n.
template <typename T>
std::vector<T> Reduce(const std::vector<T>& m, int64_t n, int ranks, int64_t width,
                      const DeviceMaker& make = OnHost) {
  const int64_t order = 2 * n, block = n / ranks;
  std::vector<T> dense(order * order);
  const auto program = [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    const Tiles tiles(n, block, ranks, width);
    std::vector<T> a(m.begin() + rank * block * n, m.begin() + (rank + 1) * block * n);
    const Matrix<T> matrix = {tiles, rank, n, a.data(), nullptr};
    const int64_t ldb = BandRows(tiles);
    std::vector<T> band(rank == kRoot ? ldb * order : 0, NaN<T>());
    std::vector<T> workspace(std::max(ReduceToBidiagonalBandWorkspace(tiles), n * width), NaN<T>());
    JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context, matrix, Region::kFull, workspace.data()));
    JAXMG_RETURN_IF_ERROR(ReduceToBidiagonalBand(context, matrix, band.data(), workspace.data()));
    JAXMG_RETURN_IF_ERROR(context.device.Synchronize());
    for (int64_t j = 0; rank == kRoot && j < order; ++j) {
      for (int64_t i = 0; i < ldb; ++i) {
        const T x = band[j * ldb + i];
        if (i == 0 || i > width || j + i >= order) {
          EXPECT(x == T(0)) << "n " << n << ", column " << j << ", row " << i;
          continue;
        }
        dense[j * order + j + i] = x;
        dense[(j + i) * order + j] = Conj(x);
      }
    }
    return context.comm.Agree(Status::Ok());
  };
  for (const Status& status : RunRanks(ranks, program, kPatience, make)) {
    EXPECT(status.ok()) << status.message();
  }
  return dense;
}

// Returns the eigenvalues of a Hermitian matrix from LAPACK, in ascending order.
template <typename T>
std::vector<Real<T>> Eigenvalues(std::vector<T> m, int64_t n) {
  std::vector<Real<T>> w(n);
  int32_t info = 0;
  const auto device = NewHostDevice();
  EXPECT(device->solver<T>().Syevd(Stream::kMain, false, n, m.data(), n, w.data(), &info).ok());
  EXPECT(info == 0);
  return w;
}

// Returns [0 A^H; A 0].
template <typename T>
std::vector<T> WithAdjoint(const std::vector<T>& a, int64_t n) {
  std::vector<T> m(4 * n * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      m[j * 2 * n + n + i] = a[j * n + i];
      m[(n + i) * 2 * n + j] = Conj(a[j * n + i]);
    }
  }
  return m;
}

template <typename T>
void Check(const std::vector<T>& a, int64_t n, int ranks, int64_t width,
           const DeviceMaker& make = OnHost) {
  const auto got = Eigenvalues(Reduce(a, n, ranks, width, make), 2 * n);
  const auto wanted = Eigenvalues(WithAdjoint(a, n), 2 * n);
  const Real<T> unit = kEps<T> * static_cast<Real<T>>(8 * n) * wanted.back();
  for (int64_t i = 0; i < 2 * n; ++i) {
    EXPECT(std::abs(got[i] - wanted[i]) <= unit)
        << "n " << n << ", " << ranks << " ranks, width " << width << ", value " << i << ": "
        << got[i] << " for " << wanted[i];
  }
}

struct Shape {
  int64_t tiles, width;  // tiles of each rank
  int ranks;
  int64_t n() const { return tiles * width * ranks; }
};
const Shape kShapes[] = {{1, 1, 1}, {1, 5, 1}, {2, 1, 1}, {4, 3, 1}, {5, 4, 1}, {1, 1, 2},
                         {1, 3, 2}, {3, 2, 2}, {2, 4, 2}, {1, 4, 3}, {2, 3, 3}, {3, 1, 4},
                         {2, 4, 4}, {1, 2, 5}, {2, 2, 5}, {1, 3, 8}};

template <typename T>
void CheckAll() {
  for (const Shape& s : kShapes) Check(General<T>(s.n(), 1), s.n(), s.ranks, s.width);
  // Zeros, the identity, a matrix of rank 1, and one with rows and columns of zeros.
  for (const int ranks : {1, 3}) {
    const int64_t n = 12;
    std::vector<T> a(n * n);
    Check(a, n, ranks, 2);
    for (int64_t i = 0; i < n; ++i) a[i * n + i] = 1;
    Check(a, n, ranks, 2);
    for (T& x : a) x = 1;
    Check(a, n, ranks, 2);
    a = General<T>(n, 2);
    for (int64_t i = 0; i < n; ++i) a[3 * n + i] = a[i * n + 7] = 0;
    Check(a, n, ranks, 2);
  }
}
TEST(SingularValuesOfFloat32) { CheckAll<float>(); }
TEST(SingularValuesOfFloat64) { CheckAll<double>(); }
TEST(SingularValuesOfComplex64) { CheckAll<std::complex<float>>(); }
TEST(SingularValuesOfComplex128) { CheckAll<std::complex<double>>(); }

TEST(EveryAccessIsOrdered) {
  for (const Shape& s : kShapes) {
    Recording recording(s.ranks);
    Reduce(General<double>(s.n(), 5), s.n(), s.ranks, s.width, [&](int rank) {
      return NewRecordingDevice(NewHostDevice(), Tuning(), recording, rank);
    });
    const std::string race = recording.FirstRace();
    EXPECT(race.empty()) << "n " << s.n() << ", " << s.ranks << " ranks: " << race;
  }
}

// The look-ahead: a tile column is factored during the update of the columns after it.
TEST(ColumnsAreFactoredDuringUpdates) {
  for (const int ranks : {1, 2, 4}) {
    const int64_t width = 4, n = 8 * width;
    Recording recording(ranks);
    Reduce(General<double>(n, 7), n, ranks, width, [&](int rank) {
      return NewRecordingDevice(NewHostDevice(), Tuning(), recording, rank);
    });
    const int64_t concurrent = recording.CountConcurrent("qr", "gemm");
    // All columns except the first column and each rank's last one, whose owner has nothing else to
    // update.
    EXPECT(concurrent == 8 - 1 - ranks) << concurrent << " panels on " << ranks << " ranks";
  }
}

TEST(ResultsDoNotDependOnStreams) {
  const auto make = [](int) -> std::unique_ptr<Device> {
    return NewAsyncDevice(NewHostDevice(), Tuning());
  };
  for (const Shape& s : kShapes) {
    using Z = std::complex<double>;
    const auto a = General<Z>(s.n(), 6);
    EXPECT(Reduce(a, s.n(), s.ranks, s.width) == Reduce(a, s.n(), s.ranks, s.width, make))
        << "n " << s.n() << ", " << s.ranks << " ranks";
  }
}

// Runs the routine, from the caller's rows of A to the values.
struct Outcomes {
  std::vector<double> values;
  int32_t status;
};
Outcomes Gesvd(const std::vector<double>& m, int64_t n, int ranks, int64_t tile) {
  std::vector<Outcomes> all(ranks, Outcomes{std::vector<double>(n), -7});
  const int64_t block = n / ranks;
  const auto program = [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    std::vector<double> a(m.begin() + rank * block * n, m.begin() + (rank + 1) * block * n);
    const Operand<double> operand = {n, n, block, tile, a.data(), &all[rank].status};
    return GesvdRoutine(context, operand, all[rank].values.data());
  };
  for (const Status& status : RunRanks(ranks, program)) EXPECT(status.ok()) << status.message();
  for (const Outcomes& one : all) {
    EXPECT(one.status == all[0].status);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT(one.values[i] == all[0].values[i] || std::isnan(all[0].values[i]));
    }
  }
  return all[0];
}

TEST(TheRoutine) {
  for (const int ranks : {1, 2, 4}) {
    const int64_t n = 24;
    auto a = General<double>(n, 9);
    const auto wanted = Eigenvalues(WithAdjoint(a, n), 2 * n);
    const Outcomes got = Gesvd(a, n, ranks, 3);
    EXPECT(got.status == 0);
    for (int64_t i = 0; i < n; ++i) EXPECT(std::abs(got.values[i] - wanted[n + i]) <= 1e-13 * n);
    a.back() = NaN<double>();  // the part of the band before this element stays finite
    const Outcomes bad = Gesvd(a, n, ranks, 3);
    EXPECT(bad.status != 0);
    EXPECT(
        std::all_of(bad.values.begin(), bad.values.end(), [](double x) { return std::isnan(x); }));
  }
}

TEST(WhatDoesNotFitIsRefused) {
  const Ranks ranks = {2, 0, Tuning()};
  EXPECT(CheckGesvd<double>({24, 24, 12, 4}, ranks).ok());
  EXPECT(!CheckGesvd<double>({20, 20, 10, 4}, ranks).ok());  // would need a narrower tile
  EXPECT(!CheckGesvd<double>({23, 23, 12, 4}, ranks).ok());  // would need padding
  EXPECT(!CheckGesvd<double>({24, 12, 12, 4}, ranks).ok());
}

}  // namespace
}  // namespace jaxmg
