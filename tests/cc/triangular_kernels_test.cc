// The kernel of triangular.cuh, run on the host and compared to LAPACK's results.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
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
#include "xla_ffi/device/triangular_system.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/cholesky/triangular.cuh"
#pragma GCC diagnostic pop

namespace jaxmg {
namespace {

using namespace testing;
using host_cuda::Cast;
using host_cuda::GlobalMemory;
using host_cuda::LaunchCooperative;

template <typename T>
using Cuda = host_cuda::CudaType<T>;

// The equation op(A) X = B or X op(A) = B; X and B are m x n.
struct Equation {
  Side side;
  Op op;
  Triangle triangle;
  int64_t m, n;

  int64_t order() const { return side == Side::kLeft ? m : n; }
  std::string name() const {
    return std::string(side == Side::kLeft ? "left" : "right") +
           (op == Op::kNone    ? ""
            : op == Op::kTrans ? ", transposed"
                               : ", conjugated") +
           (triangle.uplo == Uplo::kLower ? ", lower" : ", upper") +
           (triangle.diag == Diag::kUnit ? ", unit, " : ", ") + std::to_string(m) + " x " +
           std::to_string(n);
  }
};

template <typename T>
struct Operands {
  int64_t lda, ldb;
  std::vector<T> a, b;
};

// Returns random operands; the triangle has NaN in all elements that must not be read.
template <typename T>
Operands<T> RandomOperands(const Equation& equation) {
  const int64_t order = equation.order(), lda = order + 3, ldb = equation.m + 2;
  Operands<T> operands = {lda, ldb, std::vector<T>(lda * order, NaN<T>()),
                          std::vector<T>(ldb * equation.n, T(7))};
  std::mt19937_64 random(order * 100 + equation.n);
  for (int64_t j = 0; j < order; ++j) {
    for (int64_t i = 0; i < order; ++i) {
      const bool lower = equation.triangle.uplo == Uplo::kLower;
      if (i == j && equation.triangle.diag == Diag::kNonUnit) {
        operands.a[i + j * lda] = T(3) + Random<T>(random) / Real<T>(4);
      } else if (i != j && (i > j) == lower) {
        operands.a[i + j * lda] = Random<T>(random) / std::sqrt(Real<T>(order));
      }
    }
  }
  for (int64_t j = 0; j < equation.n; ++j) {
    for (int64_t i = 0; i < equation.m; ++i) operands.b[i + j * ldb] = Random<T>(random);
  }
  return operands;
}

// The kernel's constants: the right-hand sides of a block, and the edge of its tiles.
template <int kOfColumns, int kOfEdge, int kOfSquares>
struct Shape {
  static constexpr int kColumns = kOfColumns, kEdge = kOfEdge, kSquares = kOfSquares;
};
using Small = Shape<1, 8, 4>;
using SmallPair = Shape<2, 8, 4>;

// Launches the kernel twice with the same memory for words, the first time with other numbers.
template <typename T, typename S>
std::vector<T> ByKernel(const Equation& equation, const Operands<T>& operands) {
  using Solver = kernels::TriangleSolver<Cuda<T>, S::kColumns, S::kEdge, S::kSquares>;
  const TriangularSystem of(equation.side, equation.op, equation.triangle, equation.m, equation.n,
                            operands.lda, operands.ldb);
  const int nrhs = static_cast<int>(of.nrhs);
  const auto blocks = static_cast<unsigned>((of.order + Solver::kRows - 1) / Solver::kRows *
                                            ((nrhs + S::kColumns - 1) / S::kColumns));
  GlobalMemory<kernels::TaggedWord> words(Solver::kWords * of.order * nrhs, {{0, 0}});
  GlobalMemory<unsigned> ticket(1, 5);
  GlobalMemory<T> first(operands.b), x(operands.b);
  for (size_t i = 0; i < operands.b.size(); ++i) first.data()[i] *= 2;
  unsigned tag = 1;
  for (T* b : {first.data(), x.data()}) {
    const kernels::Triangular<Cuda<T>> system = {of.order,
                                                 nrhs,
                                                 of.conjugated,
                                                 of.unit,
                                                 Cast(operands.a.data() + of.a.begin),
                                                 of.a.row,
                                                 of.a.column,
                                                 Cast(b + of.b.begin),
                                                 of.b.row,
                                                 of.b.column,
                                                 Cast(b + of.b.begin),
                                                 of.b.row,
                                                 of.b.column};
    LaunchCooperative(blocks, Solver::kThreads, [&] {
      Solver(system, words.data(), tag, ticket.data(), 5 + (tag - 1) * blocks).Run();
    });
    ++tag;
  }
  EXPECT(*ticket.data() == 5 + 2 * blocks);
  return std::vector<T>(x.data(), x.data() + operands.b.size());
}

template <typename T>
std::vector<T> ByHost(const Equation& equation, Operands<T> operands) {
  const auto device = NewHostDevice();
  EXPECT(device->blas<T>()
             .Trsm(Stream::kMain, equation.side, equation.op, equation.m, equation.n,
                   operands.a.data(), operands.lda, operands.b.data(), operands.ldb,
                   equation.triangle)
             .ok());
  return operands.b;
}

// Checks that results are equal up to rounding and non-finite in the same places.
template <typename T>
void Compare(const std::vector<T>& actual, const std::vector<T>& expected,
             const std::string& what) {
  Real<T> difference = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    difference = std::max<Real<T>>(difference, std::abs(actual[i] - expected[i]));
    if (std::isnan(std::abs(actual[i]))) difference = std::numeric_limits<Real<T>>::infinity();
  }
  EXPECT(difference < 100 * kEps<T>) << what << ": " << difference / kEps<T>;
}

template <typename T, typename S>
void Check(const Equation& equation) {
  const Operands<T> operands = RandomOperands<T>(equation);
  Compare(ByKernel<T, S>(equation, operands), ByHost(equation, operands), equation.name());
}

std::vector<Equation> AllKinds(int64_t order, int64_t nrhs) {
  std::vector<Equation> equations;
  for (Side side : {Side::kLeft, Side::kRight}) {
    const int64_t m = side == Side::kLeft ? order : nrhs, n = side == Side::kLeft ? nrhs : order;
    for (Op op : {Op::kNone, Op::kTrans, Op::kConjTrans}) {
      for (Uplo uplo : {Uplo::kLower, Uplo::kUpper}) {
        for (Diag diag : {Diag::kNonUnit, Diag::kUnit}) {
          equations.push_back({side, op, {uplo, diag}, m, n});
        }
      }
    }
  }
  return equations;
}

TEST(AllTriangles) {
  for (const Equation& equation : AllKinds(37, 1)) Check<std::complex<float>, Small>(equation);
}

// Tests the device's constants: a single block, and several with a partial last one; groups of
// right-hand sides with a partial last one.
template <typename T>
void CheckWhole() {
  constexpr int kSquares = kTriangleSquares<sizeof(T)>, kRows = kTriangleEdge * kSquares;
  using One = Shape<1, kTriangleEdge, kSquares>;
  using Several = Shape<kTriangleColumns, kTriangleEdge, kSquares>;
  Check<T, One>({Side::kRight, Op::kNone, kUpper, 1, kRows});
  Check<T, One>({Side::kRight, Op::kConjTrans, kUnitLower, 1, 2 * kRows + 5});
  Check<T, Several>({Side::kLeft, Op::kNone, kUnitLower, kRows + 3, 3});
  Check<T, Several>({Side::kRight, Op::kNone, kUpper, 6, kRows + 1});
}

TEST(WholeBlocks) {
  CheckWhole<float>();
  CheckWhole<double>();
  CheckWhole<std::complex<float>>();
  CheckWhole<std::complex<double>>();
}

// A zero on the diagonal gives infinity or NaN from that row on. A diagonal element whose
// reciprocal is infinite does not.
TEST(SpecialDiagonals) {
  const Equation equation = {Side::kLeft, Op::kNone, kUpper, 40, 1};
  Operands<double> operands = RandomOperands<double>(equation);
  double& diagonal = operands.a[35 + 35 * operands.lda];
  diagonal = 0;
  std::vector<double> actual = ByKernel<double, Small>(equation, operands);
  for (int64_t i = 0; i < 40; ++i) EXPECT(std::isfinite(actual[i]) == (i > 35)) << i;
  EXPECT(std::isinf(actual[35])) << actual[35];
  operands.b[35] = 0;
  for (int64_t i = 36; i < 40; ++i) operands.b[i] = 0;
  EXPECT(std::isnan(ByKernel<double, Small>(equation, operands)[35]));

  operands = RandomOperands<double>(equation);
  for (int64_t j = 0; j < 40; ++j) {
    for (int64_t i = 0; i <= j; ++i) operands.a[i + j * operands.lda] *= 0x1p-1073;
  }
  for (double& b : operands.b) b *= 0x1p-1000;
  actual = ByKernel<double, Small>(equation, operands);
  const std::vector<double> expected = ByHost(equation, operands);
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT(std::isfinite(actual[i]) && std::isfinite(expected[i])) << i << ": " << actual[i];
  }
}

}  // namespace
}  // namespace jaxmg
