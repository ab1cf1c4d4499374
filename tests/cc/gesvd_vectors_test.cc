// The singular value decomposition with vectors, from the caller's rows of A to the rows of U and
// V^H.
#include "xla_ffi/engine/svd/gesvd_vectors.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/matrix_problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/svd/whole_svd.h"

namespace jaxmg {
namespace {

using namespace testing;

// Whether one rank decomposes the matrix for all ranks (whole_svd.h).
bool on_one = false;

template <typename T>
struct Vectors {
  std::vector<T> u, vh;  // n x count, count x n
  std::vector<Real<T>> s;
  int32_t status = -7;
};

template <typename T>
Vectors<T> Decompose(const Dense<T>& a, const Case& c, Subset subset = {0, 0},
                     bool in_double = false) {
  const int64_t n = c.n, block = (n + c.ranks - 1) / c.ranks + c.extra_rows;
  const bool all = subset.count() == 0;
  if (all) subset = {0, n};
  const int64_t count = subset.count(), vh_block = (count + c.ranks - 1) / c.ranks;
  std::vector<std::vector<T>> rows(c.ranks), u(c.ranks), vh(c.ranks);
  std::vector<std::vector<Real<T>>> s(c.ranks, std::vector<Real<T>>(count, NaN<Real<T>>()));
  std::vector<int32_t> status(c.ranks, -7);
  const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    rows[rank] = RowsOf(a, n, block, rank);
    u[rank].assign(block * count, NaN<T>());
    vh[rank].assign(vh_block * n, NaN<T>());
    const Operand<T> operand = {n, n, block, c.tile, rows[rank].data(), &status[rank]};
    const SingularVectors<T> wanted = {subset,          in_double, all ? nullptr : u[rank].data(),
                                       vh[rank].data(), vh_block,  s[rank].data()};
    return on_one ? WholeSvdRoutine<T>(context, operand, true, wanted)
                  : GesvdVectorsRoutine<T>(context, operand, wanted);
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int rank = 0; rank < c.ranks; ++rank) {
    EXPECT(status[rank] == status[0]);
    EXPECT(s[rank] == s[0] || std::isnan(s[0][0]));
  }
  return {Whole(all ? rows : u, n, count), Whole(vh, count, n), s[0], status[0]};
}

// Returns the Frobenius norm of X X^H - I if `of_rows`, and of X^H X - I otherwise.
template <typename T>
double Departure(const std::vector<T>& x, int64_t rows, int64_t columns, bool of_rows) {
  const int64_t count = of_rows ? rows : columns, depth = of_rows ? columns : rows;
  auto at = [&](int64_t i, int64_t k) { return of_rows ? x[i * columns + k] : x[k * columns + i]; };
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < count; ++j) {
      std::complex<double> product = i == j ? -1 : 0;
      for (int64_t k = 0; k < depth; ++k)
        product += std::complex<double>(at(i, k) * Conj(at(j, k)));
      sum += std::norm(product);
    }
  }
  return std::sqrt(sum);
}

// Checks the singular values `subset`: U and V have orthonormal columns, A V is U S to rounding,
// and the values are those from which A was made.
template <typename T>
void CheckVectors(const Dense<T>& a, const Vectors<T>& got, int64_t n, Subset subset,
                  std::vector<double> values, double scale, const std::string& name) {
  const int64_t count = subset.count();
  const double unit = kEps<T> * std::sqrt(static_cast<double>(n)) * (n < 4 ? 4 : 1);
  EXPECT(got.status == 0) << name << ": status " << got.status;
  const double of_u = Departure(got.u, n, count, false), of_v = Departure(got.vh, count, n, true);
  EXPECT(of_u <= 30 * unit) << name << ": U^H U - I is " << of_u / unit << " units";
  EXPECT(of_v <= 30 * unit) << name << ": V^H V - I is " << of_v / unit << " units";
  double residual = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < count; ++j) {
      std::complex<double> sum =
          -std::complex<double>(got.u[i * count + j] * (got.s[j] / Real<T>(scale)));
      for (int64_t k = 0; k < n; ++k) {
        sum += std::complex<double>(a[i * n + k] / Real<T>(scale) * Conj(got.vh[j * n + k]));
      }
      residual += std::norm(sum);
    }
  }
  EXPECT(std::sqrt(residual) <= 60 * unit) << name << ": A V - U S " << std::sqrt(residual) / unit;
  std::sort(values.rbegin(), values.rend());
  for (int64_t j = 0; j < count; ++j) {
    const double wanted = values[subset.first + j], error = std::abs(got.s[j] / scale - wanted);
    EXPECT(error <= 60 * unit) << name << ": value " << j << " is off by " << error / unit;
    EXPECT(j == 0 || got.s[j] <= got.s[j - 1]) << name << ": not in order";
    EXPECT(got.s[j] >= 0) << name;
  }
}

const Case kShapes[] = {{1, 1, 0},  {2, 1, 0},  {9, 1, 2},  {40, 1, 0},    {1, 3, 0},
                        {7, 2, 3},  {24, 2, 0}, {23, 3, 2}, {21, 3, 5, 2}, {30, 4, 4},
                        {37, 4, 3}, {5, 8, 1},  {33, 8, 2}};

template <typename T>
void CheckShape(const Case& c) {
  for (const std::string kind : kKinds) {
    const auto s = SingularValues<T>(kind, c.n);
    const Dense<T> a = WithValues<T>(s, c.n, 3);
    const std::string name = kind + ", " + TextOf(c);
    CheckVectors(a, Decompose(a, c), c.n, {0, c.n}, s, 1, name);
    const Subset part = {c.n / 4, std::max(c.n / 4 + 1, c.n * 2 / 3)};
    if (part.count() == c.n) continue;
    CheckVectors(a, Decompose(a, c, part), c.n, part, s, 1, "a part, " + name);
  }
}

// Checks with the eigensolver of one rank, with the one of all ranks, and with one rank for all.
template <typename T>
void CheckAll() {
  for (const Case& c : kShapes) {
    CheckShape<T>(c);
    Tuning tuning = NewHostDevice()->tuning();
    tuning.eigen.ShareFrom(1);
    tuning.eigen.band_width = tuning.eigen.band_width_complex128 = 4;
    make_device = [&](int) -> std::unique_ptr<Device> {
      return std::make_unique<TunedHost>(tuning);
    };
    CheckShape<T>(c);
    make_device = OnHost;
    on_one = true;
    CheckShape<T>(c);
    on_one = false;
  }
}
TEST(VectorsOfFloat32) { CheckAll<float>(); }
TEST(VectorsOfFloat64) { CheckAll<double>(); }
TEST(VectorsOfComplex64) { CheckAll<std::complex<float>>(); }
TEST(VectorsOfComplex128) { CheckAll<std::complex<double>>(); }

TEST(TinyAndHugeMatrices) {
  const Case c = {20, 3, 4};
  const auto s = SingularValues<double>("even", c.n);
  const auto a = WithValues<double>(s, c.n, 7);
  for (const int exponent : {-980, -500, 500, 1020}) {
    auto scaled = a;
    for (double& x : scaled) x = std::ldexp(x, exponent);
    for (const bool one : {false, true}) {
      on_one = one;
      CheckVectors(scaled, Decompose(scaled, c), c.n, {0, c.n}, s, std::ldexp(1.0, exponent),
                   "A 2^" + std::to_string(exponent));
    }
    on_one = false;
  }
}

// Values are in ascending order, as from the band (gesvd.h).
TEST(ValuesAloneByOneRank) {
  for (const Case& c : {Case{1, 1, 0}, Case{24, 1, 0}, Case{24, 3, 0}}) {
    auto values = SingularValues<double>("graded", c.n);
    const auto a = WithValues<double>(values, c.n, 5);
    const int64_t block = c.n / c.ranks + (c.n % c.ranks > 0);
    std::vector<std::vector<double>> s(c.ranks, std::vector<double>(c.n, NaN<double>()));
    const auto outcomes = RunOnDevices(c.ranks, [&](const RankContext& context) {
      const int rank = context.comm.rank();
      std::vector<double> rows = RowsOf(a, c.n, block, rank);
      const Operand<double> operand = {c.n, c.n, block, 0, rows.data(), nullptr};
      return WholeSvdRoutine<double>(context, operand, false,
                                     {{0, c.n}, false, nullptr, nullptr, 0, s[rank].data()});
    });
    std::sort(values.begin(), values.end());
    for (int rank = 0; rank < c.ranks; ++rank) {
      EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
      for (int64_t i = 0; i < c.n; ++i) {
        EXPECT(std::abs(s[rank][i] - values[i]) <= 60 * c.n * kEps<double>) << s[rank][i];
      }
    }
  }
}

TEST(WhatIsNotFiniteGivesNaN) {
  for (const Case& c : {Case{12, 1, 0}, Case{13, 4, 3}}) {
    for (const double value : {NaN<double>(), std::numeric_limits<double>::infinity()}) {
      for (const Subset subset : {Subset{0, 0}, Subset{2, 7}}) {
        auto a = WithValues<double>(SingularValues<double>("even", c.n), c.n, 9);
        a[c.n + 1] = value;
        for (const bool one : {false, true}) {
          on_one = one;
          const Vectors<double> got = Decompose(a, c, subset);
          on_one = false;
          EXPECT(got.status == kNotFinite) << got.status;
          auto is_nan = [](double x) { return std::isnan(x); };
          EXPECT(std::all_of(got.u.begin(), got.u.end(), is_nan));
          EXPECT(std::all_of(got.vh.begin(), got.vh.end(), is_nan));
          EXPECT(std::all_of(got.s.begin(), got.s.end(), is_nan));
        }
      }
    }
  }
}

TEST(SinglePrecisionInDouble) {
  for (const Case& c : {Case{40, 1, 0}, Case{33, 4, 3}}) {
    const auto s = SingularValues<float>("graded", c.n);
    const auto a = WithValues<float>(s, c.n, 11);
    CheckVectors(a, Decompose(a, c, {0, 0}, true), c.n, {0, c.n}, s, 1, "in double");
  }
}

TEST(ResultsDoNotDependOnStreams) {
  using Z = std::complex<double>;
  for (const Case& c : {Case{21, 1, 4}, Case{30, 3, 4}, Case{22, 4, 3}}) {
    const auto s = SingularValues<Z>("clustered", c.n);
    const auto a = WithValues<Z>(s, c.n, 15);
    for (const int64_t from : {0, 1}) {
      Tuning tuning = LikeGpu();
      tuning.eigen.ShareFrom(from);
      tuning.eigen.band_width = tuning.eigen.band_width_complex128 = 4;
      Vectors<Z> vectors[2];
      for (const bool concurrent : {false, true}) {
        make_device = [&](int) -> std::unique_ptr<Device> {
          if (concurrent) return NewAsyncDevice(NewHostDevice(), tuning);
          return std::make_unique<TunedHost>(tuning);
        };
        vectors[concurrent] = Decompose(a, c);
      }
      make_device = OnHost;
      EXPECT(vectors[0].u == vectors[1].u && vectors[0].vh == vectors[1].vh) << TextOf(c);
      CheckVectors(a, vectors[0], c.n, {0, c.n}, s, 1, TextOf(c));
    }
  }
}

// Tilts the eigenvectors of the two smallest eigenvalues, so that they are not orthogonal to each
// other. cuSOLVER returns such vectors for small, graded eigenvalues in single precision.
template <typename T>
class TiltedSolver : public MatrixSolver<T> {
 public:
  explicit TiltedSolver(MatrixSolver<T>& real) : real_(real) {}
  Status Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, Real<T>* w,
               int32_t* info) override {
    JAXMG_RETURN_IF_ERROR(real_.Syevd(stream, vectors, n, a, lda, w, info));
    const Real<T> angle = std::sqrt(kEps<T>) / 2;
    for (int64_t i = 0; vectors && i < n; ++i) a[i] += angle * a[lda + i];
    return Status::Ok();
  }

 private:
  MatrixSolver<T>& real_;
};

template <typename T>
class Tilted : public TunedHost {
 public:
  Tilted() : TunedHost(NewHostDevice()->tuning()), tilted_(solver<T>()) {
    Offer<T>(by_precision<T>(), tilted_, eigen<T>(), &lu<T>(), &matrix<T>());
  }

 private:
  TiltedSolver<T> tilted_;
};

template <typename T>
void CheckCorrection() {
  for (const Case& c : {Case{13, 1, 0}, Case{13, 3, 0}}) {
    const auto s = SingularValues<T>("graded", c.n);
    const auto a = WithValues<T>(s, c.n, 21);
    make_device = [](int) -> std::unique_ptr<Device> { return std::make_unique<Tilted<T>>(); };
    const Vectors<T> all = Decompose(a, c), part = Decompose(a, c, {3, c.n});
    make_device = OnHost;
    CheckVectors(a, all, c.n, {0, c.n}, s, 1, "tilted, " + TextOf(c));
    CheckVectors(a, part, c.n, {3, c.n}, s, 1, "a part, tilted, " + TextOf(c));
  }
}
TEST(EigenvectorsThatAreNotOrthonormal) {
  CheckCorrection<float>();
  CheckCorrection<std::complex<double>>();
}

// Events order every two accesses to the same memory of which at least one writes.
TEST(EveryAccessIsOrdered) {
  for (const Case& c : {Case{21, 1, 4}, Case{22, 4, 3}}) {
    const auto a = WithValues<double>(SingularValues<double>("graded", c.n), c.n, 15);
    for (const int64_t from : {0, 1}) {
      for (Tuning tuning : {LikeGpu(), NewHostDevice()->tuning()}) {
        tuning.eigen.ShareFrom(from);
        tuning.eigen.band_width = tuning.eigen.band_width_complex128 = 4;
        for (const Subset subset : {Subset{0, 0}, Subset{2, 9}}) {
          Recording recording(c.ranks);
          make_device = [&](int rank) {
            return NewRecordingDevice(NewHostDevice(), tuning, recording, rank);
          };
          Decompose(a, c, subset);
          make_device = OnHost;
          const std::string race = recording.FirstRace();
          EXPECT(race.empty()) << TextOf(c) << ": " << race;
        }
      }
    }
  }
}

// A rank that runs out of memory fails the call on all ranks.
TEST(NoMemoryOnOneRank) {
  const auto outcomes = RunRanks(3, [&](const RankContext& context) -> Status {
    std::vector<double> a(4 * 12, 1.0), vh(4 * 12), s(12);
    NoMemory none(context.device);
    Device& device = context.comm.rank() == 1 ? none : context.device;
    return GesvdVectorsRoutine<double>({device, context.comm}, {12, 12, 4, 0, a.data(), nullptr},
                                       {{0, 12}, false, nullptr, vh.data(), 4, s.data()});
  });
  for (const Status& outcome : outcomes) EXPECT(outcome.code() == Code::kResourceExhausted);
}

// In addition to A and V^H, a single rank needs three matrices and LAPACK's workspace. The three
// are the matrices of the polar decomposition; the eigenproblem and the products reuse their
// memory.
TEST(MemoryIsBounded) {
  for (const int64_t n : {2000, 6000}) {
    for (const int64_t from : {0, 1}) {
      Tuning tuning;
      tuning.eigen.ShareFrom(from);
      const Sizes sizes = {n, n, n, 0};
      const Subset all = {0, n};
      const SingularVectors<double> wanted = {all, false, nullptr, nullptr, n, nullptr};
      const Ranks ranks = {1, 0, tuning};
      const GesvdVectorsSpace<double> space(sizes, wanted, ranks);
      const EigenproblemSpace<double> problem(sizes, true, all, ranks, space.elements);
      const double bytes = static_cast<double>(problem.bytes() + space.own.bytes());
      EXPECT(space.h_in_vh);
      EXPECT(bytes <= 3.4 * 8 * n * n) << n << ", " << from << ": " << bytes / (8 * n * n);
    }
  }
}

}  // namespace
}  // namespace jaxmg
