// The kept QR factor: one factorization, then every operation with the factor. Also gels. On the
// host, on an AsyncDevice and on a RecordingDevice.
#include "xla_ffi/engine/qr/qr_factor.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/general_problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/reflector.h"
#include "xla_ffi/engine/qr/gels.h"

namespace jaxmg {
namespace {

using namespace testing;

constexpr Op kOps[] = {Op::kNone, Op::kTrans, Op::kConjTrans};

// A is m x n; M is n x m.
struct Shape {
  int64_t m, n;
  int ranks;
  int64_t tile;
  int64_t extra_rows = 0;
};

const Shape kShapes[] = {
    {1, 1, 1, 1},     {1, 1, 3, 1},   {2, 5, 3, 1},   {5, 2, 3, 1},       {13, 13, 4, 2, 1},
    {17, 24, 4, 2},   {24, 17, 4, 2}, {30, 30, 2, 4}, {31, 50, 1, 6},     {50, 31, 3, 7},
    {9, 61, 2, 4, 2}, {61, 9, 2, 4},  {33, 40, 5, 0}, {100, 130, 1, 100}, {140, 150, 2, 70},
};

template <typename T>
bool SameBits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

template <typename T>
std::vector<T> RandomMatrix(int64_t count, int64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> x(count);
  for (T& value : x) value = Random<T>(random);
  return x;
}

// The QR factorization of M (rows x columns, column-major), one reflector after the other, and its
// Q.
template <typename T>
struct Reference {
  Reference(int64_t rows, int64_t columns, const std::vector<T>& m)
      : n(rows), count(std::min(rows, columns)), qr(m), tau(count), q(rows * rows) {
    for (int64_t k = 0; k < count; ++k) {
      MakeReflector(n - k, &qr[k * n + k], &tau[k]);
      for (int64_t j = k + 1; j < columns; ++j) Reflect(k, Conj(tau[k]), &qr[j * n]);
    }
    for (int64_t j = 0; j < n; ++j) {
      q[j * n + j] = 1;
      for (int64_t k = count - 1; k >= 0; --k) Reflect(k, tau[k], &q[j * n]);
    }
  }

  void Reflect(int64_t k, T scale, T* x) const {
    auto v = [&](int64_t i) { return i == k ? T(1) : qr[k * n + i]; };
    T product = 0;
    for (int64_t i = k; i < n; ++i) product += Conj(v(i)) * x[i];
    for (int64_t i = k; i < n; ++i) x[i] -= v(i) * scale * product;
  }

  // Returns op(Q) B, row-major n x columns.
  std::vector<T> Multiply(Op op, const std::vector<T>& b) const {
    const int64_t columns = static_cast<int64_t>(b.size()) / n;
    std::vector<T> product(b.size());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < n; ++k) {
        T element = op == Op::kNone ? q[k * n + i] : q[i * n + k];
        if (op == Op::kConjTrans) element = Conj(element);
        for (int64_t r = 0; r < columns; ++r)
          product[i * columns + r] += element * b[k * columns + r];
      }
    }
    return product;
  }

  const int64_t n, count;
  std::vector<T> qr, tau, q;
};

// A rank's part of the factor, and the other results of the factorization.
template <typename T>
struct Part {
  std::vector<T> overflow, factors, tau, x, diagonal;
  int32_t status = 7;
};

template <typename T>
class Factor {
 public:
  Factor(const Shape& shape, const DeviceMaker& make)
      : problem(shape.m, shape.n, shape.ranks, shape.extra_rows),
        parts(shape.ranks),
        shape_(shape),
        make_(make) {
    const QrFactorSpace<T> space({shape.m, shape.n, problem.block, shape.tile},
                                 {shape.ranks, 0, make(0)->tuning()});
    tile_ = space.tiles.width();
    for (Part<T>& part : parts) {
      if (space.tiles.has_overflow()) part.overflow.assign(shape.n * tile_, NaN<T>());
      part.factors.assign(kPanelColumns * count(), NaN<T>());
      part.tau.assign(count(), NaN<T>());
      part.diagonal.assign(shape.m, NaN<T>());
    }
  }

  int64_t count() const { return std::min(shape_.m, shape_.n); }
  std::string name() const { return problem.name() + "tile " + std::to_string(shape_.tile) + ": "; }

  using Program = std::function<Status(const RankContext&, const Operand<T>&, Part<T>&)>;
  void Run(const Program& program) {
    const auto outcomes = RunRanks(
        shape_.ranks,
        [&](const RankContext& context) {
          const int rank = context.comm.rank();
          Operand<T> operand = problem.operand(rank, tile_, &parts[rank].status);
          if (!parts[rank].overflow.empty()) operand.overflow = parts[rank].overflow.data();
          return program(context, operand, parts[rank]);
        },
        kPatience, make_);
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  }

  void Make() {
    Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      return QrFactorRoutine<T>(context, operand, part.factors.data(), part.tau.data());
    });
  }

  // Runs a routine with a replicated operand.
  template <typename Routine>
  std::vector<T> WithColumns(const std::vector<T>& b, const Routine& routine) {
    const auto tiles = problem.blocks;
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      part.x.assign(b.size(), NaN<T>());
      return routine(context, operand, part);
    });
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      EXPECT(SameBits(parts[rank].x, parts[0].x)) << name() << "ranks differ";
      EXPECT(SameBits(tiles[rank], problem.blocks[rank])) << name() << "the factor has changed";
    }
    return parts[0].x;
  }

  std::vector<T> Apply(Op op, const std::vector<T>& b) {
    const int64_t nrhs = static_cast<int64_t>(b.size()) / shape_.n;
    return WithColumns(b,
                       [&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
                         return QrApplyRoutine<T>(context, operand, part.factors.data(), op, nrhs,
                                                  part.x.data(), b.data());
                       });
  }

  std::vector<T> Solve(System system, const std::vector<T>& b) {
    const int64_t nrhs = static_cast<int64_t>(b.size()) / shape_.n;
    return WithColumns(b,
                       [&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
                         return QrSolveRoutine<T>(context, operand, part.factors.data(), system,
                                                  nrhs, part.x.data(), b.data());
                       });
  }

  // Applies op(Q) to b; each rank holds `rows` rows of b.
  std::vector<T> ApplyRows(Op op, int64_t rows, const std::vector<T>& b) {
    std::vector<T> x(b.size(), NaN<T>());
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      const int64_t begin = context.comm.rank() * rows * shape_.n;
      return QrApplyRowsRoutine<T>(context, operand, part.factors.data(), op, rows, &x[begin],
                                   &b[begin]);
    });
    return x;
  }

  void Form() {
    Run([](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      return QrFormRoutine<T>(context, operand, part.factors.data());
    });
  }

  std::vector<T> Gels(System system, int64_t nrhs, const std::vector<T>& b) {
    Run([&](const RankContext& context, const Operand<T>& operand, Part<T>& part) {
      Operand<T> own = operand;
      own.overflow = nullptr;
      part.x.assign(b.size(), NaN<T>());
      return GelsRoutine<T>(context, own,
                            {system, nrhs, part.x.data(), part.diagonal.data(), b.data(), true});
    });
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      EXPECT(SameBits(parts[rank].x, parts[0].x)) << name() << "ranks' solutions differ";
      EXPECT(SameBits(parts[rank].diagonal, parts[0].diagonal)) << name() << "ranks' R differ";
      EXPECT(parts[rank].status == parts[0].status) << name() << "ranks' statuses differ";
    }
    return parts[0].x;
  }

  GeneralProblem<T> problem;
  std::vector<Part<T>> parts;

 private:
  const Shape shape_;
  const DeviceMaker make_;
  int64_t tile_;
};

template <typename T>
Real<T> Largest(const std::vector<T>& a) {
  Real<T> largest = 0;
  for (const T& x : a) largest = std::max<Real<T>>(largest, std::abs(x));
  return largest;
}

template <typename T>
void ExpectClose(const std::string& what, const std::vector<T>& x, const std::vector<T>& y,
                 Real<T> tolerance) {
  EXPECT(x.size() == y.size()) << what << " size " << x.size() << " for " << y.size();
  Real<T> worst = 0;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    const Real<T> error = std::abs(x[i] - y[i]);
    worst = error <= worst ? worst : error;  // propagates NaN
  }
  EXPECT(worst <= tolerance) << what << " is off by " << worst << ", more than " << tolerance;
}

// The bound is large because rounding determines the last columns of Q if M is nearly singular, as
// a few of these matrices are.
template <typename T>
Real<T> Unit(const Shape& shape) {
  return 2e3 * kEps<T> * static_cast<Real<T>>(shape.m + shape.n);
}

template <typename T>
void CheckShape(const Shape& shape, const DeviceMaker& make) {
  const int64_t m = shape.m, n = shape.n;
  Factor<T> factor(shape, make);
  const std::vector<T> a = factor.problem.a;  // row-major m x n is M, column-major n x m
  const Reference<T> reference(n, m, a);
  factor.Make();
  for (const Part<T>& part : factor.parts) {
    EXPECT(part.status == 0) << factor.name() << part.status;
    EXPECT(SameBits(part.factors, factor.parts[0].factors)) << factor.name() << "ranks' T differ";
    ExpectClose<T>(factor.name() + "tau", part.tau, reference.tau, Unit<T>(shape));
  }
  for (const int64_t nrhs : {1, 4}) {
    const std::vector<T> b = RandomMatrix<T>(n * nrhs, 5);
    for (const Op op : kOps) {
      ExpectClose<T>(factor.name() + "op(Q) b", factor.Apply(op, b), reference.Multiply(op, b),
                     Unit<T>(shape));
    }
  }
  for (const int64_t rows : {0, 3}) {
    const int64_t all = rows * shape.ranks;
    const std::vector<T> b = RandomMatrix<T>(n * all, 6);
    std::vector<T> turned(b.size());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t r = 0; r < all; ++r) turned[i * all + r] = b[r * n + i];
    }
    for (const Op op : kOps) {
      const std::vector<T> product = all == 0 ? turned : reference.Multiply(op, turned);
      std::vector<T> expected(b.size());
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t r = 0; r < all; ++r) expected[r * n + i] = product[i * all + r];
      }
      ExpectClose<T>(factor.name() + "b op(Q)^T", factor.ApplyRows(op, rows, b), expected,
                     Unit<T>(shape));
    }
  }
  factor.Form();
  std::vector<T> q(m * n);
  std::copy_n(reference.q.begin(), factor.count() * n, q.begin());
  ExpectClose<T>(factor.name() + "Q", factor.problem.Rows(), q, Unit<T>(shape));
}

// Checks least-squares solutions of M x = b, and the shortest x with M^T x = b and with M^H x = b.
template <typename T>
void CheckSolutions(const Shape& shape, const DeviceMaker& make) {
  const int64_t m = shape.m, n = shape.n;
  if (m > n) return;
  Factor<T> factor(shape, make);
  factor.Make();
  const std::vector<T> a = factor.problem.a;
  auto at = [&](int64_t i, int64_t j) { return a[j * n + i]; };  // M(i, j)
  const Reference<T> reference(n, m, a);
  for (const int64_t nrhs : {0, 3}) {
    const std::vector<T> b = RandomMatrix<T>(n * nrhs, 9);
    for (const System system : kOps) {
      const std::vector<T> x = factor.Solve(system, b);
      Factor<T> fused(shape, make);
      const std::vector<T> y = fused.Gels(system, nrhs, b);
      EXPECT(fused.parts[0].status == 0) << fused.name() << fused.parts[0].status;
      const Real<T> size = 1 + Largest(x);
      ExpectClose<T>(factor.name() + "gels beside a kept factor", y, x, Unit<T>(shape) * 50 * size);
      for (int64_t j = 0; j < m; ++j) {
        const Real<T> error = std::abs(fused.parts[0].diagonal[j] - reference.qr[j * n + j]);
        EXPECT(error <= Unit<T>(shape) * factor.problem.largest())
            << factor.name() << "R's diagonal";
      }
      for (int64_t r = 0; r < nrhs; ++r) {
        if (system == Op::kNone) {
          // The residual is orthogonal to M's columns, and its norm is the returned one.
          Real<T> squares = 0, returned = 0;
          std::vector<T> residual(n);
          for (int64_t i = 0; i < n; ++i) {
            residual[i] = b[i * nrhs + r];
            for (int64_t j = 0; j < m; ++j) residual[i] -= at(i, j) * x[j * nrhs + r];
            squares += std::norm(residual[i]);
            if (i >= m) returned += std::norm(x[i * nrhs + r]);
          }
          EXPECT(std::abs(squares - returned) <= Unit<T>(shape) * 10 * size * size)
              << factor.name() << "residual " << squares << ", but " << returned;
          for (int64_t j = 0; j < m; ++j) {
            T product = 0;
            for (int64_t i = 0; i < n; ++i) product += Conj(at(i, j)) * residual[i];
            EXPECT(std::abs(product) <= Unit<T>(shape) * 10 * size * std::sqrt(Real<T>(n)))
                << factor.name() << "normal equation " << j << ": " << product;
          }
          continue;
        }
        // x solves the equations and lies in the range of conj(M) or M: Q^T x or Q^H x is zero from
        // row m on.
        std::vector<T> column(n);
        for (int64_t i = 0; i < n; ++i) column[i] = x[i * nrhs + r];
        for (int64_t j = 0; j < m; ++j) {
          T product = 0;
          for (int64_t i = 0; i < n; ++i) {
            product += (system == Op::kTrans ? at(i, j) : Conj(at(i, j))) * column[i];
          }
          EXPECT(std::abs(product - b[j * nrhs + r]) <= Unit<T>(shape) * 10 * size)
              << factor.name() << "equation " << j;
        }
        const std::vector<T> turned = reference.Multiply(system, column);
        for (int64_t i = m; i < n; ++i) {
          EXPECT(std::abs(turned[i]) <= Unit<T>(shape) * size)
              << factor.name() << "x isn't shortest";
        }
      }
    }
  }
}

std::unique_ptr<Device> OnThreads(int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); }

template <typename T>
void CheckShapes(const DeviceMaker& make) {
  for (const Shape& shape : kShapes) {
    CheckShape<T>(shape, make);
    CheckSolutions<T>(shape, make);
  }
}

// The AsyncDevice runs one dtype only: it takes most of the time, and its streams don't depend on
// the dtype.
TEST(ProductsSolutionsAndQFloat32) { CheckShapes<float>(OnHost); }
TEST(ProductsSolutionsAndQFloat64) { CheckShapes<double>(OnHost); }
TEST(ProductsSolutionsAndQComplex64) { CheckShapes<std::complex<float>>(OnHost); }
TEST(ProductsSolutionsAndQComplex128) { CheckShapes<std::complex<double>>(OnHost); }
TEST(ProductsSolutionsAndQOnThreads) { CheckShapes<std::complex<float>>(OnThreads); }

template <typename T>
bool AllNaN(const std::vector<T>& x) {
  return std::all_of(x.begin(), x.end(), [](const T& value) { return value != value; });
}

TEST(NonFiniteInputHasAStatusAndNaNResults) {
  using T = std::complex<double>;
  const double kBad[] = {NaN<double>(), std::numeric_limits<double>::infinity()};
  for (const Shape& shape : {Shape{13, 17, 3, 2}, Shape{17, 13, 1, 6}, Shape{1, 1, 1, 1}}) {
    for (const double bad : kBad) {
      for (const int64_t place : {int64_t{0}, shape.m * shape.n / 2, shape.m * shape.n - 1}) {
        Factor<T> factor(shape, OnHost);
        factor.problem.a[place] = T(0, bad);
        factor.problem.Scatter();
        factor.Make();
        for (int rank = 0; rank < shape.ranks; ++rank) {
          const Part<T>& part = factor.parts[rank];
          EXPECT(part.status == kNotFinite) << factor.name() << part.status;
          EXPECT(AllNaN(part.factors) && AllNaN(part.tau) && AllNaN(part.overflow) &&
                 AllNaN(factor.problem.blocks[rank]))
              << factor.name() << "a number is left for " << bad << " in " << place;
        }
        if (shape.m > shape.n) continue;
        Factor<T> fused(shape, OnHost);
        fused.problem.a[place] = T(bad, 0);
        fused.problem.Scatter();
        const std::vector<T> x = fused.Gels(Op::kNone, 2, RandomMatrix<T>(shape.n * 2, 1));
        EXPECT(fused.parts[0].status == kNotFinite) << fused.name() << fused.parts[0].status;
        EXPECT(AllNaN(x) && AllNaN(fused.parts[0].diagonal)) << fused.name() << "a number is left";
      }
    }
  }
}

TEST(AZeroColumnIsNotAFailure) {
  const Shape shape = {12, 15, 2, 3};
  Factor<double> factor(shape, OnHost);
  std::fill_n(factor.problem.a.begin() + 4 * shape.n, shape.n, 0.0);
  factor.problem.Scatter();
  factor.Gels(Op::kNone, 1, RandomMatrix<double>(shape.n, 1));
  EXPECT(factor.parts[0].status == 0) << factor.parts[0].status;
  EXPECT(factor.parts[0].diagonal[4] == 0) << factor.parts[0].diagonal[4];
}

TEST(DifferentRightHandSidesAreAStatus) {
  const Shape shape = {12, 15, 2, 3};
  GeneralProblem<double> problem(shape.m, shape.n, shape.ranks);
  std::vector<int32_t> status(shape.ranks);
  RunRanks(shape.ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    std::vector<double> x(shape.n, 1.0 + rank), diagonal(shape.m);
    const Status done =
        GelsRoutine<double>(context, problem.operand(rank, shape.tile, &status[rank]),
                            {Op::kNone, 1, x.data(), diagonal.data(), nullptr, /*check_b=*/true});
    EXPECT(AllNaN(x)) << "a number is left";
    return done;
  });
  for (const int32_t value : status) EXPECT(value == kDifferentOperands) << value;
}

TEST(StreamsWaitForEachOther) {
  using T = std::complex<double>;
  for (const Shape& shape : kShapes) {
    Recording recording(shape.ranks);
    const DeviceMaker make = [&](int rank) {
      return NewRecordingDevice(NewHostDevice(), LikeGpu(), recording, rank);
    };
    GeneralProblem<T> problem(shape.m, shape.n, shape.ranks, shape.extra_rows);
    GeneralProblem<T> system(shape.m, shape.n, shape.ranks, shape.extra_rows);
    const int64_t nrhs = 3, count = std::min(shape.m, shape.n);
    const int64_t tile =
        QrFactorSpace<T>({shape.m, shape.n, problem.block, shape.tile}, {shape.ranks, 0, LikeGpu()})
            .tiles.width();
    std::vector<Part<T>> parts(shape.ranks);
    for (Part<T>& part : parts) {
      part.overflow.resize(shape.n * tile);
      part.factors.resize(kPanelColumns * count);
      part.tau.resize(count);
      part.diagonal.resize(shape.m);
      part.x.assign(shape.n * nrhs, T(1));
    }
    const auto outcomes = RunRanks(
        shape.ranks,
        [&](const RankContext& context) -> Status {
          const int rank = context.comm.rank();
          Part<T>& part = parts[rank];
          Operand<T> operand = problem.operand(rank, tile, &part.status);
          operand.overflow = part.overflow.data();
          T* const factors = part.factors.data();
          T* const x = part.x.data();
          JAXMG_RETURN_IF_ERROR(QrFactorRoutine<T>(context, operand, factors, part.tau.data()));
          for (const Op op : kOps) {
            JAXMG_RETURN_IF_ERROR(QrApplyRoutine<T>(context, operand, factors, op, nrhs, x));
            JAXMG_RETURN_IF_ERROR(QrApplyRowsRoutine<T>(context, operand, factors, op, nrhs, x));
            std::fill(part.x.begin(), part.x.end(), T(1));
            if (shape.m > shape.n) continue;
            JAXMG_RETURN_IF_ERROR(QrSolveRoutine<T>(context, operand, factors, op, nrhs, x));
            std::fill(part.x.begin(), part.x.end(), T(1));
          }
          JAXMG_RETURN_IF_ERROR(QrFormRoutine<T>(context, operand, factors));
          if (shape.m > shape.n) return Status::Ok();
          return GelsRoutine<T>(context, system.operand(rank, tile, &part.status),
                                {Op::kNone, nrhs, x, part.diagonal.data()});
        },
        kPatience, make);
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
    const std::string race = recording.FirstRace();
    EXPECT(race.empty()) << problem.name() << "tile " << shape.tile << ": " << race;
  }
}

}  // namespace
}  // namespace jaxmg
